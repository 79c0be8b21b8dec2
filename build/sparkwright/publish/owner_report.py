"""Owners' reports: what one run of ``verify`` found on one machine, signed by the key of its owner.

Each field is a number in bounds, a digest or a word of a fixed pattern, so that no address, path or markup
has a place in it. The signature is over the canonical JSON of what was read, behind a line that no other
statement of this project begins with: what counts is what was signed, however the file spells it.

Anybody can make a key, so a signature alone says that a report was not changed. Whether its figures are
believed is decided by the keys that the policy of a channel lists.

The public table is a page and its data, in a folder that is published with the site. ``reports.json`` has
every report with its signature and, made of them, the rows of the table; ``index.html`` shows these rows.
Figures of reports whose key a channel lists and of others are never in one row.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import sha256_bytes, to_json
from sparkwright.base.errors import (
    ConfigError,
    KnownReportError,
    ReplayedReportError,
    SparkwrightError,
    TamperedError,
    UntrustedKeyError,
)
from sparkwright.base.page import page_environment
from sparkwright.base.text import clean, one_line
from sparkwright.store.disk import hold, storing, write_atomically

if TYPE_CHECKING:
    from jinja2 import Template
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
        if self.verdict == "pass" and {*self.checks.values()} - {"pass", "not-applicable"}:
            raise ValueError("the run passed, and a check of it did not")

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


# The public table ----------------------------------------------------------------------------------


TABLE, PAGE = "reports.json", "index.html"
_DASH = "\N{EN DASH}"


class _Table(Model, frozen=True):
    format: Literal[1]
    keys: tuple[Digest, ...]
    rows: tuple[Any, ...]
    reports: tuple[SignedReport, ...]


class AddedReports(NamedTuple):
    """The reports that were added and the errors of others, by path, and all that are in the table now."""

    accepted: dict[Path, SignedReport]
    refused: dict[Path, SparkwrightError]
    known: list[SignedReport]


def add_reports(folder: Path, paths: Iterable[Path], keys: Collection[str]) -> AddedReports:
    """Add the reports at *paths* to the table in *folder*; *keys* are those that channels list.

    One that is refused stops no other. A report of a run that an unverified one claims is added in its place
    if it is itself verified, so that a copy under another key cannot keep it out.
    """
    accepted: dict[Path, SignedReport] = {}
    refused: dict[Path, SparkwrightError] = {}
    with (
        storing(f"writing to {folder}", instead="name another folder: --table FOLDER"),
        hold(folder / ".publish.lock", f"the reports in {folder}"),
    ):
        known = [*_read(folder / TABLE)]
        for path in paths:
            try:
                one = read_report(path)
                known = [*_without_replayed(one, known, keys, path), one]
                accepted[path] = one
            except SparkwrightError as error:
                refused[path] = error
        for name, data in _rendered(known, keys).items():
            write_atomically(folder / name, data)
    return AddedReports(accepted, refused, known)


def _without_replayed(
    new: SignedReport, known: Sequence[SignedReport], keys: Collection[str], path: Path
) -> list[SignedReport]:
    """Return the *known* reports that stay beside the *new* one.

    Raises:
        KnownReportError: it is one of them.
        ReplayedReportError: one of them is of the same run.
    """
    if any(one.digest == new.digest for one in known):
        raise KnownReportError(
            f"{one_line(path)} was not added",
            because=f"report {new.digest[:16]} is in the table already",
            next_step="leave it out",
        )
    same = [one for one in known if one.report.run == new.report.run]
    if same and (new.report.key not in keys or any(one.report.key in keys for one in same)):
        raise ReplayedReportError(
            f"{one_line(path)} was not added",
            because=f"report {same[0].digest[:16]}, by key {same[0].report.key[:16]}, is of the same run, "
            "which counts once",
            next_step="leave it out, or ask its owner for a run of their own: sparkwright report",
        )
    return [one for one in known if one not in same]


def _read(path: Path) -> tuple[SignedReport, ...]:
    """Return the reports in the table at *path*, each verified again."""
    if not path.exists():
        return ()
    advice = f"put {path} back from its history"
    try:
        found = decode_json(path.read_bytes(), _Table).reports
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is no table of reports", because=str(error), next_step=advice) from error
    for one in found:
        try:
            require_signed(one, f"report {one.digest[:16]}")
        except SparkwrightError as error:
            raise TamperedError(
                f"{path} was changed by hand", because=f"{error.what}: {error.because}", next_step=advice
            ) from error
    return found


# The table -----------------------------------------------------------------------------------------------


def _rendered(known: Sequence[SignedReport], keys: Collection[str]) -> dict[str, bytes]:
    """Return the data and the page of the *known* reports, in an order of their own, by name."""
    ordered = sorted(known, key=lambda one: (one.report.made, one.digest))
    groups: dict[tuple[Any, ...], list[OwnerReport]] = {}
    for one in ordered:
        groups.setdefault(_group(one.report, keys), []).append(one.report)
    rows = [_row(group, of) for group, of in sorted(groups.items(), key=itemgetter(0))]
    page = _template().render(rows=rows, reports=len(ordered)).strip() + "\n"
    data = {"format": 1, "keys": sorted(keys), "rows": rows, "reports": to_builtins(ordered)}
    return {TABLE: to_json(data) + b"\n", PAGE: page.encode()}


@cache  # compiling templates takes a third of a second
def _template() -> Template:
    environment = page_environment(Path(__file__).parent / "template")
    environment.filters["amount"] = lambda value: _DASH if value is None else f"{float(f'{value:.3g}'):,g}"
    return environment.get_template("reports.html")


def _group(report: OwnerReport, keys: Collection[str]) -> tuple[Any, ...]:
    """Return what reports in one row have in common, so that they can be compared; verified ones first."""
    wheel, recipe = report.wheel, report.recipe
    name = f"{recipe.name} {recipe.use}".strip()
    of = (wheel.version, wheel.sha256, wheel.runtime) if wheel else ("", "", "")
    return report.key not in keys, name, recipe.digest, *of, report.machine.name, report.profile


def _row(group: tuple[Any, ...], of: Sequence[OwnerReport]) -> dict[str, Any]:
    unverified, recipe, digest, version, sha256, runtime, machine, profile = group
    levels = [level for one in of for level in one.levels]
    verdicts, failed = Counter(one.verdict for one in of), Counter[str]()
    for one in of:
        failed.update(one.failures)
    checks = {name for one in of for name, verdict in one.checks.items() if verdict in {"fail", "invalid"}}
    return {
        "verified": not unverified, "recipe": recipe, "recipe-digest": digest, "version": version,
        "wheel": sha256, "runtime": runtime, "machine": machine, "profile": profile, "reports": len(of),
        "from": of[0].made, "to": of[-1].made, "verdicts": dict(sorted(verdicts.items())),
        "drivers": sorted({one.machine.driver for one in of} - {""}),
        "levels": [_level([at for at in levels if at.c == c]) for c in sorted({at.c for at in levels})],
        "memory": {name: _median(one.memory.get(name) for one in of) for name in get_args(MemoryOf)},
        "failed-checks": sorted(checks), "failed-requests": dict(sorted(failed.items())),
        "requests": sum(one.requests for one in of),
    }  # fmt: skip


def _level(at: Sequence[ReportedLevel]) -> dict[str, Any]:
    # Of one report the spread is over its categories of prompts.
    low, high = (0, 0) if len(at) > 1 else (1, 2)
    return {
        "c": at[0].c, "reports": len(at), "tok-s": _median(one.tok_s[0] for one in at),
        "lowest": min(one.tok_s[low] for one in at), "highest": max(one.tok_s[high] for one in at),
        "ttft-p50-ms": _median(one.ttft_p50_ms for one in at),
        "tokens-per-step": _median(one.tokens_per_step for one in at),
        "accepted": _median(one.accepted for one in at), "disturbed": any(one.disturbed for one in at),
    }  # fmt: skip


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
