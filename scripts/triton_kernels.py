"""Write the end of docs/native-kernels.md: what the Triton kernels of each merged tree take on a GB10.

Nothing is run on a card. What was compiled before comes from the store, so that only changes take time.

    python scripts/triton_kernels.py [--series 0.33] [--no-tests]
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparkwright.git.repository import open_repository
from sparkwright.merge.engine import merge_patchset
from sparkwright.pipeline.checkout import open_checkout, series_names
from sparkwright.pipeline.job import make_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.probe.launches import LIMIT, KernelLaunch, KernelReport, KernelSurvey
from sparkwright.store.paths import open_store

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "native-kernels.md"
_MARK = "<!-- make triton writes what follows -->\n\n"
_SPILLS = 1024


def main() -> int:
    """Survey, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", nargs="+", default=sorted(series_names(ROOT)))
    parser.add_argument(
        "--no-tests", action="store_true", help="the recipes' launches alone, in half the time"
    )
    args = parser.parse_args()
    store, faults = open_store(), 0
    sections = []
    with contextlib.closing(open_repository(store.git)) as repository:
        for series in args.series:
            job = make_job(open_checkout(ROOT, series), store, repository, BuildOptions(series=series))
            version = job.spec.lock.release.version
            merged = merge_patchset(repository, job.merge_request(job.pristine, version))
            merged.require_merged()
            report = KernelSurvey(store, repository, tests=not args.no_tests).survey(merged.tree, version)
            faults += len(report.faults())
            alone = ", without upstream's tests" if args.no_tests else ""
            sections.append(page_section(f"Series {series}: {version} with its carries{alone}", report))
    kept = PAGE.read_text(encoding="utf-8").partition(_MARK)[0]
    PAGE.write_text(kept + _MARK + "\n".join(sections), encoding="utf-8")
    return 1 if faults else 0


HEAD = ("kernel", "launches", "shared memory", "spills, bytes a thread", "by")


def rows(report: KernelReport) -> Iterator[tuple[str, ...]]:
    """Return a row for each kernel that is refused, takes most of the shared memory, or spills much.

    It has the most that any of the kernel's launches takes that can be chosen.
    """
    kernels: dict[str, list[KernelLaunch]] = defaultdict(list)
    for one in report.launches.values():
        kernels[one.kernel].append(one)
    for name, some in sorted(kernels.items()):
        good = [one for one in some if not one.refused]
        fitting = [one for one in good if not one.tuning or one.shared <= LIMIT] or good
        if not good:
            yield name, str(len(some)), "", "", "refused: " + some[0].refused[:80]
            continue
        most = max(fitting, key=lambda one: (not one.of_test, one.shared))
        spilling = max(fitting, key=lambda one: one.spills)
        if most.of_test or not (spilling.spills >= _SPILLS or most.shared > LIMIT * 3 // 4):
            continue
        spills = f"{spilling.spills} ({spilling.origin})" if spilling.spills else "0"
        yield name, str(len(some)), str(most.shared), spills, most.origin


def page_section(title: str, report: KernelReport) -> str:
    """Return the part of a series, in Markdown."""
    done, every = len(report.compiled()), len(report.functions)
    faults, table = report.faults(), list(rows(report))
    left = report.left()
    refused = [name for why, names in left.items() if why.startswith("refused") for name in names]
    counted = f"{len(report.launches)} launches; **{done} of {every} functions compiled**."
    fit = f"{len(faults)} faults:" if faults else "Each launch fits."
    lines = [
        f"### {title}", "",
        f"Triton {report.triton}. {counted} {fit}", "",
        *(f"* **{fault}**" for fault in faults), *([""] if faults else []),
        *_table(table), "",
        f"Not compiled: {'; '.join(f'{why} ({len(names)})' for why, names in left.items()) or 'none'}.",
        *(f"* refused: `{_short(name)}`" for name in refused),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _short(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _table(body: Iterable[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(HEAD)} |",
        "|---|---:|---:|---|---|",
        *(f"| `{_short(row[0])}` | {' | '.join(row[1:])} |" for row in body),
    ]


if __name__ == "__main__":
    sys.exit(main())
