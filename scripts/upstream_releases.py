"""Record what becomes of every series' carries on upstream's later releases; docs/adding-a-carry.md shows it.

Outcomes are those of merges, and a mark says that a proof which is recorded beside the carry stands for one.
No probe is run: ``sparkwright carry prove --onto VERSION`` does that, and records what it finds. What a
dependency's source would be needed for, and cannot be had, stays as it is recorded.

    python scripts/upstream_releases.py [--releases 0.25.1 0.26.0]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from sparkwright.base.config import Model
from sparkwright.git.repository import open_repository
from sparkwright.merge.engine import merge_patchset
from sparkwright.native.sources import gather_sources
from sparkwright.pipeline.checkout import open_checkout, series_names
from sparkwright.pipeline.job import Job, make_job
from sparkwright.pipeline.options import BuildOptions
from sparkwright.pipeline.proofs import evidence_of
from sparkwright.store.paths import open_store

Column = Mapping[str, str]  # what a release's column has for each carry, in order

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "patchsets" / "later-releases"
RELEASES = ("0.25.1", "0.27.1", "0.30.0", "0.33.0")
MARK = "✓"


def main() -> int:
    """Merge, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", nargs="+", metavar="VERSION", default=RELEASES)
    args = parser.parse_args()
    for series, columns in columns_of(sorted(series_names(ROOT)), args.releases, recorded()).items():
        if columns:
            text = json.dumps(columns, ensure_ascii=False, indent=2)
            (RECORDS / f"{series}.json").write_text(f"{text}\n", encoding="utf-8")
    return 0


def recorded() -> dict[str, dict[str, Column]]:
    """Return the columns of each release for each series that has later ones."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDS.glob("*.json"))
    }


def options_of(series: str) -> BuildOptions:
    """Return the options of a job with native kernels, so that no carry is left out, if the lock has them."""
    native = open_checkout(ROOT, series).lock.native is not None
    return BuildOptions(series=series, kernels="native" if native else "upstream")


def columns_of(
    names: Sequence[str],
    releases: Sequence[str],
    known: Mapping[str, Mapping[str, Column]],
) -> dict[str, dict[str, Column]]:
    """Return the column of each of *releases* for each series of *names*.

    Args:
        names: the series.
        releases: the releases.
        known: the columns that are recorded: a cell stays for a carry whose source the store lacks.
    """
    with contextlib.ExitStack() as stack:
        store = open_store()
        repository = stack.enter_context(contextlib.closing(open_repository(store.git)))
        jobs = {
            series: make_job(open_checkout(ROOT, series), store, repository, options_of(series))
            for series in names
        }
        for job in jobs.values():
            gather(job)
        found = {
            series: {
                one: outcomes_on(job, one)
                for one in releases
                if Version(one) > Version(job.spec.lock.release.version)
            }
            for series, job in jobs.items()
        }
    words = {"proved": f" {MARK}", "not needed": f", not needed {MARK}"}
    return {
        series: {
            release: cells(one, words, known.get(series, {}).get(release, {}))
            for release, one in made.items()
        }
        for series, made in found.items()
    }


def gather(job: Job) -> None:
    """Fetch the dependencies' sources that carries change, where that can be."""
    sources = {carry.spec.source for carry in job.spec.carries if carry.spec.source is not None}
    if job.spec.lock.native is not None:
        gather_sources(job.spec.lock, job.access, wanted=sorted(sources))


class ReleaseOutcomes(Model, frozen=True):
    """The outcomes of a patchset on a release.

    Attributes:
        kinds: the kind of outcome of each carry, in order.
        evidence: what stands behind it, of proofs beside the carries alone; see `evidence_of`.
        lacking: carries whose dependency's source the store does not have.
        rests: of a superseded carry the one that does what upstream's answer leaves out.
    """

    kinds: dict[str, str]
    evidence: dict[str, str]
    lacking: tuple[str, ...] = ()
    rests: dict[str, str] = {}  # noqa: RUF012 - a frozen model's


def outcomes_on(job: Job, release: str) -> ReleaseOutcomes:
    """Merge the patchset of *job* onto *release*; no probe is run."""
    report = merge_patchset(job.repository, job.merge_request(job.source.release(release), release))
    carries = job.spec.carries
    sources = {None, *job.available_sources}
    entries = {carry.name: carry.superseded_in(release) for carry in carries}
    return ReleaseOutcomes(
        kinds={carry.name: str(report.outcome(carry.name).kind) for carry in carries},
        evidence={carry.name: evidence_of(job, report, carry, recorded=True) for carry in carries},
        lacking=tuple(carry.name for carry in carries if carry.spec.source not in sources),
        rests={name: entry.rest for name, entry in entries.items() if entry is not None and entry.rest},
    )


def cells(found: ReleaseOutcomes, words: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return one cell of a table for each carry; one superseded in part names the carry for the rest.

    Args:
        found: the outcomes.
        words: what is added to a cell for evidence.
        known: cells that stay for carries whose source is lacking.
    """
    parts = {name: f" in part: `{rest}`" for name, rest in found.rests.items()}
    made = {
        name: kind + parts.get(name, words.get(found.evidence[name], ""))
        for name, kind in found.kinds.items()
    }
    lost = set(found.lacking)
    return {name: known.get(name, cell) if name in lost else cell for name, cell in made.items()}


if __name__ == "__main__":
    sys.exit(main())
