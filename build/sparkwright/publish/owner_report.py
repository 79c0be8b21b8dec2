"""Owners' reports: what one run of ``verify`` found on one machine, signed by the key of its owner.

Each field is a number in bounds, a digest or a word of a fixed pattern, so that no address, path or markup
has a place in it. The signature is over the canonical JSON of what was read, behind a line that no other
statement of this project begins with: what counts is what was signed, however the file spells it.

Anybody can make a key, so a signature alone says that a report was not changed. Whether its figures are
believed is decided by the keys that the policy of a channel lists.
"""

from __future__ import annotations

import stat
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import sha256_bytes, to_json
from sparkwright.base.errors import ConfigError, TamperedError, UntrustedKeyError
from sparkwright.base.text import clean, one_line

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

MOST_BYTES = 256 << 10
_BEGIN = b"sparkwright owner's report, format 1\n"

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Word = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9-]{0,39}\Z")]
Version = Annotated[str, Meta(pattern=r"\A[0-9][0-9a-z.+]{0,63}\Z")]
Figure = Annotated[float, Meta(ge=0, le=1e7)]
Count = Annotated[int, Meta(ge=0, le=10**7)]
MemoryOf = Literal["weights-gib", "kv-gib", "kv-tokens", "server-gib"]
Verdict = Literal["pass", "fail", "inconclusive", "invalid", "not-applicable"]


class Machine(Model, frozen=True):
    """The machine, without anything by which it could be found; `card` and the rest are of a card alone."""

    kind: Literal["card", "cpu", "simulator"]
    platform: Literal["aarch64", "x86_64"]
    cores: Annotated[int, Meta(ge=1, le=4096)]
    memory_gib: Annotated[int, Meta(ge=0, le=10**5)]
    card: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9 -]{0,63}\Z|\A\Z")] = ""
    capability: Annotated[str, Meta(pattern=r"\A[0-9]{1,2}\.[0-9]\Z|\A\Z")] = ""
    driver: Annotated[str, Meta(pattern=r"\A[0-9]{1,4}(\.[0-9]{1,4}){1,3}\Z|\A\Z")] = ""

    @property
    def name(self) -> str:
        """The card, or what stood in its place, whatever else the report says."""
        return (self.kind == "card" and self.card) or f"{self.kind}, {self.platform}"


class ReportedWheel(Model, frozen=True):
    """The wheel; `runtime` is the digest of the locked packages that it ran with, empty if unlocked."""

    sha256: Digest
    version: Version
    runtime: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""


class ReportedRecipe(Model, frozen=True):
    """The recipe as it was served, use included; `name` is ``own`` for one that does not ship."""

    name: Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9.-]{0,63}\Z")]
    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    use: Literal["", "single", "shared", "many"] = ""


class ReportedLevel(Model, frozen=True):
    """Speed at one concurrency.

    Attributes:
        tok_s: of all requests together: mean of the categories of prompts, the slowest and the fastest.
        tokens_per_step: mean acceptance length; `None` without drafts, as `accepted`, a share of drafts, is.
        disturbed: the machine did something else as well, or was slowed.
    """

    c: Annotated[int, Meta(ge=1, le=4096)]
    tok_s: tuple[Figure, Figure, Figure]
    ttft_p50_ms: Figure
    ttft_p95_ms: Figure
    tpot_p50_ms: Figure | None = None
    tokens_per_step: Figure | None = None
    accepted: Annotated[float, Meta(ge=0, le=1)] | None = None
    disturbed: bool = False

    def __post_init__(self) -> None:
        mean, slowest, fastest = self.tok_s
        if not (slowest <= mean <= fastest and self.ttft_p50_ms <= self.ttft_p95_ms):
            raise ValueError(f"the figures at c = {self.c} are out of order")


class OwnerReport(Model, frozen=True):
    """The figures of one run, and the machine, wheel and recipe that they are of.

    Attributes:
        made: day of the run, in UTC.
        run: SHA-256 of the run's journal, which its owner keeps: no two reports are of one run.
        complete: the whole profile ran, and every check came to all of its conclusions.
        memory: GiB, or tokens, by what they are of.
    """

    kind: Literal["sparkwright-owner-report"]
    format: Literal[1]
    made: Annotated[str, Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")]
    tool: Version
    run: Digest
    key: Digest
    machine: Machine
    recipe: ReportedRecipe
    profile: Word
    complete: bool
    verdict: Verdict
    seconds: Figure
    requests: Count
    checks: Annotated[dict[Word, Verdict], Meta(max_length=64)]
    levels: Annotated[tuple[ReportedLevel, ...], Meta(max_length=64)]
    failures: Annotated[dict[Word, Count], Meta(max_length=64)]
    memory: dict[MemoryOf, Figure]
    wheel: ReportedWheel | None = None

    def __post_init__(self) -> None:
        if len({level.c for level in self.levels}) < len(self.levels):
            raise ValueError("levels have one concurrency twice")  # its figures would count as two reports'
        if sum(self.failures.values()) > self.requests:
            raise ValueError("more requests failed than were sent")

    @property
    def data(self) -> bytes:
        """The bytes that are signed."""
        return _BEGIN + to_json(to_builtins(self))


class ReportSignature(Model, frozen=True):
    """A signature, and the public key that made it."""

    key: Digest
    value: Annotated[str, Meta(pattern=r"\A[0-9a-f]{128}\Z")]


class SignedReport(Model, frozen=True, dict=True):
    """A report with its signature, as it is in a file; see `read_report`."""

    report: OwnerReport
    signature: ReportSignature

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what was signed, which names the report."""
        return sha256_bytes(self.report.data)


def sign_report(described: dict[str, Any], key: CryptoSigner) -> SignedReport:
    """Return the report of what is *described*, signed by *key*."""
    public = str(key.public_key.keyval["public"])
    head = {"kind": "sparkwright-owner-report", "format": 1, "key": public}
    try:
        report = decode_json(to_json({**head, **described}), OwnerReport)
    except (msgspec.MsgspecError, ValueError) as error:  # NaN is none of JSON's numbers
        raise ConfigError("no report can be made of this run", because=clean(str(error), 300)) from error
    value = key.sign(report.data).signature
    return SignedReport(report=report, signature=ReportSignature(key=public, value=value))


def read_report(path: Path) -> SignedReport:
    """Return the report in the file at *path*, which its own key signed; see `require_signed`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _no_report(path, "it is no file")
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise _no_report(path, str(error.strerror).lower()) from error
    if len(data) > MOST_BYTES:
        raise _no_report(path, f"it has more than {MOST_BYTES:,} bytes")
    try:
        signed = decode_json(data, SignedReport)
    except msgspec.MsgspecError as error:
        raise _no_report(path, clean(str(error), 300)) from error
    require_signed(signed, one_line(path))
    return signed


def require_signed(signed: SignedReport, what: str) -> None:
    """Refuse a report that the key which it names did not sign; *what* names it in errors.

    Raises:
        ConfigError: it is of no day, or of one to come.
        UntrustedKeyError: another key signed it than the one that it names as its own.
        TamperedError: it was changed after it was signed.
    """
    from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError
    from securesystemslib.signer import Signature, SSlibKey

    report, key = signed.report, signed.signature.key
    if key != report.key:
        raise UntrustedKeyError(
            f"{what} is signed by a key that is not its own",
            because=f"it names key {report.key[:16]}, and key {key[:16]} signed it",
            next_step="ask its owner for the file as sparkwright report wrote it",
        )
    public = SSlibKey(sha256_bytes(bytes.fromhex(key)), "ed25519", "ed25519", {"public": key})
    try:
        public.verify_signature(Signature(public.keyid, signed.signature.value), report.data)
    except (UnverifiedSignatureError, VerificationError) as error:
        raise TamperedError(
            f"{what} was changed after it was signed",
            because=f"the signature of key {key[:16]} is not of this content",
            next_step="ask its owner for the file as sparkwright report wrote it",
        ) from error
    try:
        made = date.fromisoformat(report.made)
    except ValueError as error:
        raise _no_report(what, f"{report.made} is no day") from error
    if made > (datetime.now(UTC) + timedelta(days=1)).date():
        raise _no_report(what, f"its day, {report.made}, is still to come: the clock of its machine is wrong")


def _no_report(path: object, why: str) -> ConfigError:
    return ConfigError(
        f"{one_line(path)} is no owner's report",
        because=why,
        next_step="take a file that sparkwright report wrote",
    )
