"""Write a rehearsal's result files beside the reports of `verify`, and state which releases it holds for."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import to_json
from sparkwright.base.text import code_span
from sparkwright.merge.report import MergeReport, OutcomeKind
from sparkwright.rehearsal.model import PACKAGE, RehearsalResult, ServedTree, WrittenFile
from sparkwright.store import storing, write_atomically

PAGE, DATA = "rehearsal.md", "rehearsal.json"


def statements(report: MergeReport, served: ServedTree, *, wanted: str) -> tuple[str, ...]:
    """Return what was served, and what of the patchset was not.

    Args:
        report: the merge that was served.
        served: the tree that was served.
        wanted: the version that was to be rehearsed.
    """
    in_tree = [outcome for outcome in report.outcomes if outcome.kind.in_tree]
    ours = [one for one in in_tree if not one.source]
    shown = [one.carry for one in ours if any(path.startswith(PACKAGE) for path in one.paths)]
    compiled = [one for one in report.outcomes if one.kind is OutcomeKind.LEFT_OUT]
    unseen = [one.carry for one in (*in_tree, *compiled) if one.carry not in shown]
    left_out = [outcome.carry for outcome in report.outcomes if outcome.kind.blocks_build]
    count = f"{len(shown)} of {len(report.outcomes)} carries"
    found = [f"The Python of {count} was served, over upstream's wheel for the CPU of vllm {served.version}."]
    if wanted != served.version:
        found.append(
            f"There is no wheel for the CPU of vllm {wanted}: the carries were merged onto {served.version},"
            " and the result holds for them there. Upstream's changes since then, and what they do to the"
            " carries, were not rehearsed."
        )
    if left_out:
        found.append(f"Left out, since they do not merge onto {served.version}: {', '.join(left_out)}.")
    if unseen:
        found.append(f"Nothing of these is Python of vLLM, so that nothing of them ran: {', '.join(unseen)}.")
    if served.kept:
        found.append(
            f"The wheel for the CPU has its own form of {', '.join(served.kept)}, which was kept: the"
            " patchset's change to it did not run."
        )
    found.append("Kernels, graphs, CUDA backends and models other than Llama's did not run.")
    return tuple(found)


def write_report(result: RehearsalResult, folder: Path) -> RehearsalResult:
    """Write the page and the data into *folder*; return *result* with every file's size and digest.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    with storing(f"writing {folder}", instead="give another folder with --out"):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / PAGE, _page(result, folder).encode())
        write_atomically(folder / DATA, to_json(to_builtins(result)) + b"\n")
    paths = [folder / PAGE, folder / DATA, *sorted(folder.glob("*/report.html"))]
    return replace(result, files=tuple(map(WrittenFile.at, paths)))


def _page(result: RehearsalResult, folder: Path) -> str:
    rows = [f"| {one.name} | {one.verdict} | {code_span(one.detail)} |" for one in result.checks]
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
