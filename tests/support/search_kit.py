"""Planted bisections: problems of n changes, and judges that know the culprit."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.search.model import Axis, Change, Evaluation, SearchProblem, SearchResult, StepVerdict
from sparkwright.search.strategy import Question, solve

Applied = frozenset[str]

SIGNATURE = "AssertionError: 3 of 4 answers differ"


def problem(n: int = 17, axis: Axis = "carries", *, deterministic: bool = True, **rest) -> SearchProblem:
    """Return a problem of *n* changes ``c1`` to ``cn``."""
    changes = tuple(
        Change(id=f"c{number}", axis=axis, title=f"change {number}") for number in range(1, n + 1)
    )
    return SearchProblem(
        **{
            "start": "old",
            "end": "new",
            "judge": "planted",
            "changes": changes,
            "deterministic": deterministic,
        }
        | rest
    )


@dataclass
class Judge:
    """Answers by a rule, and keeps what it was asked."""

    rule: Callable[[Applied], bool | Evaluation]
    rate: float = 1.0
    seed: int = 0
    name: str = "planted"
    asked: list[tuple[Applied, int]] = field(default_factory=list)

    def evaluate(self, applied: Applied, *, attempt: int, folder: Path) -> Evaluation:
        self.asked.append((applied, attempt))
        found = self.rule(applied)
        if isinstance(found, Evaluation):
            return found
        chance = random.Random(f"{self.seed} {attempt} {sorted(applied)}").random()
        return bad() if found and chance < self.rate else Evaluation(verdict=StepVerdict.GOOD)


def bad(signature: str = SIGNATURE) -> Evaluation:
    """Return a bad evaluation."""
    return Evaluation(verdict=StepVerdict.BAD, signature=signature)


def untestable() -> Evaluation:
    """Return an evaluation of a candidate that could not be realised."""
    return Evaluation(verdict=StepVerdict.UNTESTABLE, detail="conflict")


def run(asked: SearchProblem, judge: Judge) -> SearchResult:
    """Search without a journal, and check that nothing is asked twice."""

    def answer(question: Question) -> Evaluation:
        return judge.evaluate(question.applied, attempt=question.attempt, folder=Path())

    result = solve(asked, answer)
    assert len(set(judge.asked)) == len(judge.asked)
    return result
