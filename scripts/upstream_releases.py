"""Write docs/upstream-releases.md: the outcomes of merging the patchset onto each release, and notes on them.

The notes are ``later-releases`` of each carry's ``carry.toml``.

    python scripts/upstream_releases.py [--releases 0.25.1 0.26.0] [--notes]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.carries import load_carries
from sparkwright.merge import merge_patchset
from sparkwright.native.sources import gather_sources
from sparkwright.pipeline import BuildOptions, open_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkwright.carries import Carry

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "upstream-releases.md"
PATCHSET = "spark"
_TABLE = re.compile(r"^\| carry \|.*\n(?:\|.*\n)+", re.MULTILINE)
_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
_NOTES = re.compile(r"(<!-- notes: .*-->\n)(?:.*\n)*?(<!-- end of notes -->\n)")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def main() -> int:
    """Merge, and write the table and the notes below it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", nargs="+", metavar="VERSION", help="by default those of the table")
    parser.add_argument("--notes", action="store_true", help="write the notes only, without merging")
    args = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    found = _TABLE.search(text)
    if found is None:
        raise SystemExit(f"{PAGE} has no table that begins with '| carry |'")
    if not args.notes:
        releases = args.releases or _VERSION.findall(found[0].partition("\n")[0])
        outcomes = dict(zip(releases, merged(releases), strict=True))
        text = text.replace(found[0], table(outcomes))
    PAGE.write_text(with_notes(text, load_carries(ROOT / "carries")), encoding="utf-8")
    return 0


def with_notes(page: str, carries: Mapping[str, Carry]) -> str:
    """Return *page* with the notes of those *carries* that its table has, in the order of the table."""
    named = [carries[name] for name in _ROW.findall(page) if name in carries]
    notes = "".join(note(carry.name, carry.spec.later_releases) for carry in named)
    written, count = _NOTES.subn(lambda found: f"{found[1]}\n{notes}\n{found[2]}", page)
    if count != 1:
        raise SystemExit(f"{PAGE} has no '<!-- notes: -->' and '<!-- end of notes -->', or has them twice")
    return written


def note(name: str, text: str) -> str:
    """Return an item of a list in Markdown; none for a carry without notes."""
    lines = text.strip().splitlines()
    return "\n  ".join([f"* **`{name}`**: {lines[0]}", *lines[1:]]) + "\n" if lines else ""


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
    """Return the table in Markdown: a row for each carry, a column for each release."""
    names = next(iter(outcomes.values()))
    rows = [
        ["carry", *outcomes],
        *([f"`{name}`", *(kinds[name] for kinds in outcomes.values())] for name in names),
    ]
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + "---|" * (1 + len(outcomes)), *body, ""])


if __name__ == "__main__":
    sys.exit(main())
