"""Verdicts, evaluations and candidates of a bisection."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

from sparkwright.base.config import Model

if TYPE_CHECKING:
    from pathlib import Path

Axis = Literal["upstream", "carries", "kernels", "requirements"]


class Verdict(StrEnum):
    """The outcome of one evaluation, in the words of git and mozregression, and one more."""

    GOOD = "good"
    BAD = "bad"
    UNTESTABLE = "untestable"
    """It could not be realised or judged, or it failed with another signature than the bad end."""

    UNSTABLE = "unstable"
    """Repetitions disagree by more than the calibrated rate explains."""


class Evaluation(Model, frozen=True):
    """One run of a judge on one candidate.

    Attributes:
        verdict: the outcome.
        signature: the failure without addresses, times and temporary paths; empty if good.
        detail: the reason, in words.
        seconds: wall-clock time, with the time to realise the candidate.
        evidence: path of the log or report; empty if there is none.
        value: the metric's value, for a judge that measures one.
    """

    verdict: Verdict
    signature: str = ""
    detail: str = ""
    seconds: float = 0.0
    evidence: str = ""
    value: float | None = None


class Change(Model, frozen=True):
    """One element of the difference between two build specs.

    Attributes:
        id: short unique name: a carry's name with the kind of its change, or a commit id.
        axis: the kind of difference.
        title: one line for people.
        requires: ids of changes without which it cannot be applied.
        files: paths that it touches, for priors.
    """

    id: str
    axis: Axis
    title: str
    requires: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class CandidateJudge(Protocol):
    """Judge of candidates; an error of the infrastructure is raised, never a verdict."""

    name: str

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Judge the good end with the changes *applied* (by id); *folder* takes logs of this attempt."""
