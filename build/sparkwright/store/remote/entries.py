"""Records as the remote tier keeps them: with kind and key, and signed by their writer (ed25519, RFC 8032).

A signature covers kind, key and record together, so no entry counts under another key. An older entry of the
same key is as true as a newer one: a key is the digest of all inputs, and results do not expire. So neither
times nor counters are needed.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import ConfigError
from sparkwright.store.disk import atomic_file, hold, make_folder, storing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


_PREFIX = "ed25519:"
_RAW_BYTES = 32


@dataclass(frozen=True)
class WriterKey:
    """A writer's public key, 32 bytes."""

    raw: bytes

    @cached_property
    def id(self) -> str:
        """Return the first 16 hex digits of its SHA-256, by which records name it."""
        return sha256_bytes(self.raw)[:16]

    @property
    def text(self) -> str:
        """Return it as ``store.toml`` has it."""
        return f"{_PREFIX}{base64.b64encode(self.raw).decode()}"

    @classmethod
    def parse(cls, text: str, writer: str) -> WriterKey:
        """Return the key of *writer* that *text* spells, as `text` does."""
        try:
            raw = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except ValueError:
            raw = b""
        if not text.startswith(_PREFIX) or len(raw) != _RAW_BYTES:
            raise ConfigError(
                f"the writer {writer!r} in store.toml has no usable key",
                because=f"{text[:60]!r} is not {_PREFIX} and 32 bytes in base64",
                next_step="'sparkwright store status' prints the key of a machine",
            )
        return cls(raw)

    def signed(self, data: bytes, signature: bytes) -> bool:
        """Tell if *signature* is this writer's signature of *data*."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except (InvalidSignature, ValueError):
            return False
        return True


def public_of(private: Ed25519PrivateKey) -> WriterKey:
    """Return the public half of a machine's key."""
    return WriterKey(private.public_key().public_bytes_raw())


def find_key(path: Path) -> Ed25519PrivateKey | None:
    """Return the key in the file at *path*, or `None` where there is no such file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            data = stream.read()
    except FileNotFoundError:
        return None
    if mode & 0o077:
        raise _unusable(path, f"others may read it (mode {mode:o})", f"chmod 600 {path}, or make another")
    try:
        private = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise _unusable(path, "it holds no private key in PEM form", "remove it: another is made") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise _unusable(path, "its key is not of the kind ed25519", "remove it: another is made")
    return private


def require_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in the file at *path*, made on first use for its owner alone; raise as `find_key`."""
    if (found := find_key(path)) is not None:
        return found
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = Ed25519PrivateKey.generate()
    with storing(f"making the key {path}", instead="name another place in SPARKWRIGHT_STORE_KEY"):
        make_folder(path.parent)
        with hold(path.parent, f"the key {path}"):
            if (found := find_key(path)) is not None:  # another run was faster
                return found
            with atomic_file(path, mode=0o600) as handle:
                os.write(handle, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made


def _unusable(path: Path, because: str, next_step: str) -> ConfigError:
    return ConfigError(f"the key {path} cannot be used", because=because, next_step=next_step)


# Entries ---------------------------------------------------------------------------------------------


MOST_ENTRY_BYTES = 16 << 20

TRAVELLING = frozenset({"unit", "extension", "deflated", "proof", "audit"})
"""The kinds of records that are true on every machine.

Their keys are digests of content, toolchain and rules, and they name no path of a machine. All others stay:
what names folders or objects of the local repository (merges, configurations, trees), what was measured here
(costs), and what an index once said.
"""
NAMING_FILES = frozenset({"unit", "extension", "deflated"})
"""Those that name files by digest, without which they are of no use."""

_FORMAT = 1


class RefusedEntryError(Exception):
    """An entry does not count.

    Attributes:
        writer: the id of a writer that is not known here, or ``unsigned``; empty where the entry itself is at
            fault.
    """

    def __init__(self, message: str, writer: str = "") -> None:
        super().__init__(message)
        self.writer = writer


class _Entry(msgspec.Struct, frozen=True):
    """An entry's JSON: `record` is the record's text, `signature` is in base64."""

    format: int
    kind: str
    key: str
    record: str
    writer: str = ""
    signature: str = ""

    @property
    def statement(self) -> bytes:
        """Return the bytes that are signed."""
        return "\0".join(("sparkwright store entry", str(_FORMAT), self.kind, self.key, self.record)).encode()


def place_of(kind: str, key: str) -> str:
    """Return the place of the entry of *kind* and *key*."""
    return f"ac/{sha256_bytes(f'sparkwright {_FORMAT} {kind} {key}'.encode())}"


def encode_entry(kind: str, key: str, record: bytes, signer: Ed25519PrivateKey) -> bytes:
    """Return *record* as an entry that *signer* signed."""
    entry = _Entry(_FORMAT, kind, key, record.decode())
    signature = base64.b64encode(signer.sign(entry.statement)).decode()
    return msgspec.json.encode(
        msgspec.structs.replace(entry, writer=public_of(signer).id, signature=signature)
    )


def decode_entry(body: bytes, kind: str, key: str, writers: Mapping[str, WriterKey]) -> bytes:
    """Return the record in the entry *body*; *writers* are those that are believed, by id.

    Raises:
        RefusedEntryError: it is no entry of that *kind* and *key*, or none of *writers* signed it.
    """
    try:
        entry = decode_json(body, _Entry)
        record = json.loads(entry.record)
    except (ValueError, RecursionError) as error:  # msgspec's errors are of the first kind
        raise RefusedEntryError("it is no entry") from error
    if entry.format != _FORMAT or not isinstance(record, dict):
        raise RefusedEntryError("it is no entry of a known format")
    if (entry.kind, entry.key) != (kind, key):
        raise RefusedEntryError("it is the entry of another key")
    if not entry.signature:
        raise RefusedEntryError("it is not signed", writer="unsigned")
    writer = writers.get(entry.writer)
    if writer is None:
        raise RefusedEntryError("its writer is not known here", writer=entry.writer)
    try:
        signature = base64.b64decode(entry.signature, validate=True)
    except ValueError as error:
        raise RefusedEntryError("its signature cannot be read") from error
    if not writer.signed(entry.statement, signature):
        raise RefusedEntryError("its signature is wrong")
    return entry.record.encode()
