"""Write dist/triton-kernels.md: what the Triton kernels of each merged tree take on a GB10.

Nothing is run on a card. What was compiled before comes from the store, so that only changes take time.

    python scripts/triton_kernels.py [--series 0.33]
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import defaultdict
from pathlib import Path

from sparkwright.git.repository import open_repository
from sparkwright.merge.engine import merge_patchset
from sparkwright.pipeline.checkout import open_checkout, series_names
from sparkwright.pipeline.job import make_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.probe.launches import LIMIT, KernelLaunch, KernelReport, KernelSurvey
from sparkwright.store.paths import open_store

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "dist" / "triton-kernels.md"
_SPILLS = 1024


def main() -> int:
    """Survey, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", nargs="+", default=sorted(series_names(ROOT)))
    args = parser.parse_args()
    store = open_store()
    reports: dict[str, KernelReport] = {}
    with contextlib.closing(open_repository(store.git)) as repository:
        for series in args.series:
            job = make_job(open_checkout(ROOT, series), store, repository, BuildOptions(series=series))
            version = job.spec.lock.release.version
            merged = merge_patchset(repository, job.merge_request(job.pristine, version))
            merged.require_merged()
            survey = KernelSurvey(store, repository)
            reports[series] = survey.survey(merged.tree, version)
    lines = [*table(reports), "", *(summary(series, report) for series, report in reports.items())]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines), encoding="utf-8")
    print(PAGE)
    return 1 if any(report.faults() for report in reports.values()) else 0


def peaks(report: KernelReport) -> dict[str, tuple[int, int, str]]:
    """Return for each kernel of a recipe the most shared memory that it takes, for what, and the most spills.

    Launches that cannot be chosen do not count, and those of upstream's tests for spills alone.
    """
    kernels: dict[str, list[KernelLaunch]] = defaultdict(list)
    for one in report.launches.values():
        if not one.refused:
            kernels[".".join(one.kernel.split(".")[-2:])].append(one)
    found = {}
    for name, good in kernels.items():
        fitting = [one for one in good if not one.tuning or one.shared <= LIMIT] or good
        most = max(fitting, key=lambda one: (not one.of_test, one.shared))
        if not most.of_test:
            found[name] = most.shared, max(one.spills for one in fitting), most.origin
    return found


def table(reports: dict[str, KernelReport]) -> list[str]:
    """Return a row for each kernel that takes most of the shared memory, or spills much, in Markdown."""
    found = {series: peaks(report) for series, report in reports.items()}
    shown = {
        name
        for kernels in found.values()
        for name, (shared, spills, _) in kernels.items()
        if spills >= _SPILLS or shared > LIMIT * 3 // 4
    }
    heads = [f"{what}, {series}" for what in ("shared memory", "spills") for series in found]
    lines = [f"| kernel | {' | '.join(heads)} | most for |", f"|---|{'---:|' * len(heads)}---|"]
    for name in sorted(shown):
        taken = [kernels.get(name) for kernels in found.values()]
        cells = ["" if one is None else str(one[place]) for place in (0, 1) for one in taken]
        origin = next(one[2] for one in reversed(taken) if one is not None)
        lines.append(f"| `{name}` | {' | '.join(cells)} | {origin} |")
    return lines


def summary(series: str, report: KernelReport) -> str:
    """Return what was compiled of a series, what a GB10 could not launch, and what was left, in Markdown."""
    done, every = len(report.compiled()), len(report.functions)
    faults, left = report.faults(), report.left()
    refused = [name for why, names in left.items() if why.startswith("refused") for name in names]
    counted = f"{len(report.launches)} launches under Triton {report.triton}, {len(faults) or 'no'} faults"
    kept_out = "; ".join(f"{why} ({len(names)})" for why, names in left.items()) or "none"
    lines = [
        f"{series}: {counted}; **{done} of {every} functions compiled**. Not compiled: {kept_out}.", "",
        *(f"* **{fault}**" for fault in faults), *(f"* refused: `{name}`" for name in refused),
    ]  # fmt: skip
    return "\n".join(lines) + "\n" * bool(faults or refused)


if __name__ == "__main__":
    sys.exit(main())
