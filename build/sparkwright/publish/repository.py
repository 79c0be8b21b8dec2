"""The signed metadata of a channel: written as a repository of The Update Framework, and read as one.

Each channel is a repository of its own, with a root, keys and times of its own: nothing about one channel, be
it expired or stolen, concerns a reader of another. Its one target is the state of the present generation. A
reader's check is that of `tuf.ngclient`; what it remembers between calls is in `sparkwright.publish.seen`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadHTTPError,
    DownloadLengthMismatchError,
    ExpiredMetadataError,
    LengthOrHashMismatchError,
    RepositoryError,
    UnsignedMetadataError,
)
from tuf.api.metadata import Metadata, MetaFile, Signed, Snapshot, TargetFile, Targets, Timestamp
from tuf.api.serialization import DeserializationError
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from sparkwright.base.errors import (
    ExpiredChannelError,
    FetchError,
    ReplayedChannelError,
    SignatureError,
    SparkwrightError,
    TamperedError,
    UnknownNameError,
    UntrustedKeyError,
)
from sparkwright.publish.channel import STATE, ChannelState, decode_state, generation_folder, metadata_path
from sparkwright.publish.roots import ONLINE, OURS, PinnedRoot, name_of, require_follows
from sparkwright.publish.seen import Memory
from sparkwright.publish.target import require_signed

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

Read = Callable[[str], bytes | None]
"""Returns the file at a path of a target, or `None`."""

_CONFIG = UpdaterConfig(prefix_targets_with_hash=False, timestamp_max_length=1 << 18)
"""Signatures of a timestamp may be bundles of sigstore, each of which has a certificate and proofs."""
_ELSEWHERE = "do not install from there; take another mirror"
_INCOMPLETE = "the mirror may be incomplete; take another one"

_MEANINGS: tuple[tuple[type[Exception], type[SparkwrightError], str, str, str], ...] = (
    (
        ExpiredMetadataError, ExpiredChannelError, "{} is expired",
        ": the mirror is frozen, or its publisher stopped",
        "take another mirror, or ask the publisher for 'sparkwright channel renew'",
    ),
    (
        BadVersionNumberError, ReplayedChannelError, "{} went back",
        ": this mirror is stale, or somebody replays an old state", "take another mirror",
    ),
    (LengthOrHashMismatchError, TamperedError, "the metadata of {} were changed", "", _ELSEWHERE),
    (DownloadHTTPError, TamperedError, "{} is not complete", "", _ELSEWHERE),
    (DownloadLengthMismatchError, FetchError, "the metadata of {} were not read", "", _ELSEWHERE),
    (RepositoryError, SignatureError, "the metadata of {} are damaged", "", _ELSEWHERE),
)  # fmt: skip
"""What a refusal of the client means: our class, what failed, more of the cause, and the next step."""


# Writing --------------------------------------------------------------------------------------------


def signed_metadata(
    state: ChannelState, expires: datetime, version: int, signers: Sequence[Signer]
) -> dict[str, bytes]:
    """Return targets, snapshot and timestamp of that *version* over *state*, in the order of writing."""
    target = TargetFile.from_data(STATE, state.payload, ["sha256"])
    target.unrecognized_fields["custom"] = {"generation": state.generation}
    targets = _signed(Targets(version, expires=expires, targets={STATE: target}), signers)
    snapshot = _signed(
        Snapshot(version, expires=expires, meta={"targets.json": _listed(version, targets)}), signers
    )
    pointer = Timestamp(version, expires=expires, snapshot_meta=_listed(version, snapshot))
    pointer.unrecognized_fields[OURS] = {"channel": state.channel, "origin": state.origin}
    return {"targets": targets, "snapshot": snapshot, "timestamp": _signed(pointer, signers)}


def _signed(signed: Signed, signers: Sequence[Signer]) -> bytes:
    metadata: Metadata[Any] = Metadata(signed)
    for signer in signers:
        metadata.sign(signer, append=True)
    return metadata.to_bytes()


def _listed(version: int, data: bytes) -> MetaFile:
    return MetaFile.from_data(version, data, ["sha256"])


# Reading --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadChannel:
    """A channel as its signed metadata describe it.

    Attributes:
        state: the present generation.
        version: of the pointer.
        metadata: the signed metadata by role.
        root: the newest root, by which they were verified; `None` if nothing was.
        signer: the name of the key or identity that signed the pointer.
    """

    state: ChannelState
    version: int
    metadata: Mapping[str, bytes]
    root: PinnedRoot | None = None
    signer: str = ""


class _Files(FetcherInterface):
    """Files of a target for the client; each is read once.

    Attributes:
        files: what was read, by path.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self.files: dict[str, bytes | None] = {}

    def read(self, path: str) -> bytes | None:
        """Return the file at *path*, `None` if there is none."""
        if path not in self.files:
            self.files[path] = self._read(path)
        return self.files[path]

    def _fetch(self, url: str) -> Iterator[bytes]:
        data = self.read(url)
        if data is None:
            raise DownloadHTTPError(f"{url} does not exist", 404)
        yield data


def read_channel(
    read: Read, channel: str, roots: Sequence[PinnedRoot], memory: Memory, where: str, *, named: bool = False
) -> ReadChannel:
    """Return the present generation of *channel*, verified by the first of *roots* that can.

    Args:
        read: reads the target or a copy of it.
        channel: the channel's name.
        roots: the trusted roots.
        memory: what was seen before.
        where: the place, for errors.
        named: the root was named for this one call: what is remembered may be of a thief, whom a reader of
            it follows, so it is followed by itself.

    Raises:
        UnknownNameError: there is no such channel.
        SignatureError: metadata are damaged, unsigned, or have a wrong signature.
        UntrustedKeyError: a key signed them that is unknown, or trusted no more.
        ExpiredChannelError: the channel is past its time.
        ReplayedChannelError: it is older than seen before, or there are two of one version.
        TamperedError: a file is missing, or not the one that was signed.
        FetchError: a file cannot be fetched.
    """
    files = _Files(read)
    pointer = _pointer(files, channel, where)
    of_channel = [root for root in roots if root.channel == channel]
    if not of_channel:
        raise UntrustedKeyError(
            f"channel {channel} at {where} cannot be verified",
            because="no root is pinned here for it, so that every key is unknown",
            next_step="get its root over a way that you trust, then: sparkwright channel key pin FILE",
        )
    refusals: list[tuple[bool, SparkwrightError]] = []
    for pinned in of_channel:
        try:
            return _verified(files, pointer, pinned, memory, where, named=named)
        except SparkwrightError as error:  # it may be another publisher's channel
            refusals.append((not set(pointer.signatures) & set(pinned.root.keys), error))
    raise min(refusals, key=lambda one: one[0])[1]


def _verified(
    files: _Files,
    pointer: Metadata[Timestamp],
    pinned: PinnedRoot,
    memory: Memory,
    where: str,
    *,
    named: bool,
) -> ReadChannel:
    channel = pinned.channel
    seen = memory.root(pinned.publisher)
    known = memory.channel(pinned.publisher, _ours(pointer).get("origin", ""))
    if seen is not None and seen.version > pinned.version and not named:
        pinned = seen
    reached = pinned
    with TemporaryDirectory(prefix="sparkwright-") as folder:
        for role, data in known.metadata().items() if known else ():
            Path(folder, f"{role}.json").write_bytes(data)
        base = metadata_path(channel, "")
        try:
            updater = Updater(folder, base, folder, base, files, _CONFIG, bootstrap=pinned.data)
            try:
                updater.refresh()
            finally:
                reached = PinnedRoot(Path(folder, "root.json").read_bytes())
            target = updater.get_targetinfo(STATE)
        except (RepositoryError, DownloadHTTPError, DownloadLengthMismatchError) as error:
            raise _refusal(error, files, channel, reached, where) from error
        require_follows(reached, pinned, f"the newest root of channel {channel} at {where}")
        if named and seen is not None and seen.version > reached.version:
            raise ReplayedChannelError(
                f"the named root leads to version {reached.version} at {where}",
                because=f"version {seen.version} of {seen.written} was seen before: this "
                "mirror withholds it, or a thief made it",
                next_step="name the publisher's newest root; if a thief made the other, pin it: "
                "sparkwright channel key pin FILE --publisher ID --digest SHA256",
            )
        metadata = {role: Path(folder, f"{role}.json").read_bytes() for role in ONLINE}
    if metadata["timestamp"] != files.read(metadata_path(channel)):
        raise ReplayedChannelError(
            f"channel {channel} has two generations of one version",
            because=f"version {pointer.signed.version} was seen before, and signed another one then: "
            "its key is used in two places, or was stolen",
            next_step="ask its publisher which one is right before you install from it",
        )
    if target is None:
        raise SignatureError(
            f"channel {channel} at {where} cannot be read", because=f"it does not sign {STATE}"
        )
    state = _state(files, target, channel)
    return ReadChannel(state, pointer.signed.version, metadata, reached, _signer(pointer, reached))


def read_unverified(read: Read, channel: str, where: str) -> ReadChannel:
    """Return the present generation of *channel*; no signature is verified, but every digest.

    Raises:
        UnknownNameError: there is no such channel.
        SignatureError: metadata are damaged.
        TamperedError: a file is missing, or is not what the one before it names.
    """
    files = _Files(read)
    pointer = _pointer(files, channel, where)
    metadata = {"timestamp": files.read(metadata_path(channel)) or b""}

    def listed(role: str, meta: MetaFile) -> bytes:
        path = metadata_path(channel, f"{meta.version}.{role}.json")
        sha256 = (meta.hashes or {})["sha256"]
        metadata[role] = require_signed(files.read(path), sha256, path, "it", _INCOMPLETE)
        return metadata[role]

    try:
        snapshot = Metadata[Snapshot].from_bytes(listed("snapshot", pointer.signed.snapshot_meta)).signed
        targets = Metadata[Targets].from_bytes(listed("targets", snapshot.meta["targets.json"])).signed
        target = targets.targets[STATE]
    except (AttributeError, DeserializationError, KeyError) as error:
        raise SignatureError(f"the metadata of channel {channel} are damaged", because=repr(error)) from error
    return ReadChannel(_state(files, target, channel), pointer.signed.version, metadata)


def _pointer(files: _Files, channel: str, where: str) -> Metadata[Timestamp]:
    """Return the pointer, whose signature is not verified yet."""
    path = metadata_path(channel)
    data = files.read(path)
    if data is None:
        raise UnknownNameError(
            f"there is no channel {channel} at {where}",
            because=f"{path} does not exist there, or may not be read",
            next_step=f"sparkwright channel promote WHEEL --to {channel} makes it",
        )
    what = f"the pointer of channel {channel}"
    try:
        pointer = Metadata[Timestamp].from_bytes(data)
    except (DeserializationError, RecursionError) as error:
        raise SignatureError(
            f"{what} is damaged",
            because=f"it is no signed metadata, {len(data)} bytes: it was cut off, or never was one",
            next_step="fetch it again; if it stays so, take another mirror",
        ) from error
    if not isinstance(pointer.signed, Timestamp):
        raise SignatureError(f"{what} is another kind of statement", because=f"it is a {pointer.signed.type}")
    named = _ours(pointer).get("channel", channel)
    if named != channel:
        raise SignatureError(
            f"{what} is not of channel {channel}",
            because=f"it was signed as channel {named}: somebody moved it",
            next_step="take another mirror",
        )
    return pointer


def _ours(pointer: Metadata[Timestamp]) -> dict[str, str]:
    found = pointer.signed.unrecognized_fields.get(OURS)
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _state(files: _Files, target: TargetFile, channel: str) -> ChannelState:
    """Return the state that the signed *target* describes."""
    custom = target.unrecognized_fields.get("custom")
    generation = custom.get("generation") if isinstance(custom, dict) else None
    if not isinstance(generation, int):
        raise SignatureError(
            f"the metadata of channel {channel} are damaged", because="they name no generation"
        )
    folder = generation_folder(channel, generation, target.hashes.get("sha256", ""))
    path = f"{folder}/{STATE}"
    data = require_signed(files.read(path), target.hashes.get("sha256", ""), path, "it", _INCOMPLETE)
    return decode_state(data, channel, f"the state of channel {channel}")


def _signer(pointer: Metadata[Timestamp], root: PinnedRoot) -> str:
    result = root.root.get_verification_result("timestamp", pointer.signed_bytes, pointer.signatures)
    return ", ".join(name_of(key) for key in result.signed.values())


def _refusal(error: Exception, files: _Files, channel: str, root: PinnedRoot, where: str) -> SparkwrightError:
    """Return what a refusal of the client means for the user."""
    if isinstance(error, UnsignedMetadataError):
        return _unsigned(error, files, channel, root)
    _, kind, what, more, step = next(found for found in _MEANINGS if isinstance(error, found[0]))
    if "root version" in str(error):
        kind, what, more = SignatureError, "a root of {} does not follow the one before it", ""
    return kind(what.format(f"channel {channel} at {where}"), because=f"{error}{more}", next_step=step)


def _unsigned(error: Exception, files: _Files, channel: str, root: PinnedRoot) -> SparkwrightError:
    """Return why signed metadata were refused: no signature, another key's, or a wrong one."""
    role = str(error).partition(" ")[0]
    paths = [path for path in files.files if path == metadata_path(channel) or path.endswith(f".{role}.json")]
    data = files.files[paths[-1]] if paths else None
    signatures = list(Metadata.from_bytes(data).signatures) if data else []
    what = f"the {role} of channel {channel}"
    if not signatures:
        return SignatureError(
            f"{what} is not signed",
            because="anybody who can write there can have made it",
            next_step=_ELSEWHERE,
        )
    if set(signatures) & set(root.keys(role)):
        return SignatureError(
            f"{what} has a wrong signature",
            because=f"content and signature by {signatures[0][:16]} do not fit: one of them was changed",
            next_step=_ELSEWHERE,
        )
    told = next((root.former[key] for key in signatures if key in root.former), "")
    if not told and set(signatures) & set(root.root.keys):
        told = f"may not sign the {role}"
    return UntrustedKeyError(
        f"{what} is signed by a key that is not trusted",
        because=f"key {signatures[0][:16]} {told}" if told
        else f"unknown key {signatures[0][:16]}: it is not in the pinned root",
        next_step="take another mirror; if this is the newest, ask its publisher: 'sparkwright channel renew "
        f"{channel}' signs it again",
    )  # fmt: skip
