"""The signed metadata of a channel: written as a repository of The Update Framework, and read as one.

Each channel is a repository of its own, with a root, keys and times of its own: nothing about one channel, be
it expired or stolen, concerns a reader of another. Its one target is the state of the present generation. A
reader's check is that of `tuf.ngclient`; what it remembers between calls is in `sparkwright.publish.trust`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from securesystemslib.signer import Signer
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
from sparkwright.publish.channel import STATE, ChannelState, decode_state, metadata_path, state_path
from sparkwright.publish.keys import ONLINE, OURS, ChannelRoot
from sparkwright.publish.target import Stored, require_signed
from sparkwright.publish.trust import Trust

Read = Callable[[str], Stored | None]
"""Returns the file at a path of a target, or `None`."""

_CONFIG = UpdaterConfig(prefix_targets_with_hash=False)
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
"""The client's refusals: its class, our class, what failed, more of the cause, and the next step."""


@dataclass(frozen=True)
class ReadChannel:
    """A channel as its metadata describe it.

    Attributes:
        tag: of the pointer, for replacing it.
        root: the newest root, by which it was verified; `None` if it was not.
    """

    state: ChannelState
    version: int
    tag: str
    root: ChannelRoot | None = None
    signer: str = ""


def signed_metadata(state: ChannelState, expires: datetime, version: int, signer: Signer) -> dict[str, bytes]:
    """Return targets, snapshot and timestamp of that *version* over *state*, in the order of writing."""
    target = TargetFile.from_data(STATE, state.payload, ["sha256"])
    targets = _signed(Targets(version, expires=expires, targets={STATE: target}), signer)
    snapshot = _signed(
        Snapshot(version, expires=expires, meta={"targets.json": _listed(version, targets)}), signer
    )
    pointer = Timestamp(version, expires=expires, snapshot_meta=_listed(version, snapshot))
    pointer.unrecognized_fields[OURS] = {"channel": state.channel}
    return {"targets": targets, "snapshot": snapshot, "timestamp": _signed(pointer, signer)}


def _signed(signed: Signed, signer: Signer) -> bytes:
    metadata: Metadata[Any] = Metadata(signed)
    metadata.sign(signer)
    return metadata.to_bytes()


def _listed(version: int, data: bytes) -> MetaFile:
    return MetaFile.from_data(version, data, ["sha256"])


class _Files(FetcherInterface):
    """Files of a target for the client; each is read once, and kept by its path."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.files: dict[str, Stored | None] = {}

    def read(self, path: str) -> Stored | None:
        """Return the file at *path*, `None` if there is none."""
        if path not in self.files:
            self.files[path] = self._read(path)
        return self.files[path]

    def _fetch(self, url: str) -> Iterator[bytes]:
        stored = self.read(url)
        if stored is None:
            raise DownloadHTTPError(f"{url} does not exist", 404)
        yield stored.data


def read_channel(read: Read, channel: str, trust: Trust, place: str) -> ReadChannel:
    """Return the present generation of *channel*, verified by the root that counts at *place*; remember it.

    Raises:
        UnknownNameError: there is no such channel.
        SignatureError: metadata are damaged, unsigned, of another channel, or have a wrong signature.
        UntrustedKeyError: a key signed them that is unknown, or trusted no more; or no root is pinned.
        ExpiredChannelError: the channel is past its time.
        ReplayedChannelError: it is older than seen before, or there are two of one version.
        TamperedError: a file is missing, or not the one that was signed.
        FetchError: a file cannot be fetched.
    """
    files = _Files(read)
    where = f"channel {channel} at {place}"
    # What was seen is copied before the pointer is read: a pointer that this machine or another reader on it
    # moves meanwhile is late, and no replay.
    with TemporaryDirectory(prefix="sparkwright-") as scratch:
        folder = Path(scratch, "seen")
        with trust.using(place) as seen_before:
            pinned = trust.root(place, channel)
            if seen_before.is_dir():
                shutil.copytree(seen_before, folder, symlinks=True)
        folder.mkdir(exist_ok=True)
        base, reached = metadata_path(channel, ""), pinned
        try:
            updater = Updater(str(folder), base, str(folder), base, files, _CONFIG, bootstrap=pinned.data)
            try:
                updater.refresh()
            finally:
                reached = ChannelRoot((folder / "root.json").read_bytes())
            target = updater.get_targetinfo(STATE)
        except (RepositoryError, DownloadHTTPError, DownloadLengthMismatchError) as error:
            _require_pointer(files, channel, place)
            raise _refusal(error, files, channel, reached, where) from error
        names = [f"{role}.json" for role in ONLINE]
        names += [f"root_history/{path.name}" for path in folder.glob("root_history/*.json")]
        seen = {name: (folder / name).read_bytes() for name in names}
    pointer, signed = _require_pointer(files, channel, place)
    if seen["timestamp.json"] != pointer.data:
        raise ReplayedChannelError(
            f"channel {channel} has two generations of one version",
            because=f"version {signed.signed.version} was seen before, and signed another one then: "
            "its key is used in two places, or was stolen",
            next_step="ask its publisher which one is right before you install from it",
        )
    if reached.channel != channel:
        raise SignatureError(
            f"the newest root of {where} does not follow the one before it",
            because=f"it is of channel {reached.channel}",
            next_step=_ELSEWHERE,
        )
    if target is None:
        raise SignatureError(f"{where} cannot be read", because=f"it does not sign {STATE}")
    state = _state(files, target, channel)
    trust.remember(place, seen)
    by = reached.root.get_verification_result("timestamp", signed.signed_bytes, signed.signatures).signed
    return ReadChannel(state, signed.signed.version, pointer.tag, reached, ", ".join(by))


def read_unverified(read: Read, channel: str, place: str) -> ReadChannel:
    """Return the present generation of *channel*; no signature is verified, but every digest."""
    files = _Files(read)
    pointer, signed = _require_pointer(files, channel, place)

    def listed(role: str, meta: MetaFile) -> bytes:
        path = metadata_path(channel, f"{meta.version}.{role}.json")
        return require_signed(files.read(path), (meta.hashes or {})["sha256"], path, "it", _INCOMPLETE)

    try:
        snapshot = Metadata[Snapshot].from_bytes(listed("snapshot", signed.signed.snapshot_meta)).signed
        targets = Metadata[Targets].from_bytes(listed("targets", snapshot.meta["targets.json"])).signed
        target = targets.targets[STATE]
    except (AttributeError, DeserializationError, KeyError) as error:
        raise SignatureError(f"the metadata of channel {channel} are damaged", because=repr(error)) from error
    return ReadChannel(_state(files, target, channel), signed.signed.version, pointer.tag)


def _require_pointer(files: _Files, channel: str, place: str) -> tuple[Stored, Metadata[Timestamp]]:
    """Return the pointer as it is stored, and its content; its signature is not looked at."""
    stored = files.read(metadata_path(channel))
    if stored is None:
        raise UnknownNameError(
            f"there is no channel {channel} at {place}",
            because=f"{metadata_path(channel)} does not exist there, or may not be read",
            next_step=f"sparkwright channel promote WHEEL --to {channel} makes it",
        )
    what = f"the pointer of channel {channel}"
    try:
        pointer = Metadata[Timestamp].from_bytes(stored.data)
    except (DeserializationError, RecursionError) as error:
        raise SignatureError(
            f"{what} is damaged",
            because=f"it is no signed metadata, {len(stored.data)} bytes: it was cut off, or never was one",
            next_step="fetch it again; if it stays so, take another mirror",
        ) from error
    if not isinstance(pointer.signed, Timestamp):
        raise SignatureError(f"{what} is another kind of statement", because=f"it is a {pointer.signed.type}")
    ours = pointer.signed.unrecognized_fields.get(OURS)
    named = ours.get("channel", channel) if isinstance(ours, dict) else channel
    if named != channel:
        raise SignatureError(
            f"{what} is not of channel {channel}",
            because=f"it was signed as channel {named}: somebody moved it",
            next_step="take another mirror",
        )
    return stored, pointer


def _state(files: _Files, target: TargetFile, channel: str) -> ChannelState:
    """Return the state that the signed *target* describes."""
    sha256 = target.hashes.get("sha256", "")
    path = state_path(channel, sha256)
    data = require_signed(files.read(path), sha256, path, "it", _INCOMPLETE)
    return decode_state(data, channel, f"the state of channel {channel}")


def _refusal(
    error: Exception, files: _Files, channel: str, root: ChannelRoot, where: str
) -> SparkwrightError:
    """Return what a refusal of the client means for the user."""
    if isinstance(error, UnsignedMetadataError):
        return _unsigned(error, files, channel, root)
    _, kind, what, more, step = next(found for found in _MEANINGS if isinstance(error, found[0]))
    if "root version" in str(error):
        kind, what, more = SignatureError, "a root of {} does not follow the one before it", ""
    return kind(what.format(where), because=f"{error}{more}", next_step=step)


def _unsigned(error: Exception, files: _Files, channel: str, root: ChannelRoot) -> SparkwrightError:
    """Return why signed metadata were refused: no signature, another key's, or a wrong one."""
    role = str(error).partition(" ")[0]
    end = "/timestamp.json" if role == "timestamp" else f".{role}.json"
    paths = [path for path in files.files if path.endswith(end)]
    stored = files.read(paths[-1]) if paths else None
    signatures = list(Metadata.from_bytes(stored.data).signatures) if stored else []
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
