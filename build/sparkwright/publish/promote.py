"""Changes of a channel: promote, roll back, renew, set a status.

Each of them adds a generation, in an order in which no state between is wrong for a reader:

1. the wheel, its METADATA, evidence and promotion statement, which nothing names yet;
2. the new generation's pages and signed state, in a folder of their own;
3. the pointer, by a conditional write: from here on the generation is the channel's;
4. the pages at the stable address, one by one; each is a page of a generation that the pointer named before.

A publisher that dies before 3 leaves unnamed files; one that dies in 4 leaves pages of the generation before,
which the next command on the channel replaces.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import PublishError, SignatureError, TamperedError, UnknownNameError
from sparkwright.base.events import emit, task, warn
from sparkwright.publish.channel import (
    CLOCK_SKEW,
    POINTER,
    AttestationLink,
    ChannelAction,
    ChannelState,
    ListedWheel,
    PointedChannel,
    StatusMarker,
    attestations_path,
    decode_state,
    keeping,
    listing,
    moment,
    pointer_path,
    require_channel_name,
    stamp,
    with_pages,
)
from sparkwright.publish.condemned import Deposits
from sparkwright.publish.evidence import FoundEvidence, stated_series
from sparkwright.publish.history import content_of, generations_of
from sparkwright.publish.index import describe
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.promotion import promotion_statement
from sparkwright.publish.retention import Retained
from sparkwright.publish.root import TrustRoot
from sparkwright.publish.seen import SeenChannels
from sparkwright.publish.signing import (
    CHANNEL_TYPE,
    STATEMENT_TYPE,
    PayloadSigner,
    open_envelope,
    verify_envelope,
)
from sparkwright.publish.stable_pages import write_stable_pages
from sparkwright.publish.target import Target

_METADATA = ".metadata"


@dataclass(frozen=True)
class ChannelPublisher:
    """The means to change the channels of one target.

    Attributes:
        signer: signs what is written.
        root: the keys by which the present pointer has to be signed; `None` accepts only unsigned ones.
        root_files: the versions of the publisher's root, which are published beside the channels.
        memory: what was seen before: a pointer that went back is not built upon.
        adopt: build on a pointer that no trusted key signed.
        dry_run: the target only plans what is written to it.
        patience_s: longest wait for a prune that is removing what is published, in seconds.
    """

    target: Target
    signer: PayloadSigner
    root: TrustRoot | None
    root_files: tuple[Path, ...]
    memory: SeenChannels
    adopt: bool = False
    dry_run: bool = False
    patience_s: float = 30.0

    def read(self, channel: str) -> PointedChannel | None:
        """Return the present generation of *channel*, `None` if there is no such channel yet.

        Raises:
            SignatureError: its pointer is damaged, unsigned, or has a wrong signature.
            UntrustedKeyError: a key signed it that this publisher does not trust.
            ReplayedChannelError: it is older than one that was seen before.
        """
        seen = self.memory.recall()
        stored = self.target.read(pointer_path(require_channel_name(channel)))
        if stored is None:
            return None
        what = f"the pointer of {channel}"
        opened = open_envelope(stored.data, CHANNEL_TYPE, what)
        state = decode_state(opened.payload, channel, what)
        if self.root is None:
            if opened.is_signed:
                raise SignatureError(
                    f"{what} is signed, and would be replaced by an unsigned one",
                    because="--sign none was given",
                    next_step="leave out --sign none, or name another channel",
                )
        elif not (self.adopt or seen.is_newest(state)):
            # What this machine wrote last stays its own, even when the key of then was revoked.
            verify_envelope(opened, self.root, written=state.written, role="channels")
        seen.require_fresh(state)
        return PointedChannel(state, stored.tag)

    def require(self, channel: str) -> PointedChannel:
        """Return the present generation of *channel*; see `read`.

        Raises:
            UnknownNameError: there is no such channel.
        """
        found = self.read(channel)
        if found is None:
            raise UnknownNameError(
                f"there is no channel {channel} at {self.target.url(pointer_path(channel))}",
                next_step=f"sparkwright channel promote WHEEL --to {channel} makes it",
            )
        return found

    def history(self, state: ChannelState) -> Iterator[ChannelState]:
        """Return *state* and the generations before it, each verified by the digest that its successor names.

        Raises:
            TamperedError: a generation is missing, or was changed.
        """
        return generations_of(self.target, state)

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
        attestations: bytes = b"",
        runtime: bytes = b"",
    ) -> ChannelState:
        """List *wheel* in *channel*; nothing is written if it is listed already.

        Args:
            channel: the channel; made when missing.
            wheel: the wheel.
            evidence: accepted by *policy*.
            policy: the channel's.
            now: the present time.
            provenance: an in-toto statement about the wheel, which is signed and published beside it.
            attestations: its attestations (PEP 740), published beside it and linked on the pages.
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
        envelope = self.signer.sign(statement, STATEMENT_TYPE)
        origin = self.signer.sign(provenance, STATEMENT_TYPE) if provenance else b""
        entry = ListedWheel(
            filename=file.filename, project=file.project, version=file.version, sha256=file.sha256,
            size=file.size, requires_python=file.requires_python, metadata_sha256=file.metadata_sha256,
            uploaded=listed.uploaded if listed else stamp(now), promotion=sha256_bytes(envelope),
            provenance=sha256_bytes(origin) if origin else "", runtime=locked or msgspec.UNSET,
        )  # fmt: skip
        if elsewhere := self.target.elsewhere(entry.path):
            entry = msgspec.structs.replace(entry, url=elsewhere)
        deposits = Deposits(self.target, self.patience_s)
        if attestations:
            entry = self._with_attestations(entry, attestations, deposits)
        with task(f"publish {file.filename}", total=file.size, unit="bytes"):
            deposits.put(entry.path, wheel, file.sha256)
        deposits.put(entry.path + _METADATA, metadata)
        for one in evidence:
            deposits.put(f"{entry.folder}/evidence/{one.sha256}.json", one.data)
        if origin:
            deposits.put(entry.provenance_path, origin)
        if runtime:
            deposits.put(entry.runtime_path, runtime)
        deposits.put(entry.promotion_path, envelope)
        kept = tuple(one for one in files if one.sha256 != file.sha256)
        return self._commit(current, listing(draft, (*kept, entry)), deposits)

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
        """Write the same content with a new expiry, and sign it and its promotions by the present key.

        Raises:
            TamperedError: a promotion statement at the target is not the one that the channel names.
            LostRaceError: another publisher changed the channel meanwhile.
        """
        current = self.require(channel)
        deposits = Deposits(self.target, self.patience_s)
        files = tuple(self._signed_again(file, deposits) for file in current.state.files)
        draft = self._draft(channel, current, ChannelAction(kind="renew"), policy, now)
        return self._commit(current, msgspec.structs.replace(draft, files=files), deposits)

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
        return self._commit(current, keeping(msgspec.structs.replace(draft, files=kept.files), kept.oldest))

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
            root=self.root.version if self.root else 0,
            oldest=state.oldest if state else msgspec.UNSET,
            format=state.format if state else 1,
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
        deposits = deposits or Deposits(self.target, self.patience_s)
        if self.root is None:
            warn(f"channel {draft.channel} is UNSIGNED: a reader cannot tell it from a forged one")
        state, pages = with_pages(draft)
        envelope = self.signer.sign(state.payload, CHANNEL_TYPE)
        for path in self.root_files:
            deposits.put(f"trust/{path.name}", path.read_bytes())
        for name, data in pages.items():
            deposits.put(f"{state.folder}/{name}", data)
        deposits.put(f"{state.folder}/{POINTER}", envelope)
        deposits.settle()
        self.target.replace(pointer_path(state.channel), envelope, expected=current.tag if current else None)
        deposits.confirm()
        self.memory.remember(state, publisher=self.root.publisher if self.root else "")
        kind = "channel.planned" if self.dry_run else "channel.changed"
        emit(kind, channel=state.channel, generation=state.generation, action=state.action.kind,
             detail=state.action.detail, signer=self.signer.name)  # fmt: skip
        self.write_stable_pages(state.channel)
        return state

    def write_stable_pages(self, channel: str) -> None:
        """Write the present pages to the stable address; see the function of that name."""
        write_stable_pages(self.target, channel, lambda: self.require(channel).state)

    def _with_attestations(self, entry: ListedWheel, data: bytes, deposits: Deposits) -> ListedWheel:
        """Publish *data* and return *entry* with a link to it; without one where no address is public."""
        sha256 = sha256_bytes(data)
        path = attestations_path(entry.folder, sha256)
        url = self.target.url(path)
        if not url.startswith(("https://", "http://")):
            warn(f"no page links to the attestations of {entry.filename}: a folder has no public address")
            return entry
        deposits.put(path, data)
        return msgspec.structs.replace(entry, attestations=AttestationLink(sha256=sha256, url=url))

    def _signed_again(self, file: ListedWheel, deposits: Deposits) -> ListedWheel:
        promotion = self._resigned(file.promotion_path, file.promotion)
        provenance = self._resigned(file.provenance_path, file.provenance) if file.provenance else b""
        again = msgspec.structs.replace(
            file,
            promotion=sha256_bytes(promotion),
            provenance=sha256_bytes(provenance) if provenance else "",
        )
        deposits.put(again.promotion_path, promotion)
        if provenance:
            deposits.put(again.provenance_path, provenance)
        return again

    def _resigned(self, path: str, sha256: str) -> bytes:
        """Return the statement at *path*, which has that digest, in an envelope by the present key."""
        stored = self.target.read(path)
        if stored is None or sha256_bytes(stored.data) != sha256:
            raise TamperedError(
                f"{path} is not the statement that the channel names",
                because="it is missing" if stored is None else "its SHA-256 is another",
                next_step="take it from another copy of the target",
            )
        return self.signer.sign(open_envelope(stored.data, STATEMENT_TYPE, path).payload, STATEMENT_TYPE)
