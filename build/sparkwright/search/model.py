"""The problem of a bisection, its evaluations and verdicts, and its result."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from sparkwright.base.config import Model
from sparkwright.base.text import clean

_NAMED = 3  # changes at most that a headline names

Axis = Literal["upstream", "carries", "kernels"]
Role = Literal["bad end", "good end", "search", "check"]


class StepVerdict(StrEnum):
    """The outcome of one evaluation, in the words of git and mozregression, and one more."""

    GOOD = "good"
    BAD = "bad"
    UNTESTABLE = "untestable"
    """It could not be realised or judged, or it failed with another signature than the bad end."""

    UNSTABLE = "unstable"
    """Repetitions disagree by more than the calibrated rate explains."""


class UntestableError(Exception):
    """A candidate cannot be made or judged; the text is the reason."""


class Evaluation(Model, frozen=True):
    """One run of a judge on one candidate.

    Attributes:
        signature: of the failure; empty if good.
        value: the metric's value over the good end's, for a judge that measures one.
    """

    verdict: StepVerdict
    signature: str = ""
    detail: str = ""
    seconds: float = 0.0
    evidence: str = ""
    value: float | None = None


class Change(Model, frozen=True):
    """One element of the difference between two build specs.

    Attributes:
        id: short unique name: a carry's name with the kind of its change, or a commit id.
    """

    id: str
    axis: Axis
    title: str
    requires: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class SearchProblem(Model, frozen=True):
    """A search between two build specs, as it is kept in the journal: a search is resumed with an equal one.

    Changes of the axis "upstream" stand in their order, oldest first; each of them needs those before it.
    Changes of other axes are a set.

    Attributes:
        start: the spec without any change, in words.
        end: the spec with all changes, in words.
        direction: "broke" if the start is good and the end is bad; "fixed" if the start is bad.
        deterministic: the judge gives the same verdict each time, so that one run of each end is enough.
        weights: by id of a change, how much more it is suspected than another of its axis; 1 where missing.
        any_failure: every failure counts as the one being chased, which is the bad end's otherwise.
        command: repeats one evaluation by hand; ``{applied}`` stands for the ids of the changes, with commas
            between, without those that others of them require.
    """

    start: str
    end: str
    judge: str
    changes: tuple[Change, ...]
    direction: Literal["broke", "fixed"] = "broke"
    deterministic: bool = False
    weights: dict[str, float] = msgspec.field(default_factory=dict)
    any_failure: bool = False
    command: str = ""


class SearchStep(Model, frozen=True):
    """One evaluation, as the search took it.

    Attributes:
        applied: ids of the changes that were applied, without those that others of them require.
        attempt: the number of this repetition of the candidate, from 1.
        verdict: the judge's, but untestable where it is bad with another signature.
    """

    applied: tuple[str, ...]
    attempt: int
    role: Role
    verdict: StepVerdict
    evaluation: Evaluation


class Calibration(Model, frozen=True):
    """The rates of failure at both ends, by repetition.

    Attributes:
        runs: repetitions of the bad end that could be judged.
        shown: those that were bad.
        repetitions: of a candidate, all of them good, before it counts as good.
        signature: of the failure being chased, normalised.
    """

    runs: int
    shown: int
    repetitions: int
    signature: str = ""

    @property
    def rate(self) -> float:
        """Return the share of runs in which the bad end was bad."""
        return self.shown / self.runs


class SearchResult(Model, frozen=True):
    """The end of a search.

    Attributes:
        kind: "culprit": one change. "interaction": changes that make the difference together alone. "range":
            neighbours in upstream's order with nothing testable between. "set": changes that could not be
            separated.
        changes: ids of the culprit, of the interacting changes, or of all that are left; in order.
        confidence: probability that the difference lies there, in view of all observations; `None` of what is
            left of a search without an answer, a range or a set.
        steps: evaluations in the order in which the search took them, those of the ends included.
        good: ids of the candidate next to the answer that is good, as in `SearchStep.applied`.
        check: commands that repeat both, the bad one first.
    """

    kind: Literal["culprit", "interaction", "range", "set"]
    changes: tuple[str, ...]
    confidence: float | None
    calibration: Calibration
    steps: tuple[SearchStep, ...]
    good: tuple[str, ...]
    bad: tuple[str, ...]
    check: tuple[str, ...] = ()

    @property
    def evaluations(self) -> int:
        """Return the number of all evaluations that the search took."""
        return len(self.steps)

    @property
    def searching(self) -> int:
        """Return the number of evaluations after both ends were reproduced."""
        return sum(step.role in {"search", "check"} for step in self.steps)

    @property
    def untestable(self) -> tuple[SearchStep, ...]:
        """Return the steps that could not be judged, and those whose repetitions disagree."""
        return tuple(
            step for step in self.steps if step.verdict in {StepVerdict.UNTESTABLE, StepVerdict.UNSTABLE}
        )


class CandidateJudge(Protocol):
    """Judge of candidates; an error of the infrastructure is raised, never a verdict."""

    @property
    def name(self) -> str:
        """The judge as a person would name it."""

    def evaluate(self, applied: frozenset[str], *, attempt: int, folder: Path) -> Evaluation:
        """Judge the start with the changes *applied* (by id); *folder* takes logs of this attempt.

        Raises:
            UntestableError: it cannot be made or judged.
        """


def headline(problem: SearchProblem, result: SearchResult) -> str:
    """Return the answer as one sentence."""
    named = [change for change in problem.changes if change.id in result.changes]
    few = len(named) <= _NAMED
    names = " and ".join(change.title for change in named) if few else f"{len(named)} changes"
    effect = f"{problem.direction} it"
    if result.kind == "range":
        return clean(f"One of {len(named)} upstream changes {effect}: {named[0].title} to {named[-1].title}")
    if result.kind == "set":
        return clean(f"What {effect} could not be separated: {names}")
    return clean(f"{names} {'together ' if result.kind == 'interaction' else ''}{effect}")
