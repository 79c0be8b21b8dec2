"""The scores that lm-evaluation-harness wrote: of each task, metric and filter, question by question."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.base.errors import ConfigError
from sparkwright.verify.statistics import ratio_interval, share_interval

LEVEL = 0.95


@dataclass(frozen=True)
class TaskScore:
    """The score of one task by one metric.

    Attributes:
        metric: the metric, with the filter of answers where there is one.
        value: the score as the harness reports it.
        by_question: the metric of each question, by its number and digest; empty for metrics of the whole.
    """

    task: str
    metric: str
    value: float
    by_question: Mapping[str, float]
    higher_is_better: bool = True

    @property
    def name(self) -> str:
        """Task and metric, such as ``gsm8k exact_match``."""
        return f"{self.task} {self.metric}"

    @property
    def binary(self) -> bool:
        """Tell if every question is right or wrong."""
        return bool(self.by_question) and set(self.by_question.values()) <= {0.0, 1.0}

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval: Wilson's where questions are right or wrong, of their mean where they are rated.

        `None` without questions, as of groups of tasks.
        """
        values = list(self.by_question.values())
        if self.binary:
            return share_interval(int(sum(values)), len(values), LEVEL)
        if len(values) < 2 or not all(map(math.isfinite, values)):  # noqa: PLR2004 - no variance
            return None
        _, low, high = ratio_interval(values, [1.0] * len(values), LEVEL)
        return low, high

    def __str__(self) -> str:
        shown = f"{self.value:.3f}"
        if (interval := self.interval) is not None:
            shown += f" ({interval[0]:.3f} to {interval[1]:.3f})"
        return f"{shown} of {len(self.by_question)} questions" if self.by_question else shown


def read_scores(folder: Path) -> list[TaskScore]:
    """Return the scores in the newest results below *folder*, by task and metric.

    Raises:
        ConfigError: there are none, or they cannot be read.
    """
    found = sorted(folder.rglob("results_*.json"))
    if not found:
        raise ConfigError(
            f"{folder} holds no results of lm-evaluation-harness", because="there is no results_*.json"
        )
    try:
        told = json.loads(found[-1].read_text(encoding="utf-8"))
        return [score for task in sorted(told["results"]) for score in _of_task(found[-1], told, task)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{found[-1]} cannot be read", because=repr(error)) from error


def _of_task(path: Path, told: dict[str, Any], task: str) -> list[TaskScore]:
    better = told.get("higher_is_better", {}).get(task, {})
    samples = _samples(path, task)
    scores = []
    for key, value in told["results"][task].items():
        metric, comma, chosen = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        questions = {
            f"{sample['doc_id']} {sample['doc_hash']}": float(sample[metric])
            for sample in samples
            if sample.get("filter", chosen) == chosen and isinstance(sample.get(metric), (int, float))
        }
        name = metric if chosen in {"", "none"} else f"{metric} ({chosen})"
        higher = better.get(metric) is not False
        scores.append(TaskScore(task, name, float(value), questions, higher))
    return scores


def _samples(path: Path, task: str) -> list[dict[str, Any]]:
    """Return the lines of the task's questions that were written together with the results at *path*."""
    stamp = path.stem.removeprefix("results_")
    lines = path.with_name(f"samples_{task}_{stamp}.jsonl")
    if not lines.exists():  # of a group, whose tasks have files of their own
        return []
    return [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines() if line.strip()]
