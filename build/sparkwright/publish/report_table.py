"""The public table of owners' reports: a page and its data, in a folder that is published with the site.

``reports.json`` has every report with its signature and, made of them, the rows of the table; ``index.html``
shows these rows. Figures of reports whose key a channel lists and of others are never in one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from sparkwright.base.config import Model, decode_json, to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.errors import (
    ConfigError,
    KnownReportError,
    ReplayedReportError,
    SparkwrightError,
    TamperedError,
)
from sparkwright.base.page import page_environment
from sparkwright.base.text import one_line
from sparkwright.publish.owner_report import (
    Digest,
    MemoryOf,
    OwnerReport,
    ReportedLevel,
    SignedReport,
    read_report,
    require_signed,
)
from sparkwright.store.disk import hold, storing, write_atomically

if TYPE_CHECKING:
    from jinja2 import Template

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
