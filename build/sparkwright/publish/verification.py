"""Verifying a channel as a reader: signature, key, time, generation, and every byte that it names."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import (
    ExpiredChannelError,
    ReplayedChannelError,
    SignatureError,
    TamperedError,
    UntrustedKeyError,
)
from sparkwright.base.events import emit, task
from sparkwright.lock.runtime import parse_runtime
from sparkwright.publish.channel import (
    CHANNELS,
    CLOCK_SKEW,
    STABLE,
    STATE,
    ChannelState,
    ListedWheel,
    moment,
    newest_first,
    require_channel_name,
)
from sparkwright.publish.history import generations_of
from sparkwright.publish.mirror import FolderMirror, HttpMirror, Mirror
from sparkwright.publish.promotion import (
    InTotoStatement,
    PromotionPredicate,
    PromotionStatement,
    decode_statement,
)
from sparkwright.publish.roots import PinnedRoot
from sparkwright.publish.seen import SeenChannels
from sparkwright.publish.series import FOLDER as SERIES
from sparkwright.publish.series import series_of
from sparkwright.publish.target import require_signed

if TYPE_CHECKING:
    from sparkwright.publish.repository import ReadChannel

WheelChoice = Literal["all", "newest", "none"]
_TRIES = 5
_CONNECTIONS = 8
_ELSEWHERE = "do not install from there; take another mirror"


@dataclass(frozen=True)
class VerifyChannelOptions:
    """The choices of a verification.

    Attributes:
        wheels: the wheels whose bytes are read; yanked ones are only read with ``all``.
        named_root: the roots were named for this one call: their publisher counts at every address.
        patience_s: for how long pages of the generation before are read again, in seconds: a publisher
            replaces them right after the pointer.
    """

    wheels: WheelChoice = "all"
    named_root: bool = False
    patience_s: float = 10.0


@dataclass(frozen=True)
class VerifiedChannel:
    """A channel that was verified.

    Attributes:
        state: its present generation.
        signer: the id of the key, or the identity, that signed it.
        wheels: the wheels whose bytes were read.
        root: the root by which it was verified.
    """

    state: ChannelState
    signer: str
    wheels: tuple[ListedWheel, ...]
    root: PinnedRoot


def verify_channel(
    mirror: Mirror,
    channel: str,
    roots: Sequence[PinnedRoot],
    *,
    memory: SeenChannels,
    now: datetime,
    options: VerifyChannelOptions | None = None,
) -> VerifiedChannel:
    """Verify *channel* at *mirror*, and remember its generation.

    Args:
        mirror: the copy of the target.
        channel: the channel's name.
        roots: the pinned roots.
        memory: the generations and roots that were seen before.
        now: the present time.
        options: the user's choices.

    Raises:
        UnknownNameError: there is no such channel.
        SignatureError: a statement is truncated, damaged, unsigned, or has a wrong signature.
        UntrustedKeyError: a signature is by a key that is unknown or trusted no more.
        ExpiredChannelError: the channel is past its time.
        ReplayedChannelError: it is older than seen before, or its pages are.
        TamperedError: a page, a wheel, metadata or a statement is not what was signed.
        FetchError: a file cannot be fetched.
    """
    options = options or VerifyChannelOptions()
    reading = _Reading(mirror, require_channel_name(channel), memory, now, options)
    read, root = reading.settled(roots)
    state = read.state
    files = newest_first([file for file in state.files if file.yanked is None])
    chosen: Sequence[ListedWheel] = {"all": state.files, "newest": files[:1], "none": ()}[options.wheels]
    for file in state.files:
        reading.beside(file)
    with task("verify wheels", total=sum(file.size for file in chosen), unit="bytes") as progress:
        for file in chosen:
            reading.wheel(file, state)
            reading.no_page_beside(file, state)
            progress.advance(file.size)
    memory.remember(
        state.origin,
        read.version,
        read.metadata,
        root,
        address=reading.place,
        keep_root=not options.named_root,
    )
    emit(
        "channel.verified",
        channel=channel,
        generation=state.generation,
        signer=read.signer,
        wheels=len(chosen),
    )
    return VerifiedChannel(state, read.signer, tuple(chosen), root)


@dataclass(frozen=True)
class _Reading:
    """One verification; see `verify_channel` for the attributes."""

    mirror: Mirror
    channel: str
    memory: SeenChannels
    now: datetime
    options: VerifyChannelOptions

    @property
    def place(self) -> str:
        """The address of the channel."""
        return f"{self.mirror.address}/{CHANNELS}/{self.channel}"

    def settled(self, roots: Sequence[PinnedRoot]) -> tuple[ReadChannel, PinnedRoot]:
        """Return `pointer`, once its pages were verified; read again if a publisher moves it meanwhile."""
        for _ in range(_TRIES):
            found = self.pointer(roots)
            try:
                self.pages(found[0].state)
                if isinstance(self.mirror, FolderMirror):
                    self.nothing_else(self.mirror.folder, found[0].state)
            except (TamperedError, ReplayedChannelError):
                if self.pointer(roots)[0].version == found[0].version:
                    raise
            else:
                return found
        raise ReplayedChannelError(
            f"channel {self.channel} could not be read",
            because="it was changed all the time",
            next_step="run the same command again",
        )

    def pointer(self, roots: Sequence[PinnedRoot]) -> tuple[ReadChannel, PinnedRoot]:
        """Return the present generation and the root by which it was verified."""
        from sparkwright.publish.repository import read_channel  # with tuf, which takes a while to import

        seen = self.memory.recall()
        found = read_channel(
            self.mirror.read, self.channel, roots, seen, self.mirror.address, named=self.options.named_root
        )
        state, root = found.state, found.root
        assert root is not None  # noqa: S101 - it was verified
        what = f"channel {self.channel}"
        if self.now > moment(state.expires, what):
            raise ExpiredChannelError(
                f"channel {self.channel} is expired",
                because=f"generation {state.generation} of {state.written} was to be trusted until "
                f"{state.expires}: the mirror is frozen, or its publisher stopped",
                next_step="take another mirror, or ask the publisher for 'sparkwright channel renew'",
            )
        if moment(state.written, what) > self.now + CLOCK_SKEW:
            raise SignatureError(
                f"{what} is from the future",
                because=f"it was written on {state.written}",
                next_step="check this machine's clock",
            )
        known = seen.places.get(self.place, root.publisher)
        if known != root.publisher and not self.options.named_root:
            raise UntrustedKeyError(
                f"{self.place} has another publisher than before",
                because=f"publisher {known[:16]} was verified there; this is of {root.publisher[:16]}, "
                "whose root is pinned too",
                next_step="ask the publisher of before if that is right; if it is: "
                "sparkwright channel verify ADDRESS --trust FILE, with the root of the new one",
            )
        return found, root

    def pages(self, state: ChannelState) -> None:
        """Verify the pages in the generation's folder and at the stable address."""
        for name, sha256 in state.pages.items():
            self._require(f"{state.folder}/{name}", sha256, f"page {name} of generation {state.generation}")
        waiting = time.monotonic() + self.options.patience_s
        while stale := self._stale_page(state):
            if time.monotonic() >= waiting:
                name, generation = stale
                raise ReplayedChannelError(
                    f"the pages of channel {self.channel} are behind it",
                    because=f"{STABLE}/{name} is of generation {generation}, the channel at generation "
                    f"{state.generation}: the mirror is stale, or its publisher was interrupted",
                    next_step="install from another mirror; its publisher runs the last command again",
                )
            time.sleep(min(0.5, self.options.patience_s))

    def nothing_else(self, folder: Path, state: ChannelState) -> None:
        """Refuse a page in a *folder* that no kept generation names: pip and uv would take it.

        Raises:
            TamperedError: there is one.
        """
        for index in (f"{CHANNELS}/{self.channel}/{STABLE}", state.folder):
            top = folder / index
            found = {path for path in top.rglob("*") if path.is_symlink() or not path.is_dir()}
            names = {path.relative_to(top).as_posix() for path in found} - {*state.pages, STATE}
            for name in sorted(names):  # of earlier generations, perhaps, which had more projects or series
                data = None if (top / name).is_symlink() else self.mirror.read(f"{index}/{name}")
                if data is None or self._generation_with(name, sha256_bytes(data), state) is None:
                    raise TamperedError(
                        f"page {index}/{name} is of no generation of channel {self.channel}",
                        because="the publisher signed none of that name, and pip and uv would take it",
                        next_step=_ELSEWHERE,
                    )

    def _stale_page(self, state: ChannelState) -> tuple[str, int] | None:
        """Return a stable page that is of an earlier generation, and its number; `None` if all are new.

        Raises:
            TamperedError: a page is of none.
        """
        for name, sha256 in state.pages.items():
            data = self.mirror.read(f"{CHANNELS}/{self.channel}/{STABLE}/{name}")
            found = None if data is None else sha256_bytes(data)
            if found == sha256:
                continue
            generation = self._generation_with(name, found, state)
            if generation is not None:
                return name, generation
            raise TamperedError(
                f"page {STABLE}/{name} of channel {self.channel} was changed",
                because="it is missing" if found is None else f"its SHA-256 is {found}, not {sha256}",
                next_step=_ELSEWHERE,
            )
        return None

    def _generation_with(self, name: str, sha256: str | None, state: ChannelState) -> int | None:
        """Return the generation before *state* that has the page *name* with that digest.

        Of a page that is missing, that is the one right before, if it has none either.
        """
        with contextlib.suppress(TamperedError):  # generations that are not there
            for earlier in itertools.islice(
                generations_of(self.mirror.read, state), 1, None if sha256 else 2
            ):
                if earlier.pages.get(name) == sha256:
                    return earlier.generation
        return None

    def beside(self, file: ListedWheel) -> None:
        """Verify METADATA, statements and locked runtime of a wheel, and the evidence of its promotion."""
        elsewhere = f"{file.url}.metadata" if file.url else ""
        what = f"the metadata of {file.filename}"
        self._require(f"{file.path}.metadata", file.metadata_sha256, what, elsewhere)
        what = f"the promotion statement of {file.filename}"
        data = self._require(file.promotion_path, file.promotion, what)
        statement = decode_statement(data, PromotionStatement, what)
        _require_subject(statement, file, what)
        if file.provenance:
            of_it = f"the provenance of {file.filename}"
            made = self._require(file.provenance_path, file.provenance, of_it)
            _require_subject(decode_statement(made, InTotoStatement, of_it), file, of_it)
        if statement.predicate.channel != self.channel:
            raise TamperedError(
                f"{what} is of another channel",
                because=f"the wheel was promoted to {statement.predicate.channel}, not to {self.channel}",
                next_step=_ELSEWHERE,
            )
        self._runtime(file, statement.predicate)
        for run in statement.predicate.evidence:
            sha256 = run.digest.get("sha256", "")
            self._require(f"{file.folder}/evidence/{sha256}.json", sha256, f"evidence about {file.filename}")

    def no_page_beside(self, file: ListedWheel, state: ChannelState) -> None:
        """Over HTTP, refuse a page of any package that a wheel is installed with and *state* does not list.

        Raises:
            TamperedError: there is one: pip and uv would take that package from it.
        """
        mirror = self.mirror
        if not (isinstance(mirror, HttpMirror) and file.runtime):
            return
        what = f"the runtime of {file.filename}"
        runtime = parse_runtime(self._require(file.runtime_path, file.runtime, what).decode(), what)
        indexes = [STABLE, f"{STABLE}/{SERIES}/{series_of(file.version)}"]
        folders = [
            f"{CHANNELS}/{self.channel}/{index}/{package.name}"
            for index in indexes
            for package in runtime.packages
            if f"{index}/{package.name}/index.html".partition("/")[2] not in state.pages
        ]
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            for folder, offered in zip(folders, pool.map(mirror.offers, folders), strict=True):
                if offered:
                    raise TamperedError(
                        f"page {folder}/ is of no generation of channel {self.channel}",
                        because=f"{mirror.address} offers it, and pip and uv would take it",
                        next_step=_ELSEWHERE,
                    )

    def _runtime(self, file: ListedWheel, predicate: PromotionPredicate) -> None:
        """Verify the locked runtime of a wheel, which channel and promotion name by the same digest."""
        stated = predicate.runtime.digest.get("sha256", "") if predicate.runtime else ""
        if stated != file.runtime:
            raise TamperedError(
                f"the runtime of {file.filename} is not the one that it was promoted with",
                because=f"the channel names {file.runtime or 'none'}, its promotion {stated or 'none'}",
                next_step=_ELSEWHERE,
            )
        if file.runtime:
            self._require(file.runtime_path, file.runtime, f"the runtime of {file.filename}")

    def wheel(self, file: ListedWheel, state: ChannelState) -> None:
        """Verify the bytes of a wheel."""
        found = self.mirror.digest(file.path, max(one.size for one in state.files), file.url)
        if found is None:
            where = file.url or file.path
            raise TamperedError(f"{file.filename} is missing", because=f"{where} does not exist")
        if found == (file.sha256, file.size):
            return
        other = state.find(found[0])
        if other is not None:
            raise TamperedError(
                f"{file.filename} was swapped",
                because=f"{other.filename} is in its place",
                next_step=_ELSEWHERE,
            )
        raise TamperedError(
            f"{file.filename} was changed",
            because=f"its SHA-256 is not the signed {file.sha256}; it has {found[1]} bytes of {file.size}",
            next_step=_ELSEWHERE,
        )

    def _require(self, path: str, sha256: str, what: str, elsewhere: str = "") -> bytes:
        """Return the file at *path*, or at the absolute address *elsewhere*; it has to have that digest."""
        where = elsewhere or f"{self.mirror.address}/{path}"
        return require_signed(self.mirror.read(path, elsewhere), sha256, what, where, _ELSEWHERE)


def _require_subject(statement: InTotoStatement, file: ListedWheel, what: str) -> None:
    """Refuse a statement about something else than *file*.

    Raises:
        TamperedError: it is.
    """
    if [subject.digest.get("sha256") for subject in statement.subject] != [file.sha256]:
        raise TamperedError(
            f"{what} is of another wheel",
            because=f"its subject is not SHA-256 {file.sha256}",
            next_step=_ELSEWHERE,
        )


def require_listed(state: ChannelState, filename: str, sha256: str) -> ListedWheel:
    """Return the entry of a wheel that the user has, in a verified channel.

    Raises:
        TamperedError: the channel lists other bytes under its name, does not list it, or took it back.
    """
    file = state.find(sha256)
    if file is None:
        named = next((one for one in state.files if one.filename == filename), None)
        raise TamperedError(
            f"{filename} is not the wheel of channel {state.channel}"
            if named
            else f"{filename} is not listed",
            because=f"its SHA-256 is {sha256}, the channel's {named.sha256}"
            if named
            else f"channel {state.channel} has no wheel of SHA-256 {sha256}",
            next_step="do not install it; fetch it from the channel",
        )
    if file.yanked is not None:
        raise TamperedError(
            f"{filename} was taken back",
            because=f"channel {state.channel} yanked it: {file.yanked}",
            next_step="install the newest wheel of the channel instead",
        )
    return file
