"""Evaluation by other programs, each a process in an environment of its own.

`run` starts lm-evaluation-harness, `scores` reads what it wrote, `judge` makes findings of that. `benchy`
runs llama-benchy and attaches its figures.
"""

from sparkwright.verify.evaluation.benchy import run_benchy
from sparkwright.verify.evaluation.judge import EvalLimits, evaluation_run
from sparkwright.verify.evaluation.run import EvalRequest, evaluate
from sparkwright.verify.evaluation.scores import TaskScore, read_scores

__all__ = [
    "EvalLimits",
    "EvalRequest",
    "TaskScore",
    "evaluate",
    "evaluation_run",
    "read_scores",
    "run_benchy",
]
