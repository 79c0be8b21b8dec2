"""Write the table of docs/upstream-releases.md: what merging the patchset onto each release finds.

python scripts/upstream_releases.py [--releases 0.25.1 0.26.0]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from sparkwright.merge import merge_patchset
from sparkwright.native.sources import gather_sources
from sparkwright.pipeline import BuildOptions, open_job

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "upstream-releases.md"
PATCHSET = "spark"
_TABLE = re.compile(r"^\| carry \|.*\n(?:\|.*\n)+", re.MULTILINE)
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def main() -> int:
    """Merge, and write the table; return 1 if the page describes one of the carries nowhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", nargs="+", metavar="VERSION", help="by default those of the table")
    text = PAGE.read_text(encoding="utf-8")
    found = _TABLE.search(text)
    if found is None:
        raise SystemExit(f"{PAGE} has no table that begins with '| carry |'")
    releases = parser.parse_args().releases or _VERSION.findall(found[0].partition("\n")[0])
    outcomes = dict(zip(releases, merged(releases), strict=True))
    PAGE.write_text(text.replace(found[0], table(outcomes)), encoding="utf-8")
    carries = next(iter(outcomes.values()))
    silent = [name for name in carries if f"* **`{name}`**" not in text]
    for name in silent:
        sys.stderr.write(f"{PAGE.relative_to(ROOT)} does not describe {name}: add '* **`{name}`**: …'\n")
    return 1 if silent else 0


def merged(releases: list[str]) -> list[dict[str, str]]:
    """Return, for each of *releases*, the outcome of every carry by name, with native kernels."""
    with open_job(ROOT, BuildOptions(patchset=PATCHSET, kernels="native")) as job:
        sources = {carry.spec.source for carry in job.spec.carries if carry.spec.source is not None}
        gather_sources(job.spec.lock, job.access, wanted=sorted(sources))
        reports = [
            merge_patchset(job.repository, job.merge_request(job.source.release(release), release))
            for release in releases
        ]
    return [{outcome.carry: str(outcome.kind) for outcome in report.outcomes} for report in reports]


def table(outcomes: dict[str, dict[str, str]]) -> str:
    """Return the table, in Markdown: a row for each carry, a column for each release."""
    names = next(iter(outcomes.values()))
    rows = [
        ["carry", *outcomes],
        *([f"`{name}`", *(kinds[name] for kinds in outcomes.values())] for name in names),
    ]
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * (1 + len(outcomes)), *body, ""])


if __name__ == "__main__":
    sys.exit(main())
