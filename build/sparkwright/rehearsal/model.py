"""Options and results of a rehearsal, its report, and a tree that a server can be started from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import sha256_file, to_json
from sparkwright.engine.outcomes import CheckOutcome
from sparkwright.merge.report import MergeReport, OutcomeKind
from sparkwright.store.disk import storing, write_atomically

Verdict = Literal["passed", "failed", "undecided"]

PACKAGE = "vllm/"
"""Beginning of the paths of vLLM's own Python."""

SPECULATION = "speculation"
"""Name of the check that serves with n-gram speculation, on servers of its own."""

PARITY = "parity"
"""Name of the check that needs a pristine server."""

DEFAULT = ("boot", "coherence", "crash", "prefix", PARITY, SPECULATION)
"""The checks of a rehearsal: those of `sparkwright.verify` with these names, and `SPECULATION`."""


@dataclass(frozen=True)
class RehearsalOptions:
    """The user's choices.

    Attributes:
        checks: names of the checks to run, see `DEFAULT`.
        out: folder for the results; one in dist/rehearsal/ by default. A second run continues the first.
        seed: of prompts; another seed asks other ones.
    """

    checks: tuple[str, ...] = DEFAULT
    out: Path | None = None
    seed: int = 0


class WrittenFile(Model, frozen=True):
    """A result file: its path, its size in bytes, and its digest."""

    path: str
    size: int
    sha256: str

    @classmethod
    def at(cls, path: Path) -> WrittenFile:
        """Return what is said of the file at *path*."""
        return cls(path=str(path), size=path.stat().st_size, sha256=sha256_file(path))


class RehearsalResult(Model, frozen=True):
    """The result of a rehearsal.

    Attributes:
        verdict: the worst of the checks' verdicts.
        exact: true if that is the release that the patchset was merged onto.
        statements: what the result holds for, and what it does not, one sentence each.
    """

    verdict: Verdict
    checks: tuple[CheckOutcome, ...]
    version: str
    exact: bool
    report: str
    seconds: float
    statements: tuple[str, ...] = ()
    files: tuple[WrittenFile, ...] = ()


@dataclass(frozen=True)
class ServedTree:
    """An installed vLLM for the CPU, with some of its Python files replaced.

    Attributes:
        key: digest of everything in it, 16 hex digits.
        recipe: the recipe to serve, a TOML file with the path of the model in it.
        kept: files of the wheel that differ from the release's, and were not replaced though changes name
            them.
    """

    python: Path
    key: str
    version: str
    recipe: Path
    kept: tuple[str, ...] = ()


def worst(checks: tuple[CheckOutcome, ...]) -> Verdict:
    """Return the verdict of all *checks* that were not skipped; of none at all it is undecided."""
    found = {check.verdict for check in checks}
    if "failed" in found:
        return "failed"
    return "undecided" if "undecided" in found or "passed" not in found else "passed"


# The report ---------------------------------------------------------------------------------------

DATA = "rehearsal.json"


def statements(report: MergeReport, served: ServedTree, *, wanted: str) -> tuple[str, ...]:
    """Return what was served, and what of the patchset was not.

    *wanted* is the version that was to be rehearsed.
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
    """Write *result* into *folder*; return it with every file's size and digest.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    with storing(f"writing {folder}", instead="give another folder with --out"):
        write_atomically(folder / DATA, to_json(to_builtins(result)) + b"\n")
    paths = [folder / DATA, *sorted(folder.glob("*/report.html"))]
    return replace(result, files=tuple(map(WrittenFile.at, paths)))
