"""Changes of a channel: promote, roll back, renew.

Each of them adds a generation, in an order in which no state between is wrong for a reader:

1. the wheel, and its evidence and runtime, which nothing names yet;
2. the new generation's state, and its signed metadata;
3. the pointer, by a conditional write: from here on the generation is the channel's.

A publisher that dies before 3 leaves unnamed files, which `sparkwright channel prune` removes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import ExpiredChannelError, PublishError, UnknownNameError, UntrustedKeyError
from sparkwright.base.events import emit, task
from sparkwright.publish.channel import (
    CLOCK_SKEW,
    ChannelAction,
    ChannelState,
    ListedWheel,
    history,
    metadata_path,
    require_channel_name,
    stamp,
    state_path,
)
from sparkwright.publish.evidence import Candidate, ChannelPolicy, stated_series
from sparkwright.publish.keys import ChannelKeys, load_publisher
from sparkwright.publish.repository import ReadChannel, read_channel, read_unverified, signed_metadata
from sparkwright.publish.target import Lease, Stored, Target
from sparkwright.publish.trust import Trust, place_of


@dataclass(frozen=True)
class ChannelPublisher:
    """The means to change the channels of one target.

    Attributes:
        trust: has the keys of this machine's channels, the roots by which present ones have to be signed, and
            what was seen before: a pointer that went back is not built upon.
        adopt: build on a pointer that no trusted key signed.
    """

    target: Target
    trust: Trust
    adopt: bool = False
    patience_s: float = 300.0

    def read(self, channel: str) -> ReadChannel | None:
        """Return the present generation of *channel*, `None` if there is no such channel yet."""
        pointer = self.target.read(metadata_path(require_channel_name(channel)))
        place = place_of(self.target, channel)
        if pointer is None:
            return None
        # What this machine wrote last stays its own, even when the key of then was replaced.
        if self.adopt or self.trust.is_own(pointer.data):

            def same(path: str) -> Stored | None:
                return pointer if path == metadata_path(channel) else self.target.read(path)

            return read_unverified(same, channel, place)
        try:
            return read_channel(self.target.read, channel, self.trust, place)
        except (ExpiredChannelError, UntrustedKeyError) as error:  # says what a reader does about it
            raise type(error)(
                error.what,
                because=error.because,
                next_step=f"look at it: sparkwright channel show {channel} --history; if it is as you "
                "published it, run the same command with --adopt",
            ) from error

    def require(self, channel: str) -> ReadChannel:
        """Return the present generation of *channel*; see `read`."""
        found = self.read(channel)
        if found is None:
            raise UnknownNameError(
                f"there is no channel {channel} at {place_of(self.target, channel)}",
                next_step=f"sparkwright channel promote WHEEL --to {channel} makes it",
            )
        return found

    def history(self, state: ChannelState) -> list[ChannelState]:
        """Return *state* and the kept generations before it; see `sparkwright.publish.channel.history`."""
        return list(history(self.target.read, state))

    # Changes -------------------------------------------------------------------------------------

    def promote(
        self, channel: str, candidate: Candidate, policy: ChannelPolicy, now: datetime
    ) -> ChannelState:
        """List a wheel in *channel*; nothing is written if it is listed already.

        The channel is made when missing; a wheel that is listed without a runtime is listed again.
        """
        current, file, wheel, runtime = (
            self.read(channel),
            candidate.file,
            candidate.wheel,
            candidate.runtime,
        )
        listed = current.state.find(file.sha256) if current else None
        if current and listed and listed.yanked is None and (listed.runtime or not runtime):
            return current.state
        files = current.state.files if current else ()
        if any(one.filename == file.filename and one.sha256 != file.sha256 for one in files):
            raise PublishError(
                f"{wheel.name} cannot go to {channel}",
                because="the channel lists other bytes under that name, and wheels never change",
                next_step="give the patchset its next revision and build it again: sparkwright patchset bump "
                f"--series {stated_series(wheel)}",
            )
        entry = ListedWheel(
            filename=file.filename, project=file.project, version=file.version, sha256=file.sha256,
            size=file.size, uploaded=listed.uploaded if listed else stamp(now),
            runtime=sha256_bytes(runtime) if runtime else "",
            evidence={one.kind: one.sha256 for one in candidate.evidence},
        )  # fmt: skip
        small = (runtime, *(one.data for one in candidate.evidence))
        data = {sha256_bytes(one): one for one in small}
        deposits: dict[str, tuple[bytes | Path, str]] = {entry.path: (wheel, file.sha256)}
        deposits |= {path: (data[sha256], sha256) for path, (sha256, _) in entry.beside.items()}
        with task(f"publish {file.filename}", total=file.size, unit="bytes"):
            for path, content in deposits.items():
                self._put(path, *content)
        kept = tuple(one for one in files if one.sha256 != file.sha256)
        action = ChannelAction(kind="promote", detail=file.filename)
        return self._commit(
            channel, current, action, (*kept, entry), policy=policy, now=now, deposits=deposits
        )

    def rollback(
        self, channel: str, policy: ChannelPolicy, now: datetime, *, to: int | None, reason: str
    ) -> ChannelState:
        """Take the content of an earlier generation as a new one, and yank what it lacks.

        By default it goes back *to* the one before that whose content is present; readers see the *reason*.
        """
        current = self.require(channel)
        generations = {state.generation: state for state in self.history(current.state)}
        present = current.state
        # Rollbacks, renewals and prunes have no content of their own.
        while to is None and present.action.kind != "promote":
            earlier = present.action.to or present.generation - 1
            if earlier not in generations:
                break
            present = generations[earlier]
        wanted = present.generation - 1 if to is None else to
        if wanted not in generations or wanted == current.state.generation:
            raise UnknownNameError(
                f"channel {channel} cannot go back to generation {wanted}",
                because=f"it has generations {min(generations)} to {current.state.generation}, "
                "the last one is present",
                next_step=f"sparkwright channel show {channel} --history",
            )
        earlier_files = generations[wanted].files
        kept = {file.sha256 for file in earlier_files}
        taken_back = tuple(
            file if file.yanked is not None else msgspec.structs.replace(file, yanked=reason)
            for file in current.state.files
            if file.sha256 not in kept
        )
        action = ChannelAction(kind="rollback", detail=reason, to=wanted)
        return self._commit(channel, current, action, (*earlier_files, *taken_back), policy=policy, now=now)

    def renew(self, channel: str, policy: ChannelPolicy, now: datetime) -> ChannelState:
        """Write the same content with a new expiry, signed by the present key."""
        current = self.require(channel)
        return self._commit(
            channel, current, ChannelAction(kind="renew"), current.state.files, policy=policy, now=now
        )

    def drop(
        self, channel: str, files: Sequence[ListedWheel], policy: ChannelPolicy, now: datetime
    ) -> ChannelState:
        """Take *files* out of a channel's list; no file is removed."""
        current = self.require(channel)
        gone = {file.sha256 for file in files}
        kept = tuple(file for file in current.state.files if file.sha256 not in gone)
        action = ChannelAction(kind="prune", detail=f"{len(gone)} wheels")
        return self._commit(channel, current, action, kept, policy=policy, now=now)

    # Writing -------------------------------------------------------------------------------------

    def _commit(
        self,
        channel: str,
        current: ReadChannel | None,
        action: ChannelAction,
        files: tuple[ListedWheel, ...],
        *,
        policy: ChannelPolicy,
        now: datetime,
        deposits: dict[str, tuple[bytes | Path, str]] | None = None,
    ) -> ChannelState:
        """Write the channel's next generation with these *files*; see the module for the order.

        *deposits* are contents and digests of the files that were put for it, by path.
        """
        before, written = current.state if current else None, stamp(now)
        ahead = before is not None and before.written > stamp(now + CLOCK_SKEW)
        if before and ahead and not self.adopt:
            raise PublishError(
                f"channel {channel} cannot be changed by this clock",
                because=f"generation {before.generation} is dated {before.written}, and it is {written}: the "
                "clock is wrong, or was wrong then, and readers refuse what is from the future",
                next_step="set this machine's clock; if it is right, run the same command with --adopt: that "
                "dates the next generation by it",
            )
        expires = now.replace(microsecond=0) + timedelta(days=policy.expires_days)
        state = ChannelState(
            channel=channel,
            generation=before.generation + 1 if before else 1,
            previous=before.digest if before else "",
            # Dates go back from the future alone, which no reader believed.
            written=max(written, before.written) if before and not ahead else written,
            expires=stamp(expires),
            action=action,
            files=files,
        )
        keys = load_publisher(self.trust.publisher / channel)
        self._put(state_path(channel, state.digest), state.payload, state.digest)
        deposits = {**(deposits or {}), state_path(channel, state.digest): (state.payload, state.digest)}
        with Lease(self.target, self.patience_s) as lease:
            # What `channel prune`, which holds the lease too, removed meanwhile is put again.
            for path, content in deposits.items():
                if path not in self.target.files(path.rpartition("/")[0]):
                    self._put(path, *content)
            version = self._next_version(channel)
            metadata = signed_metadata(state, expires, version, keys.signer)
            for role in ("targets", "snapshot"):
                self._put(metadata_path(channel, f"{version}.{role}.json"), metadata[role])
            lease.require()
            if self.adopt:
                self._remove_other_roots(channel, keys)
            for root in keys.files:  # right before: a reader of a new root takes no pointer by a former key
                self._put(metadata_path(channel, root.name), root.read_bytes())
            self.target.replace(
                metadata_path(channel), metadata["timestamp"], expected=current.tag if current else None
            )
        names = {f"{role}.json": data for role, data in metadata.items()}
        self.trust.remember(place_of(self.target, channel), names, own=metadata["timestamp"])
        emit("channel.changed", channel=channel, generation=state.generation, action=action.kind,
             detail=action.detail, signer=keys.id)  # fmt: skip
        return state

    def _next_version(self, channel: str) -> int:
        """Return the version after all that are there, also those of publishers that were killed."""
        names = (path.split("/")[2] for path in self.target.files(metadata_path(channel, "").rstrip("/")))
        numbers = [name.partition(".")[0] for name in names if name.endswith(".targets.json")]
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)

    def _remove_other_roots(self, channel: str, keys: ChannelKeys) -> None:
        """Remove the roots of another publisher, which nobody who trusts this one's may meet."""
        own = {metadata_path(channel, path.name): path.read_bytes() for path in keys.files}
        for path in self.target.files(metadata_path(channel, "").rstrip("/")):
            stored = self.target.read(path) if path.endswith(".root.json") else None
            if stored and stored.data != own.get(path):
                self.target.remove(path)

    def _put(self, path: str, content: bytes | Path, sha256: str = "") -> None:
        """Put *content*, bytes or a file of that digest, at *path*; see `Target.put_file`."""
        if isinstance(content, Path):
            self.target.put_file(path, content, sha256)
            return
        with tempfile.TemporaryDirectory(prefix="sparkwright-") as folder:
            file = Path(folder) / "file"
            file.write_bytes(content)
            self.target.put_file(path, file, sha256 or sha256_bytes(content))
