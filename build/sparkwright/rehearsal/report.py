"""The result files of a rehearsal: a page and JSON, beside the reports of `verify`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sparkwright.base.digests import sha256_file, to_json
from sparkwright.rehearsal.model import RehearsalResult
from sparkwright.store import storing, write_atomically

PAGE, DATA = "rehearsal.md", "rehearsal.json"


def write_report(result: RehearsalResult, folder: Path) -> RehearsalResult:
    """Write the page and the data into *folder*; return *result* with every file's size and digest.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    with storing(f"writing {folder}", instead="give another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / PAGE, _page(result, folder).encode())
        write_atomically(folder / DATA, to_json(result.described) + b"\n")
    paths = [folder / PAGE, folder / DATA, *sorted(folder.glob("*/report.html"))]
    return replace(result, files=tuple((path, path.stat().st_size, sha256_file(path)) for path in paths))


def _page(result: RehearsalResult, folder: Path) -> str:
    rows = [f"| {one.name} | {one.verdict} | {_cell(one.detail)} |" for one in result.checks]
    links = [
        f"* [{path.parent.name}]({path.relative_to(folder).as_posix()})"
        for path in sorted(folder.glob("*/report.html"))
    ]
    return "\n".join(
        [
            f"# Rehearsal on vllm {result.version}: {result.verdict}",
            "",
            *(f"* {statement}" for statement in result.statements),
            "",
            "| check | verdict | because |",
            "|---|---|---|",
            *rows,
            "",
            *links,
            "",
        ]
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
