"""Evaluation tasks by lm-evaluation-harness, which runs as a process in an environment of its own.

`run` starts it, `scores` reads what it wrote, `judge` makes findings of that.
"""

from sparkwright.verify.evaluation.judge import EvalLimits, evaluation_run
from sparkwright.verify.evaluation.run import EvalRequest, evaluate
from sparkwright.verify.evaluation.scores import TaskScore, read_scores

__all__ = ["EvalLimits", "EvalRequest", "TaskScore", "evaluate", "evaluation_run", "read_scores"]
