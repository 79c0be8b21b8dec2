"""Evaluation by lm-evaluation-harness, a process in an environment of its own; its scores are judged here."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sparkwright.base.errors import ConfigError, ProcessError, ServerError, ToolError
from sparkwright.base.events import task
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.runtime import make_environment
from sparkwright.verify.checks.answers import Solved
from sparkwright.verify.journal import Run

RESULTS = "evaluation"
"""Name of the folder of the harness's files in a run's."""
CHECK = "eval"
SURE = 0.02
FEW_QUESTIONS = 20
_HARNESS = "lm-evaluation-harness"
_REQUIREMENT = "lm-eval[api]==0.4.13"  # about 580 MB, no torch
_LAST_LINES = 12
_LIMIT_S = 12 * 3600


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

    def __str__(self) -> str:
        of = f" of {len(self.by_question)} questions" if self.by_question else ""
        return f"{self.value:.3f}{of}"


@dataclass(frozen=True)
class EvalRequest:
    """The server, and what to evaluate."""

    url: str
    model: str
    tasks: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    chat: bool = False
    concurrency: int = 8
    api_key: str = field(default="", repr=False)
    python: str = ""
    offline: bool = False


def evaluate(request: EvalRequest, folder: Path, cache: Path) -> list[TaskScore]:
    """Evaluate the tasks of *request* and return their scores; the harness's files stay in *folder*.

    Raises:
        ServerError: the harness cannot be installed, or it failed.
        NotInStoreError: it would have to be fetched, and the network is off.
    """
    from sparkwright.base.process.run import run

    python, out = _interpreter(request, cache), folder / RESULTS
    out.mkdir(parents=True, exist_ok=True)
    with task(f"run {_HARNESS}"):
        try:
            done = run([python, *_arguments(request, out)], env=_environment(request), timeout=_LIMIT_S)
        except (ProcessError, ToolError) as error:
            told = error.because.strip().splitlines()[-_LAST_LINES:]
            (out / "log").write_text(f"{error.what}\n{error.because}\n", encoding="utf-8")
            raise ServerError(
                f"{_HARNESS} failed",
                because="\n".join(told),
                next_step=f"see {out / 'log'}; tasks that rate given answers need a tokenizer: use others",
            ) from error
    (out / "log").write_text(f"{done.text}\n{done.stderr}", encoding="utf-8")
    return read_scores(out)


def _interpreter(request: EvalRequest, cache: Path) -> Path:
    """Return an interpreter that has the harness: the named one, this one, or one that is made."""
    if request.python:
        return Path(request.python)
    if find_spec("lm_eval") is not None:
        return Path(sys.executable)
    with task(f"install {_HARNESS}"):
        folder = cache / re.sub(r"\[\w+\]==", "-", _REQUIREMENT)
        return make_environment(_REQUIREMENT, folder, [_REQUIREMENT], offline=request.offline)


def _arguments(request: EvalRequest, out: Path) -> list[str]:
    kind = "chat/completions" if request.chat else "completions"
    model = {
        "model": request.model,
        "base_url": f"{request.url}/v1/{kind}",
        "tokenizer_backend": "none",
        "num_concurrent": str(request.concurrency),
        "max_retries": "1",
    }
    arguments = ["-m", "lm_eval", "run", "--tasks", ",".join(request.tasks)]
    arguments += ["--model", "local-chat-completions" if request.chat else "local-completions"]
    arguments += ["--model_args", ",".join(f"{name}={value}" for name, value in model.items())]
    arguments += ["--output_path", str(out), "--log_samples"]
    return [*arguments, *(["--apply_chat_template"] if request.chat else []), *request.arguments]


def _environment(request: EvalRequest) -> dict[str, str]:
    """Return the process's environment; the key travels in it, not on the command line."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}
    environment["OPENAI_API_KEY"] = request.api_key or "none"
    if request.offline:
        environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return environment


# Scores ------------------------------------------------------------------------------------------------


def read_scores(folder: Path) -> list[TaskScore]:
    """Return the scores in the newest results below *folder*, by task and metric.

    Raises:
        ConfigError: there are none, or they cannot be read.
    """
    found = sorted(folder.rglob("results_*.json"))
    if not found:
        raise ConfigError(
            f"{folder} holds no results of lm-evaluation-harness",
            because="there is no results_*.json",
            next_step="name the folder of an earlier 'sparkwright verify eval'",
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


# Findings: question by question against an earlier evaluation ------------------------------------------


def evaluation_run(
    request: EvalRequest,
    scores: Sequence[TaskScore],
    before: Sequence[TaskScore] = (),
) -> Run:
    """Return the findings on *scores* as a run of their own."""
    findings = [
        Finding(
            check=CHECK,
            name="tasks were evaluated",
            definition=f"{_HARNESS} put every question to the server and rated the answers.",
            verdict=Verdict.PASS if scores else Verdict.INCONCLUSIVE,
            cause="; ".join(f"{score.name} {score}" for score in scores)
            or f"no score of {', '.join(request.tasks)}",
            measured={score.name: str(score) for score in scores},
            threshold="none: scores are judged where --before is given",
        )
    ]
    if before:
        earlier = {one.name: one for one in before}
        findings += [_as_good_as(score, earlier.get(score.name)) for score in scores]
    return Run(
        manifest={
            "title": f"{request.model} at {request.url}",
            "profile": "evaluation",
            "checks": (CHECK,),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "url": request.url,
            "model": request.model,
            "tasks": ", ".join(request.tasks),
            "prompts": "chats" if request.chat else "raw",
        },
        findings=findings,
    )


def _as_good_as(score: TaskScore, before: TaskScore | None) -> Finding:
    """Return the finding on *score* beside the earlier one, over the questions of both."""
    verdict, cause = Verdict.NOT_APPLICABLE, "it was not evaluated before"
    measured: dict[str, float | str] = {}
    if before is not None:
        common = score.by_question.keys() & before.by_question.keys()
        if not (score.binary and before.binary and common):
            cause = "questions are not right or wrong, or are others"
        else:
            right = [{name: bool(hit) for name, hit in one.by_question.items()} for one in (before, score)]
            solved = Solved.of(*right)
            lost, won, p = len(solved.lost), solved.won, solved.p
            if not score.higher_is_better:
                lost, won = won, lost
            verdict = Verdict.FAIL if p < SURE and lost > won else Verdict.PASS
            verdict = Verdict.INCONCLUSIVE if len(common) < FEW_QUESTIONS else verdict
            cause = f"{solved.after} of {len(common)} questions, before {solved.before}"
            cause += f": {lost} lost and {won} won (p = {p:.4f})"
            measured = {"lost": lost, "won": won, "questions": len(common), "p": round(p, 5)}
    return Finding(
        check=CHECK,
        name=f"{score.name} is as good as before",
        definition="Questions that only one of two evaluations answers rightly (McNemar's exact test).",
        verdict=verdict,
        cause=cause,
        measured=measured,
        threshold=f"fails where more are lost than won and p < {SURE}; decides nothing with fewer than"
        f" {FEW_QUESTIONS} questions",
    )
