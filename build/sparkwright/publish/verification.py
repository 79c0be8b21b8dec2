"""Verifying a channel as a reader: signature, key, time, generation, and every byte that it names."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import (
    ExpiredChannelError,
    ReplayedChannelError,
    SignatureError,
    SparkwrightError,
    TamperedError,
    UnknownNameError,
    UntrustedKeyError,
)
from sparkwright.base.events import emit, task, warn
from sparkwright.publish.attestations import refusal_of
from sparkwright.publish.channel import (
    CHANNELS,
    CLOCK_SKEW,
    POINTER,
    STABLE,
    AttestationLink,
    ChannelState,
    ListedWheel,
    attestations_path,
    decode_state,
    generation_folder,
    moment,
    newest_first,
    pointer_path,
    require_channel_name,
)
from sparkwright.publish.mirror import Mirror
from sparkwright.publish.root import TrustRoot
from sparkwright.publish.seen import SeenChannels
from sparkwright.publish.signing import (
    CHANNEL_TYPE,
    STATEMENT_TYPE,
    OpenedEnvelope,
    identity_of,
    open_envelope,
    verify_envelope,
)
from sparkwright.publish.statements import (
    ELSEWHERE,
    InTotoStatement,
    PromotionPredicate,
    PromotionStatement,
    decode_statement,
    require_subject,
)
from sparkwright.publish.trust import PinnedRoot, newest_root

WheelChoice = Literal["all", "newest", "none"]
_TRIES = 5


@dataclass(frozen=True)
class VerifyChannelOptions:
    """The choices of a verification.

    Attributes:
        wheels: the wheels whose bytes are read; yanked ones are only read with ``all``.
        allow_unsigned: accept a channel without a signature.
        named_root: the roots were named for this one call: their publisher counts at every address.
        patience_s: for how long pages of the generation before are read again, in seconds: a publisher
            replaces them right after the pointer.
    """

    wheels: WheelChoice = "all"
    allow_unsigned: bool = False
    named_root: bool = False
    patience_s: float = 10.0


@dataclass(frozen=True)
class VerifiedChannel:
    """A channel that was verified.

    Attributes:
        state: its present generation.
        signer: the id of the key, or the identity, that signed it; empty if unsigned was accepted.
        wheels: the wheels whose bytes were read.
        root: the publisher's root by which it was verified; `None` if unsigned was accepted.
    """

    state: ChannelState
    signer: str
    wheels: tuple[ListedWheel, ...]
    root: TrustRoot | None = None


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
        UntrustedKeyError: a signature is by a key that is unknown, revoked or out of its time.
        ExpiredChannelError: the channel is past its time.
        ReplayedChannelError: it is older than seen before, or its pages are.
        TamperedError: a page, a wheel, metadata or a statement is not what was signed.
        FetchError: a file cannot be fetched.
    """
    options = options or VerifyChannelOptions()
    reading = _Reading(mirror, require_channel_name(channel), memory, now, options)
    state, signer, root = reading.settled(roots)
    files = newest_first([file for file in state.files if file.yanked is None])
    chosen: Sequence[ListedWheel] = {"all": state.files, "newest": files[:1], "none": ()}[options.wheels]
    for file in state.files:
        reading.beside(file, root)
    with task("verify wheels", total=sum(file.size for file in chosen), unit="bytes") as progress:
        for file in chosen:
            reading.wheel(file, state)
            progress.advance(file.size)
    publisher = root.publisher if root else ""
    memory.remember(state, publisher=publisher, address=mirror.address)
    emit("channel.verified", channel=channel, generation=state.generation, signer=signer, wheels=len(chosen))
    return VerifiedChannel(state, signer, tuple(chosen), root)


@dataclass(frozen=True)
class _Reading:
    """One verification; see `verify_channel` for the attributes."""

    mirror: Mirror
    channel: str
    memory: SeenChannels
    now: datetime
    options: VerifyChannelOptions

    def settled(self, roots: Sequence[PinnedRoot]) -> tuple[ChannelState, str, TrustRoot | None]:
        """Return `pointer`, once its pages were verified; read again if a publisher moves it meanwhile."""
        for _ in range(_TRIES):
            found = self.pointer(roots)
            try:
                self.pages(found[0])
            except (TamperedError, ReplayedChannelError):
                if self.pointer(roots)[0] == found[0]:
                    raise
            else:
                return found
        raise ReplayedChannelError(
            f"channel {self.channel} could not be read",
            because="it was changed all the time",
            next_step="run the same command again",
        )

    def pointer(self, roots: Sequence[PinnedRoot]) -> tuple[ChannelState, str, TrustRoot | None]:
        """Return the present generation, its signer and the root by which that was verified."""
        path = pointer_path(self.channel)
        seen = self.memory.recall()
        data = self.mirror.read(path)
        if data is None:
            raise UnknownNameError(
                f"there is no channel {self.channel} at {self.mirror.address}",
                because=f"{path} does not exist there, or may not be read",
            )
        what = f"the statement of channel {self.channel}"
        opened = open_envelope(data, CHANNEL_TYPE, what)
        state = decode_state(opened.payload, self.channel, what)
        signer, root = self._signer(opened, state, roots)
        written, expires = moment(state.written, what), moment(state.expires, what)
        if self.now > expires:
            raise ExpiredChannelError(
                f"channel {self.channel} is expired",
                because=f"generation {state.generation} of {state.written} was to be trusted until "
                f"{state.expires}: the mirror is frozen, or its publisher stopped",
                next_step="take another mirror, or ask the publisher for 'sparkwright channel renew'",
            )
        if written > self.now + CLOCK_SKEW:
            raise SignatureError(
                f"{what} is from the future",
                because=f"it was written on {state.written}",
                next_step="check this machine's clock",
            )
        if root is not None and not self.options.named_root:
            seen.require_publisher(self.mirror.address, root.publisher)
        seen.require_fresh(state)
        return state, signer, root

    def _signer(
        self, opened: OpenedEnvelope, state: ChannelState, roots: Sequence[PinnedRoot]
    ) -> tuple[str, TrustRoot | None]:
        if not opened.is_signed and self.options.allow_unsigned:
            warn(
                f"{opened.what} is UNSIGNED: anybody who can write to {self.mirror.address} can have made it"
            )
            return "", None
        current: list[TrustRoot] = []
        errors: list[SparkwrightError] = []
        for pinned in roots:
            try:
                current.append(self._newest(pinned))
            except (SignatureError, UntrustedKeyError) as error:  # another publisher's, perhaps
                errors.append(error)
        fitting = [root for root in current if any(root.find(key_id) for key_id in opened.key_ids)]
        if opened.bundle:
            fitting = [root for root in current if identity_of(opened, root)]
        if errors and not fitting:
            raise errors[0]
        if opened.is_signed and not roots:
            raise UntrustedKeyError(
                f"{opened.what} cannot be verified",
                because="no root is pinned here, so that every key is unknown",
                next_step="get the publisher's root over a way that you trust, then: "
                "sparkwright channel key pin FILE",
            )
        # Without a fitting root, any gives the error: unsigned, or an unknown key.
        root = next(iter(fitting or current), None)
        if root is None:
            raise SignatureError(
                f"{opened.what} is not signed",
                because="it was published with --sign none: anybody who can write there can have made it",
                next_step="ask its publisher to sign it, or accept that with --allow-unsigned",
            )
        if fitting and root.version < state.root:
            raise ReplayedChannelError(
                f"{self.mirror.address} withholds the publisher's newest root",
                because=f"{opened.what} names version {state.root}, the last one there is {root.version}",
                next_step="take another mirror: a key may have been revoked",
            )
        return verify_envelope(opened, root, written=state.written, role="channels"), root

    def _newest(self, pinned: PinnedRoot) -> TrustRoot:
        """Return the newest successor of a pinned root, here or at the mirror, and remember it.

        One that was named for this call is followed by itself: what is remembered may be of a thief, whom a
        reader of it follows, and what it leads to is of no concern to the pinned ones.

        Raises:
            ReplayedChannelError: a newer one than the named one leads to was seen, which may revoke a key.
        """
        seen = self.memory.root(pinned.root.publisher)
        if self.options.named_root:
            newest = newest_root(pinned, self.mirror.read).root
            if seen is not None and seen.root.version > newest.version:
                raise ReplayedChannelError(
                    f"the named root leads to version {newest.version} at {self.mirror.address}",
                    because=f"version {seen.root.version} of {seen.root.written} was seen before: this "
                    "mirror withholds it, or a thief made it",
                    next_step="name the publisher's newest root; if a thief made the other, pin it: "
                    "sparkwright channel key pin FILE --publisher ID --digest SHA256",
                )
            return newest
        if seen is not None and seen.root.version > pinned.root.version:
            pinned = seen
        newest_here = newest_root(pinned, self.mirror.read)
        self.memory.remember_root(newest_here)
        return newest_here.root

    def pages(self, state: ChannelState) -> None:
        """Verify the pages in the generation's folder and at the stable address."""
        for name, sha256 in state.pages.items():
            self._require(f"{state.folder}/{name}", sha256, f"page {name} of generation {state.generation}")
        waiting = time.monotonic() + self.options.patience_s
        while stale := self._stale_pages(state):
            if time.monotonic() >= waiting:
                name, generation = stale
                raise ReplayedChannelError(
                    f"the pages of channel {self.channel} are behind it",
                    because=f"{STABLE}/{name} is of generation {generation}, the channel at generation "
                    f"{state.generation}: the mirror is stale, or its publisher was interrupted",
                    next_step="install from another mirror; its publisher runs the last command again",
                )
            time.sleep(min(0.5, self.options.patience_s))

    def _stale_pages(self, state: ChannelState) -> tuple[str, int] | None:
        """Return a stable page that is of the generation before, and its number; `None` if all are new.

        Raises:
            TamperedError: a page is of neither.
        """
        earlier: ChannelState | None = None
        for name, sha256 in state.pages.items():
            data = self.mirror.read(f"{CHANNELS}/{self.channel}/{STABLE}/{name}")
            if data is not None and sha256_bytes(data) == sha256:
                continue
            earlier = earlier or self._earlier(state)
            known = earlier.pages.get(name) if earlier else None
            if (data is None and known is None) or (data is not None and sha256_bytes(data) == known):
                return name, state.generation - 1
            raise TamperedError(
                f"page {STABLE}/{name} of channel {self.channel} was changed",
                because="it is missing"
                if data is None
                else f"its SHA-256 is {sha256_bytes(data)}, not {sha256}",
                next_step=ELSEWHERE,
            )
        return None

    def _earlier(self, state: ChannelState) -> ChannelState | None:
        """Return the generation before *state*, by the digest that it names; `None` if it is not there."""
        if not state.previous:
            return None
        folder = generation_folder(self.channel, state.generation - 1, state.previous)
        data = self.mirror.read(f"{folder}/{POINTER}")
        if data is None:
            return None
        what = f"generation {state.generation - 1} of channel {self.channel}"
        payload = open_envelope(data, CHANNEL_TYPE, what).payload
        return decode_state(payload, self.channel, what) if sha256_bytes(payload) == state.previous else None

    def beside(self, file: ListedWheel, root: TrustRoot | None) -> None:
        """Verify METADATA and promotion statement of a wheel, and the evidence that the statement names.

        The channel names the statements by digest, so a key that signed them may be retired by now; a revoked
        one is refused.
        """
        elsewhere = f"{file.elsewhere}.metadata" if file.elsewhere else ""
        what = f"the metadata of {file.filename}"
        self._require(f"{file.path}.metadata", file.metadata_sha256, what, elsewhere)
        what = f"the promotion statement of {file.filename}"
        data = self._require(file.promotion_path, file.promotion, what)
        opened = open_envelope(data, STATEMENT_TYPE, what)
        statement = decode_statement(opened.payload, PromotionStatement, what)
        if root is not None:
            verify_envelope(opened, root, role="channels")
        require_subject(statement, file, what)
        if file.provenance:
            self._provenance(file, root)
        if file.attestations:
            self._attestations(file, file.attestations)
        if statement.predicate.channel != self.channel:
            raise TamperedError(
                f"{what} is of another channel",
                because=f"the wheel was promoted to {statement.predicate.channel}, not to {self.channel}",
                next_step=ELSEWHERE,
            )
        self._runtime(file, statement.predicate)
        for run in statement.predicate.evidence:
            path = f"{file.folder}/evidence/{run.digest.sha256}.json"
            self._require(path, run.digest.sha256, f"evidence about {file.filename}")

    def _provenance(self, file: ListedWheel, root: TrustRoot | None) -> None:
        """Verify the provenance of a wheel, a statement about its digest."""
        what = f"the provenance of {file.filename}"
        opened = open_envelope(
            self._require(file.provenance_path, file.provenance, what), STATEMENT_TYPE, what
        )
        if root is not None:
            verify_envelope(opened, root, role="channels")
        require_subject(decode_statement(opened.payload, InTotoStatement, what), file, what)

    def _runtime(self, file: ListedWheel, predicate: PromotionPredicate) -> None:
        """Verify the locked runtime of a wheel, which channel and promotion name by the same digest."""
        stated = predicate.runtime.digest.sha256 if predicate.runtime else ""
        if stated != (file.runtime or ""):
            raise TamperedError(
                f"the runtime of {file.filename} is not the one that it was promoted with",
                because=f"the channel names {file.runtime or 'none'}, its promotion {stated or 'none'}",
                next_step=ELSEWHERE,
            )
        if file.runtime:
            self._require(file.runtime_path, file.runtime, f"the runtime of {file.filename}")

    def _attestations(self, file: ListedWheel, link: AttestationLink) -> None:
        """Verify that attestations of a wheel are those that were published, and are about its digest."""
        what = f"the file of attestations of {file.filename}"
        data = self._require(attestations_path(file.folder, link.sha256), link.sha256, what)
        if because := refusal_of(data, file.sha256):
            raise TamperedError(f"{what} is not one of it", because=because, next_step=ELSEWHERE)

    def wheel(self, file: ListedWheel, state: ChannelState) -> None:
        """Verify the bytes of a wheel."""
        found = self.mirror.digest(file.path, max(one.size for one in state.files), file.elsewhere)
        if found is None:
            where = file.elsewhere or file.path
            raise TamperedError(f"{file.filename} is missing", because=f"{where} does not exist")
        if found == (file.sha256, file.size):
            return
        other = state.find(found[0])
        if other is not None:
            raise TamperedError(
                f"{file.filename} was swapped",
                because=f"{other.filename} is in its place",
                next_step=ELSEWHERE,
            )
        raise TamperedError(
            f"{file.filename} was changed",
            because=f"its SHA-256 is not the signed {file.sha256}; it has {found[1]} bytes of {file.size}",
            next_step=ELSEWHERE,
        )

    def _require(self, path: str, sha256: str, what: str, elsewhere: str = "") -> bytes:
        """Return the file at *path*, or at the absolute address *elsewhere*; it has to have that digest."""
        data = self.mirror.read(path, elsewhere)
        if data is None:
            raise TamperedError(
                f"{what} is missing",
                because=f"{elsewhere} does not exist"
                if elsewhere
                else f"{path} does not exist at {self.mirror.address}",
                next_step="the mirror may be incomplete; take another one",
            )
        if (actual := sha256_bytes(data)) != sha256:
            raise TamperedError(
                f"{what} was changed", because=f"its SHA-256 is {actual}, not {sha256}", next_step=ELSEWHERE
            )
        return data
