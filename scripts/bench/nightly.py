"""Merges a second in the search for the upstream commit that changed a carry's outcome.

For every carry that merges onto the older end and not onto the newer one, the search is run, and then every
commit between them that changes one of the carry's files is merged, so that the rate does not depend on how
few merges a search takes. Rates are by the clock and by CPU time, git's included, which other work on the
machine does not change as much. Beside it stands the rate of the engine, which merges whole trees and
examines clean merges. The repository needs upstream's history between the two ends.

    python scripts/bench/nightly.py REPOSITORY OLD NEW [--series 0.33] [--most 40]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sparkwright.git import open_repository
from sparkwright.merge import OutcomeKind, merge_patchset
from sparkwright.merge.prepare import prepare
from sparkwright.merge.trial import Trial
from sparkwright.nightly.culprit import OutcomeChange, between, culprit_by_commit, fork
from sparkwright.pipeline import BuildOptions, open_job

_ENGINE = 8


def main() -> None:
    """Search and merge, and print one line for each carry and one for all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repository", type=Path)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--series", default="", help="the default one by default")
    parser.add_argument("--patchset", default="", help="the series' own by default")
    parser.add_argument("--most", type=int, default=40, help="commits to merge for each carry at most")
    args = parser.parse_args()
    options = BuildOptions(series=args.series, patchset=args.patchset, kernels="upstream")
    with open_job(Path(__file__).parent, options) as job, tempfile.TemporaryDirectory() as scratch:
        ready = prepare(
            job.repository,
            job.spec.deciding,
            version=job.spec.lock.release.version,
            find_base=job.find_base,
            offline=False,
        )
        # Both are only read; what the merges write goes to the scratch repository.
        repository = open_repository(Path(scratch, "git"))
        alternates = [job.store.git / "objects", _objects(args.repository)]
        Path(scratch, "git", "objects", "info").mkdir(exist_ok=True)
        text = "".join(f"{os.fspath(path)}\n" for path in alternates)
        Path(scratch, "git", "objects", "info", "alternates").write_text(text, encoding="utf-8")
        start, merges, seconds, cpu = fork(repository, args.old, args.new), 0, 0.0, 0.0
        whole, used_whole = 0, 0.0
        if start is None:
            raise SystemExit("the two ends have no common history there")
        old, new = (repository.tree_of(name) for name in (args.old, args.new))
        for one in ready:
            if one.change is None:
                continue
            ends = Trial(repository, [one.change])
            change = OutcomeChange(ends.outcome(old), ends.outcome(new))
            if change.before is change.after or change.after is OutcomeKind.ABSORBED:
                continue
            found = culprit_by_commit(repository, Trial(repository, [one.change]), change, args.old, args.new)
            points = between(repository, start, args.new, ends.paths)[: args.most]
            trial, began, before = Trial(repository, [one.change]), time.perf_counter(), sum(os.times()[:4])
            for point in points:
                trial.outcome(point.tree)
            taken, used = time.perf_counter() - began, sum(os.times()[:4]) - before
            merges, seconds, cpu = merges + trial.merges, seconds + taken, cpu + used
            before = sum(os.times()[:4])
            for point in points[:: max(1, len(points) // _ENGINE)]:
                request = replace(
                    job.merge_request(job.pristine, job.spec.lock.release.version),
                    pristine=point.tree, carries=(one.carry,), store=None,
                )  # fmt: skip
                merge_patchset(repository, request)
                whole += 1
            used_whole += sum(os.times()[:4]) - before
            told = "none" if found is None else f"{found.commit[:12]} {found.subject}"
            cost = "" if found is None else f"{found.merges} merges, {found.seconds:.2f} s; "
            print(f"{one.carry.name:26} {cost}{trial.merges / taken:4.0f} merges/s; {told}")
        repository.close()
    rates = f"{merges / seconds:.0f}/s by the clock, {merges / cpu:.0f}/s of CPU time"
    print(f"{'all':26} {merges} merges, {rates}")
    print(f"{'by the engine':26} {whole} merges, {whole / used_whole:.0f}/s of CPU time")


def _objects(folder: Path) -> Path:
    """Return the folder of a repository's objects, bare or not."""
    inner = folder / ".git" / "objects"
    return (inner if inner.is_dir() else folder / "objects").absolute()


if __name__ == "__main__":
    main()
