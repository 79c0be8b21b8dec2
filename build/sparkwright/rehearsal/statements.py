"""Statements for the report: the served release and the carries that were left out of it."""

from __future__ import annotations

from sparkwright.merge import MergeReport, OutcomeKind
from sparkwright.rehearsal.model import ServedTree
from sparkwright.rehearsal.tree import PACKAGE


def statements(report: MergeReport, served: ServedTree, *, wanted: str) -> tuple[str, ...]:
    """Return what was served, and what of the patchset was not.

    Args:
        report: the merge that was served.
        served: the tree that was served.
        wanted: the version that was to be rehearsed.
    """
    in_tree = [outcome for outcome in report.outcomes if outcome.kind.in_tree]
    shown = [one.carry for one in in_tree if not one.source and any(map(_is_served, one.paths))]
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


def _is_served(path: str) -> bool:
    return path.startswith(PACKAGE)
