"""Changes of a channel: promote, roll back, renew, set a status.

Each of them adds a generation, in an order in which no state between is wrong for a reader:

1. the wheel, its METADATA, evidence and promotion statement, which nothing names yet;
2. the new generation's pages and state, in a folder of their own, and its signed metadata;
3. the pointer, by a conditional write: from here on the generation is the channel's;
4. the pages at the stable address, one by one; each is a page of a generation that the pointer named before.

A publisher that dies before 3 leaves unnamed files; one that dies in 4 leaves pages of the generation before,
which the next command on the channel replaces.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import (
    ExpiredChannelError,
    LostRaceError,
    PublishError,
    TamperedError,
    UnknownNameError,
    UntrustedKeyError,
)
from sparkwright.base.events import emit, task
from sparkwright.publish.channel import (
    CLOCK_SKEW,
    ChannelAction,
    ChannelState,
    ListedWheel,
    PointedChannel,
    StatusMarker,
    metadata_path,
    moment,
    require_channel_name,
    stamp,
    unit_of,
    with_pages,
)
from sparkwright.publish.evidence import FoundEvidence, stated_series
from sparkwright.publish.history import content_of, generations_of
from sparkwright.publish.index import describe
from sparkwright.publish.keys import ChannelKeys
from sparkwright.publish.lease import Lease
from sparkwright.publish.planned import PlannedTarget
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.promotion import promotion_statement
from sparkwright.publish.retention import Retained
from sparkwright.publish.roots import PinnedRoot
from sparkwright.publish.seen import SeenChannels
from sparkwright.publish.stable_pages import write_stable_pages
from sparkwright.publish.target import Target

_METADATA = ".metadata"
_TRIES = 20


@dataclass
class Deposits:
    """The files that one change of a channel puts at a target, where they never change."""

    target: Target
    _made: dict[str, tuple[bytes | Path, str]] = field(default_factory=dict)

    def put(self, path: str, content: bytes | Path, sha256: str = "") -> None:
        """Put *content*, bytes or a file of that digest, at *path*; see `Target.put_file`."""
        digest = sha256 or (sha256_bytes(content) if isinstance(content, bytes) else "")
        self._made[path] = content, digest
        self._put(path)

    def settle(self) -> None:
        """Put again what was removed since; called while no other writer can remove anything."""
        units = {unit: set(self.target.sizes(unit)) for unit in set(map(unit_of, self._made)) - {""}}
        for path in self._made:
            if path not in units.get(unit_of(path), {path}):
                self._put(path)

    def _put(self, path: str) -> None:
        content, digest = self._made[path]
        if isinstance(content, Path):
            self.target.put_file(path, content, digest)
            return
        with tempfile.TemporaryDirectory(prefix="sparkwright-") as folder:
            file = Path(folder) / "file"
            file.write_bytes(content)
            self.target.put_file(path, file, digest)


@dataclass(frozen=True)
class ChannelPublisher:
    """The means to change the channels of one target.

    Attributes:
        keys: returns what signs a channel.
        roots: the roots by which present channels have to be signed.
        memory: what was seen before: a pointer that went back is not built upon.
        adopt: build on a pointer that no trusted key signed.
        patience_s: longest wait for another writer, in seconds.
    """

    target: Target
    keys: Callable[[str], ChannelKeys]
    roots: Callable[[], Sequence[PinnedRoot]]
    memory: SeenChannels
    adopt: bool = False
    patience_s: float = 30.0

    def read(self, channel: str) -> PointedChannel | None:
        """Return the present generation of *channel*, `None` if there is no such channel yet.

        Raises:
            SignatureError: its metadata are damaged, unsigned, or have a wrong signature.
            UntrustedKeyError: a key signed them that this publisher does not trust.
            ExpiredChannelError: it is expired, and this machine has not written it.
            ReplayedChannelError: it is older than one that was seen before.
        """
        from sparkwright.publish.repository import read_channel, read_unverified

        seen, path = self.memory.recall(), metadata_path(require_channel_name(channel))
        stored = self.target.read(path)
        if stored is None:
            return None

        def read(wanted: str) -> bytes | None:
            return stored.data if wanted == path else self._bytes(wanted)

        where = self.target.url(path)
        # What this machine wrote last stays its own, even when the key of then was replaced.
        own = any(
            one.own and one.metadata().get("timestamp") == stored.data for one in seen.channels.values()
        )
        if own or self.adopt:
            found = read_unverified(read, channel, where)
        else:
            try:
                found = read_channel(read, channel, self.roots(), seen, where)
            except (ExpiredChannelError, UntrustedKeyError) as error:  # says what a reader does about it
                raise type(error)(
                    error.what,
                    because=error.because,
                    next_step=f"look at it: sparkwright channel log {channel}; if it is as you published it, "
                    "run the same command with --adopt",
                ) from error
        return PointedChannel(found.state, stored.tag, found.version)

    def require(self, channel: str) -> PointedChannel:
        """Return the present generation of *channel*; see `read`.

        Raises:
            UnknownNameError: there is no such channel.
        """
        found = self.read(channel)
        if found is None:
            raise UnknownNameError(
                f"there is no channel {channel} at {self.target.url(metadata_path(channel))}",
                next_step=f"sparkwright channel promote WHEEL --to {channel} makes it",
            )
        return found

    def history(self, state: ChannelState) -> Iterator[ChannelState]:
        """Return *state* and the generations before it, each verified by the digest that its successor names.

        Raises:
            TamperedError: a generation is missing, or was changed.
        """
        return generations_of(self._bytes, state)

    # Changes -------------------------------------------------------------------------------------

    def promote(
        self,
        channel: str,
        wheel: Path,
        evidence: Sequence[FoundEvidence],
        policy: ChannelPolicy,
        now: datetime,
        *,
        provenance: bytes = b"",
        runtime: bytes = b"",
    ) -> ChannelState:
        """List *wheel* in *channel*; nothing is written if it is listed already.

        Args:
            channel: the channel; made when missing.
            wheel: the wheel.
            evidence: accepted by *policy*.
            policy: the channel's.
            now: the present time.
            provenance: an in-toto statement about the wheel, published beside it.
            runtime: its locked runtime, published beside it; a wheel listed without one is listed again.

        Raises:
            LostRaceError: another publisher changed the channel meanwhile.
            PublishError: the wheel cannot be published, or one of its name is listed with other bytes.
        """
        current = self.read(channel)
        file, metadata = describe(wheel)
        if any(one.evidence.wheel != file.sha256 for one in evidence):
            raise PublishError(
                f"{wheel.name} cannot go to {channel}",
                because="the evidence is about other bytes: the file was changed meanwhile",
                next_step="find out which bytes are right, then run the same command again",
            )
        listed = current.state.find(file.sha256) if current else None
        if current and listed and listed.yanked is None and (listed.runtime or not runtime):
            self.write_stable_pages(channel)
            return current.state
        files = current.state.files if current else ()
        if any(one.filename == file.filename and one.sha256 != file.sha256 for one in files):
            raise PublishError(
                f"{wheel.name} cannot go to {channel}",
                because="the channel lists other bytes under that name, and wheels never change",
                next_step="give the patchset its next revision and build it again: sparkwright patchset bump "
                f"--series {stated_series(wheel)}",
            )
        draft = self._draft(
            channel, current, ChannelAction(kind="promote", detail=file.filename), policy, now
        )
        locked = sha256_bytes(runtime) if runtime else ""
        statement = promotion_statement(file.filename, file.sha256, draft, evidence, locked)
        entry = ListedWheel(
            filename=file.filename, project=file.project, version=file.version, sha256=file.sha256,
            size=file.size, requires_python=file.requires_python, metadata_sha256=file.metadata_sha256,
            uploaded=listed.uploaded if listed else stamp(now), promotion=sha256_bytes(statement),
            provenance=sha256_bytes(provenance) if provenance else "", runtime=locked,
        )  # fmt: skip
        entry = msgspec.structs.replace(entry, url=self.target.elsewhere(entry.path))
        deposits = Deposits(self.target)
        with task(f"publish {file.filename}", total=file.size, unit="bytes"):
            deposits.put(entry.path, wheel, file.sha256)
        deposits.put(entry.path + _METADATA, metadata)
        for one in evidence:
            deposits.put(f"{entry.folder}/evidence/{one.sha256}.json", one.data)
        if provenance:
            deposits.put(entry.provenance_path, provenance)
        if runtime:
            deposits.put(entry.runtime_path, runtime)
        deposits.put(entry.promotion_path, statement)
        kept = tuple(one for one in files if one.sha256 != file.sha256)
        return self._commit(current, msgspec.structs.replace(draft, files=(*kept, entry)), deposits)

    def rollback(
        self, channel: str, policy: ChannelPolicy, now: datetime, *, to: int | None, reason: str
    ) -> ChannelState:
        """Take the content of an earlier generation as a new one, and yank what it lacks.

        Args:
            channel: the channel.
            policy: the channel's.
            now: the present time.
            to: the generation; by default the one before that whose content is present.
            reason: of the yank, shown by clients.

        Raises:
            UnknownNameError: there is no such generation.
            LostRaceError: another publisher changed the channel meanwhile.
        """
        current = self.require(channel)
        generations = {state.generation: state for state in self.history(current.state)}
        wanted = content_of(current.state, generations) - 1 if to is None else to
        if wanted not in generations or wanted == current.state.generation:
            raise UnknownNameError(
                f"channel {channel} cannot go back to generation {wanted}",
                because=f"it has generations {min(generations)} to {current.state.generation}, "
                "the last one is present",
                next_step=f"sparkwright channel log {channel}",
            )
        earlier = generations[wanted].files
        kept = {file.sha256 for file in earlier}
        taken_back = tuple(
            file if file.yanked is not None else msgspec.structs.replace(file, yanked=reason)
            for file in current.state.files
            if file.sha256 not in kept
        )
        action = ChannelAction(kind="rollback", detail=reason, to=wanted)
        draft = self._draft(channel, current, action, policy, now)
        return self._commit(current, msgspec.structs.replace(draft, files=(*earlier, *taken_back)))

    def renew(self, channel: str, policy: ChannelPolicy, now: datetime) -> ChannelState:
        """Write the same content with a new expiry, signed by the present key.

        Raises:
            LostRaceError: another publisher changed the channel meanwhile.
        """
        current = self.require(channel)
        return self._commit(current, self._draft(channel, current, ChannelAction(kind="renew"), policy, now))

    def drop(
        self, current: PointedChannel, kept: Retained, policy: ChannelPolicy, now: datetime
    ) -> ChannelState:
        """Take the wheels and generations that are not *kept* out of a channel; no file is removed.

        Raises:
            LostRaceError: another publisher changed the channel meanwhile.
        """
        detail = f"{len(kept.dropped)} wheels, and the generations before {kept.oldest}"
        action = ChannelAction(kind="prune", detail=detail)
        draft = self._draft(current.state.channel, current, action, policy, now)
        return self._commit(current, msgspec.structs.replace(draft, files=kept.files, oldest=kept.oldest))

    def set_status(
        self, channel: str, status: StatusMarker, reason: str, policy: ChannelPolicy, now: datetime
    ) -> ChannelState:
        """State the status of the channel's projects after PEP 792.

        Raises:
            LostRaceError: another publisher changed the channel meanwhile.
        """
        current = self.require(channel)
        action = ChannelAction(kind="status", detail=status)
        draft = self._draft(channel, current, action, policy, now)
        return self._commit(current, msgspec.structs.replace(draft, status=status, reason=reason))

    # Writing -------------------------------------------------------------------------------------

    def _draft(
        self,
        channel: str,
        current: PointedChannel | None,
        action: ChannelAction,
        policy: ChannelPolicy,
        now: datetime,
    ) -> ChannelState:
        """Return the next generation with the content of the present one, without pages.

        Raises:
            PublishError: the present one is dated in the future.
        """
        state = current.state if current else None
        written = stamp(now)
        ahead = state is not None and moment(state.written, channel) > now + CLOCK_SKEW
        if state and ahead and not self.adopt:
            raise PublishError(
                f"channel {channel} cannot be changed by this clock",
                because=f"generation {state.generation} is dated {state.written}, and it is {written}: the "
                "clock is wrong, or was wrong then, and readers refuse what is from the future",
                next_step="set this machine's clock; if it is right, run the same command with --adopt: that "
                "dates the next generation by it",
            )
        return ChannelState(
            channel=channel,
            origin=state.origin if state else secrets.token_hex(16),
            generation=state.generation + 1 if state else 1,
            previous=state.digest if state else "",
            # Dates go back from the future alone, which no reader believed.
            written=max(written, state.written) if state and not ahead else written,
            expires=stamp(now + timedelta(days=policy.expires_days)),
            action=action,
            files=state.files if state else (),
            status=state.status if state else "active",
            reason=state.reason if state else "",
            oldest=state.oldest if state else 1,
        )

    def _commit(
        self, current: PointedChannel | None, draft: ChannelState, deposits: Deposits | None = None
    ) -> ChannelState:
        """Write *draft* as the channel's next generation; see the module for the order.

        Args:
            current: the channel as it was read.
            draft: its next generation, without pages.
            deposits: the files that were put for it.

        Raises:
            LostRaceError: the pointer is not *current* any more, or a file is being removed.
        """
        deposits, keys = deposits or Deposits(self.target), self.keys(draft.channel)
        state, pages = with_pages(draft)
        for name, data in pages.items():
            deposits.put(f"{state.folder}/{name}", data)
        deposits.put(state.path, state.payload)
        with Lease(self.target, self.patience_s) as lease:
            deposits.settle()
            version, metadata = self._put_metadata(state, current.version if current else 0, keys, deposits)
            lease.require()
            if self.adopt:
                self._remove_other_roots(state.channel, keys)
            for path in keys.files:  # right before: a reader of a new root takes no pointer by a former key
                deposits.put(metadata_path(state.channel, path.name), path.read_bytes())
            self.target.replace(
                metadata_path(state.channel), metadata["timestamp"], expected=current.tag if current else None
            )
        self.memory.remember(state.origin, version, metadata, keys.root, own=True)
        kind = "channel.planned" if isinstance(self.target, PlannedTarget) else "channel.changed"
        emit(kind, channel=state.channel, generation=state.generation, action=state.action.kind,
             detail=state.action.detail, signer=keys.signer_name)  # fmt: skip
        self.write_stable_pages(state.channel)
        return state

    def _remove_other_roots(self, channel: str, keys: ChannelKeys) -> None:
        """Remove the roots of another publisher, which nobody who trusts this one's may meet."""
        own = {metadata_path(channel, path.name): path.read_bytes() for path in keys.files}
        for path in self.target.sizes(metadata_path(channel, "").rstrip("/")):
            if path.endswith(".root.json") and self._bytes(path) != own.get(path):
                self.target.remove(path)

    def _put_metadata(
        self, state: ChannelState, version: int, keys: ChannelKeys, deposits: Deposits
    ) -> tuple[int, dict[str, bytes]]:
        """Put the signed metadata of *state* but the pointer; return them, and their version.

        That is the first one after *version* which no publisher that was killed has left behind.

        Raises:
            LostRaceError: there are too many of those.
        """
        from sparkwright.publish.repository import signed_metadata

        expires = moment(state.expires, state.channel).astimezone(UTC)
        for number in range(version + 1, version + _TRIES):
            metadata = signed_metadata(state, expires, number, [keys.signer])
            try:
                for role in ("targets", "snapshot"):
                    deposits.put(metadata_path(state.channel, f"{number}.{role}.json"), metadata[role])
            except TamperedError:
                continue
            return number, metadata
        raise LostRaceError(
            f"channel {state.channel} was not changed",
            because=f"other metadata have the numbers from {version + 1} on",
            next_step="run the same command again",
        )

    def write_stable_pages(self, channel: str) -> None:
        """Write the present pages to the stable address; see the function of that name."""
        write_stable_pages(self.target, channel, lambda: self.require(channel).state)

    def _bytes(self, path: str) -> bytes | None:
        stored = self.target.read(path)
        return stored.data if stored else None
