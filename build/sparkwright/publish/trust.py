"""The pinned root: the keys and identities that a reader trusts, and how they change.

A root is a signed document with a version. The next version has to be signed by a key that this one trusts
for roots, so a reader who pinned any version follows rotations and revocations from there, file by file. The
newest version that was seen is remembered, and none before it is trusted again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sparkwright.base.errors import SignatureError, UntrustedKeyError
from sparkwright.publish.channel import decode_signed, moment
from sparkwright.publish.root import FORMAT, TrustedKey, TrustRoot
from sparkwright.publish.signing import TRUST_TYPE, OpenedEnvelope, open_envelope, verify_envelope

FOLDER = "trust"
_MOST_VERSIONS = 1000


def root_path(version: int) -> str:
    """Return the path at a target of that version of the publisher's root."""
    return f"{FOLDER}/{version}.json"


def read_root(data: bytes, what: str) -> TrustRoot:
    """Return the root in the envelope *data*, without trusting it: anybody can list another's key in one.

    Trust in it comes from `first_root` with the versions that follow it, or from the digest of the file.

    Raises:
        SignatureError: it is damaged.
    """
    return _opened_root(data, what)[0]


def first_root(data: bytes, what: str) -> TrustRoot:
    """Return the first version of a root, which has to be signed by the key whose id is the publisher's.

    That key has to be its only one, so that whoever compared the id knows every key that may sign for it.

    Raises:
        SignatureError: it is damaged, or its signature is wrong.
        UntrustedKeyError: it is a later version, has other keys, or is signed by another one.
    """
    root, opened = _opened_root(data, what)
    if root.version != 1:
        raise UntrustedKeyError(
            f"{what} cannot be trusted by its publisher's id",
            because=f"it is version {root.version}, and only the versions from 1 on show who made it",
            next_step=f"put all versions before it beside it (1.json and so on, as {FOLDER}/ at a target), "
            "or compare its SHA-256: sparkwright channel key pin FILE --digest SHA256",
        )
    if [key.id for key in root.keys] != [root.publisher] or root.identities:
        raise UntrustedKeyError(
            f"{what} was not made by its publisher",
            because=f"a first version has no key but {root.publisher[:16]}, by which the publisher is named",
            next_step="do not use it; ask the publisher for the file, and for its SHA-256",
        )
    verify_envelope(opened, root, role="roots")
    return root


def root_of_file(path: Path) -> PinnedRoot:
    """Return the root in the file *path*, proven by the versions before it, ``1.json`` and so on beside it.

    Raises:
        SignatureError: a version is damaged, or is not the next one.
        UntrustedKeyError: the first is not signed by the publisher's key alone, a later one by none of the
            version before, or versions are missing.
    """
    data = path.read_bytes()
    version = read_root(data, str(path)).version
    before = [path.with_name(f"{number}.json") for number in range(1, min(version, _MOST_VERSIONS))]
    chain = [*((file.read_bytes(), str(file)) for file in before if file.is_file()), (data, str(path))]
    root = first_root(*chain[0])
    for following in chain[1:]:
        root = next_root(root, *following)
    return PinnedRoot(root, data)


def next_root(root: TrustRoot, data: bytes, what: str) -> TrustRoot:
    """Return the root in the envelope *data*, the successor of *root*.

    Raises:
        SignatureError: it is damaged, or not the next version.
        UntrustedKeyError: it is not signed by a key that *root* trusts for roots.
    """
    following, opened = _opened_root(data, what)
    verify_envelope(opened, root, role="roots")
    if (following.publisher, following.version) != (root.publisher, root.version + 1):
        raise SignatureError(
            f"{what} does not follow the pinned root",
            because=f"it is version {following.version} of publisher {following.publisher[:16]}, "
            f"after version {root.version} of {root.publisher[:16]}",
        )
    return following


def newest_root(pinned: PinnedRoot, read: Callable[[str], bytes | None]) -> PinnedRoot:
    """Return the newest successor of *pinned* that *read* finds; *pinned* itself without one.

    Args:
        pinned: a root that is trusted.
        read: returns the file at a path of a target, or `None`.

    Raises:
        SignatureError: a successor is damaged.
        UntrustedKeyError: a successor is not signed by a key that its predecessor trusts.
    """
    for _ in range(_MOST_VERSIONS):
        path = root_path(pinned.root.version + 1)
        found = read(path)
        if found is None:
            break
        pinned = PinnedRoot(next_root(pinned.root, found, path), found)
    return pinned


def _opened_root(data: bytes, what: str) -> tuple[TrustRoot, OpenedEnvelope]:
    opened = open_envelope(data, TRUST_TYPE, what)
    root = decode_signed(opened.payload, TrustRoot, FORMAT, what)
    _require_sound(root, what)
    return root, opened


def _require_sound(root: TrustRoot, what: str) -> None:
    """Refuse a root whose keys are not what their ids say, or whose times are none.

    Raises:
        SignatureError: it is such a one.
    """
    for key in root.keys:
        if key_id_of(key.public) != key.id:
            raise SignatureError(f"{what} is damaged", because=f"key {key.id[:16]} is not the key of that id")
        for text in filter(None, (key.start, key.end, key.revoked)):
            moment(text, what)
    if not any(key.id == root.publisher for key in root.keys):
        raise SignatureError(f"{what} is damaged", because="it lacks the publisher's first key")


def key_id_of(public: str) -> str:
    """Return the id of an ed25519 key, given in hex; empty if it is none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from securesystemslib.signer import SSlibKey

    try:
        return str(SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))).keyid)
    except ValueError:
        return ""


def replaced(root: TrustRoot, key: TrustedKey) -> TrustRoot:
    """Return *root* with *key* in the place of the key of that id, or behind all others."""
    keys = [key if one.id == key.id else one for one in root.keys]
    if key not in keys:
        keys.append(key)
    return msgspec.structs.replace(root, keys=tuple(keys))


@dataclass(frozen=True)
class PinnedRoot:
    """A root as the user has it."""

    root: TrustRoot
    data: bytes
