"""Lowest scores of evaluation tasks that a recipe's server must reach, each with its source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from sparkwright.base.config import Model
from sparkwright.base.errors import ConfigError


class EvalBound(Model, frozen=True):
    """The lowest score of one task.

    Attributes:
        task: name of a task of lm-evaluation-harness.
        least: the lowest score in the harness's own unit; the highest, of metrics of which less is better.
        source: public address or record that the bound comes from.
        metric: the metric with its filter, as reports name it, such as ``exact_match (strict-match)``; every
            metric of the task if empty.
        settings: settings of the source that the score depends on, such as the number of examples.
    """

    task: str
    least: float
    source: str
    metric: str = ""
    settings: str = ""

    @property
    def name(self) -> str:
        """Task and metric, as reports name a score; the task alone for all of its metrics."""
        return f"{self.task} {self.metric}".rstrip()

    def __str__(self) -> str:
        settings = f", {self.settings}" if self.settings else ""
        return f"{self.name} at least {self.least:g} ({self.source}{settings})"


def require_usable_bounds(path: Path, bounds: Sequence[EvalBound]) -> None:
    """Refuse bounds that judge nothing, or whose source is not stated.

    Args:
        path: of the recipe.
        bounds: all of it.

    Raises:
        ConfigError: one has no task, no source or no finite score, or two are of the same score.
    """
    names = [one.name for one in bounds]
    found = [
        *(f"{one.name or 'a bound'} names no task" for one in bounds if not one.task.strip()),
        *(f"the bound of {one.name} has no source" for one in bounds if not one.source.strip()),
        *(f"the bound of {one.name} is {one.least}" for one in bounds if not math.isfinite(one.least)),
        *(f"{name} has several bounds" for name in dict.fromkeys(names) if names.count(name) > 1),
    ]
    if found:
        raise ConfigError(
            f"{path} does not follow its format",
            because="; ".join(found),
            next_step="give each [[evaluation]] a task, a lowest score, and the source of that score",
        )
