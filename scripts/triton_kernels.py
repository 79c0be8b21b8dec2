"""Write docs/triton-kernels.md: what the Triton kernels of every series' merged tree take on a GB10.

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
from sparkwright.probe.launches import LIMIT, KernelLaunch, KernelReport, KernelSurvey, too_much
from sparkwright.store.paths import open_store

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "triton-kernels.md"
_HEAD = """\
# Triton kernels on a GB10

`make triton` writes this page; do not edit it. A block of threads on compute capability 12.1 may have
101,376 bytes of shared memory, and Triton refuses the launch of a kernel that needs more, when it comes.
Compilers need no card: upstream's own Python launches its kernels here on a platform that says it is a GB10,
with the shapes of the recipes (heads of 64 to 512, latents of 512 + 64 and 256 + 64, 0 to 16 drafts, caches
of 16 bits, FP8 and NVFP4) and with those of upstream's own tests. Each launch is compiled for 12.1 and not
run; autotuned kernels are, in every configuration that upstream's pruning leaves.

The environment of probes compiles; a release may pin another version of Triton. A kernel has a row if a
recipe's launch takes more than a quarter of the shared memory, or any launch spills registers: with the
launch that takes most of those that a recipe may come to.
"""


def main() -> int:
    """Survey, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", nargs="+", default=sorted(series_names(ROOT)))
    parser.add_argument("--page", type=Path, default=PAGE)
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
    args.page.write_text("\n".join([_HEAD, *sections]), encoding="utf-8")
    return 1 if faults else 0


HEAD = ("kernel", "launches", "shared memory", "registers", "spills, bytes a thread", "by")


def rows(report: KernelReport) -> Iterator[tuple[str, ...]]:
    """Return a row for each kernel that is refused, takes much of a recipe's shared memory, or spills there.

    It has the most that any of the kernel's launches takes that can be chosen.
    """
    kernels: dict[str, list[KernelLaunch]] = defaultdict(list)
    for one in report.launches.values():
        kernels[one.kernel].append(one)
    for name, some in sorted(kernels.items()):
        good = [one for one in some if not one.refused]
        fitting = [one for one in good if not one.tuning or one.shared <= LIMIT] or good
        if not good:
            yield name, str(len(some)), "", "", "", "refused: " + some[0].refused[:80]
            continue
        most = max(fitting, key=lambda one: (not one.of_test, one.shared))
        spilling = max(fitting, key=lambda one: one.spills)
        if most.of_test or not (spilling.spills or most.shared > LIMIT // 4):
            continue
        spills = f"{spilling.spills} ({spilling.origin})" if spilling.spills else "0"
        yield (
            name,
            str(len(some)),
            str(most.shared),
            str(max(one.registers for one in fitting)),
            spills,
            most.origin,
        )


def page_section(title: str, report: KernelReport) -> str:
    """Return a section of the page on kernels, in Markdown."""
    done, every = len(report.compiled()), len(report.functions)
    beyond = sum(1 for one in report.launches.values() if one.tuning and too_much(one))
    tests = [
        one for one in report.launches.values() if one.of_test and not one.refused and one.shared > LIMIT
    ]
    faults, table = report.faults(), list(rows(report))
    left = report.left()
    refused = [name for why, names in left.items() if why.startswith("refused") for name in names]
    counted = f"{len(report.launches)} launches; **{done} of {every} functions compiled**."
    lines = [
        f"## {title}", "",
        f"Triton {report.triton}. {counted}", "",
        f"{len(faults)} faults:" if faults else "Every launch that was asked for fits.", "",
        *(f"* **{fault}**" for fault in faults), *([""] if faults else []),
        f"Tuning passes over {beyond} configurations of autotuned kernels, which need too much.",
        f"Of upstream's tests, with shapes of no recipe, {len(tests)} launches would not fit.", "",
        *_table(HEAD, table), "",
        f"Not compiled: {'; '.join(f'{why} ({len(names)})' for why, names in left.items()) or 'none'}.",
        *(f"* refused: `{_short(name)}`" for name in refused),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _short(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _table(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> list[str]:
    rule = "|---|" + "---:|" * 3 + "---|" * (len(head) - 4)
    return [
        f"| {' | '.join(head)} |",
        rule,
        *(f"| `{_short(row[0])}` | {' | '.join(row[1:])} |" for row in body),
    ]


if __name__ == "__main__":
    sys.exit(main())
