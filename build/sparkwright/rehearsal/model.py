"""Options and results of a rehearsal, and a tree that a server can be started from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkwright.base.config import Model
from sparkwright.base.digests import sha256_file
from sparkwright.engine.outcomes import CheckOutcome

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
        offline: use no network.
        out: folder for the results; one in dist/rehearsal/ by default. A second run continues the first.
        against_pristine: compare answers with those of the unpatched wheel.
        seed: of prompts; another seed asks other ones.
    """

    checks: tuple[str, ...] = DEFAULT
    offline: bool = False
    out: Path | None = None
    against_pristine: bool = True
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
        version: the release of the wheel for the CPU.
        exact: true if that is the release that the patchset was merged onto.
        report: path of the page to read.
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
