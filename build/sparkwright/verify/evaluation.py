"""Evaluation by other programs, each a process in an environment of its own.

lm-evaluation-harness rates answers to tasks, which are judged here; llama-benchy measures, and its figures
are attached: its own tables are those that users publish.
"""

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
from sparkwright.engine.server.environment import prepare_requirement
from sparkwright.verify.checks.answers import Solved
from sparkwright.verify.eval_scores import TaskScore, read_scores
from sparkwright.verify.run import Run

RESULTS = "evaluation"
"""Name of the folder of a tool's files in a run's."""
_TASK = re.compile(r"^task:\s*['\"]?([\w.-]+)", re.MULTILINE)
_LAST_LINES = 12
_LIMIT_S = 12 * 3600


@dataclass(frozen=True)
class EvalTool:
    """A tool, which is installed where neither this environment has it nor an interpreter was named.

    Attributes:
        module: the package to import.
        requirement: in pip's format, with an exact version.
        hint: next step where it failed, besides reading its log.
    """

    name: str
    module: str
    requirement: str
    hint: str


LM_EVAL = EvalTool(
    "lm-evaluation-harness",
    "lm_eval",
    "lm-eval[api]==0.4.13",  # about 580 MB, no torch
    "tasks that rate given answers need a tokenizer: use others",
)


@dataclass(frozen=True)
class EvalRequest:
    """The server, and what to evaluate.

    Attributes:
        url: the server's root.
        model: name of the model to request.
        tasks: names of the harness's own tasks, or YAML files of others.
        arguments: further ones of the tool's command line.
        limit: questions of each task; 0 for all.
        chat: send chats instead of raw prompts.
        python: interpreter of an environment with the tool; one is found or made by default.
        offline: fetch neither packages nor data sets.
    """

    url: str
    model: str
    tasks: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    limit: int = 0
    chat: bool = False
    concurrency: int = 8
    api_key: str = field(default="", repr=False)
    python: str = ""
    offline: bool = False


def evaluate(request: EvalRequest, folder: Path, cache: Path) -> list[TaskScore]:
    """Evaluate the tasks of *request* and return their scores; the harness's files stay in *folder*.

    Args:
        request: tasks and server.
        folder: of the run.
        cache: folder for the harness's environment.

    Raises:
        ConfigError: a task's file cannot be used.
        ServerError: the harness cannot be installed, or it failed.
        NotInStoreError: it would have to be fetched, and the network is off.
    """
    names, places = _tasks(request.tasks)
    out = folder / RESULTS
    run_tool(LM_EVAL, request, _arguments(request, names, places, out), out, cache)
    return read_scores(out)


def run_tool(tool: EvalTool, request: EvalRequest, arguments: Sequence[str], out: Path, cache: Path) -> None:
    """Run *tool* with *arguments* for its interpreter; its output stays in the file ``log`` of *out*.

    Raises:
        ServerError: the tool cannot be installed, or it failed.
        NotInStoreError: it would have to be fetched, and the network is off.
    """
    from sparkwright.base.process import run

    python = _interpreter(tool, request, cache)
    out.mkdir(parents=True, exist_ok=True)
    with task(f"run {tool.name}"):
        try:
            done = run(
                [python, *arguments, *request.arguments],
                env=_environment(request),
                timeout=_LIMIT_S,
            )
        except (ProcessError, ToolError) as error:
            told = error.because.strip().splitlines()[-_LAST_LINES:]
            (out / "log").write_text(f"{error.what}\n{error.because}\n", encoding="utf-8")
            raise ServerError(
                f"{tool.name} failed", because="\n".join(told), next_step=f"see {out / 'log'}; {tool.hint}"
            ) from error
    (out / "log").write_text(f"{done.text}\n{done.stderr}", encoding="utf-8")


def _tasks(tasks: tuple[str, ...]) -> tuple[list[str], list[Path]]:
    """Return the names of *tasks*, and the folders of those that are files.

    Raises:
        ConfigError: a file is missing, or names no task.
    """
    names, places = [], []
    for one in tasks:
        if not one.endswith((".yaml", ".yml")):
            names.append(one)
            continue
        path = Path(one).absolute()
        try:
            found = _TASK.search(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the task {one} cannot be read", because=str(error)) from error
        if found is None:
            raise ConfigError(
                f"{one} is no task of lm-evaluation-harness", because="it has no line 'task: NAME'"
            )
        names.append(found[1])
        places.append(path.parent)
    return names, list(dict.fromkeys(places))


def _interpreter(tool: EvalTool, request: EvalRequest, cache: Path) -> Path:
    """Return an interpreter that has *tool*: the named one, this one, or one that is made."""
    if request.python:
        return Path(request.python)
    if find_spec(tool.module) is not None:
        return Path(sys.executable)
    folder = cache / re.sub(r"\[\w+\]|==", "-", tool.requirement).replace("--", "-")
    with task(f"install {tool.name}"):
        return prepare_requirement(tool.requirement, folder, offline=request.offline)


def _arguments(request: EvalRequest, names: list[str], places: list[Path], out: Path) -> list[str]:
    kind = "chat/completions" if request.chat else "completions"
    model = {
        "model": request.model,
        "base_url": f"{request.url}/v1/{kind}",
        "tokenizer_backend": "none",
        "num_concurrent": str(request.concurrency),
        "max_retries": "1",
    }
    arguments = ["-m", "lm_eval", "run", "--tasks", ",".join(names)]
    arguments += ["--model", "local-chat-completions" if request.chat else "local-completions"]
    arguments += ["--model_args", ",".join(f"{name}={value}" for name, value in model.items())]
    arguments += ["--output_path", str(out), "--log_samples"]
    if request.chat:
        arguments.append("--apply_chat_template")
    if request.limit:
        arguments += ["--limit", str(request.limit)]
    for place in places:
        arguments += ["--include_path", str(place)]
    return arguments


def _environment(request: EvalRequest) -> dict[str, str]:
    """Return the process's environment; the key travels in it, not on the command line."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}
    environment["OPENAI_API_KEY"] = request.api_key or "none"
    if request.offline:
        environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return environment


# Findings on tasks: against a threshold, or question by question against an earlier evaluation ------------

CHECK = "eval"
SURE = 0.02
FEW_QUESTIONS = 20


@dataclass(frozen=True)
class EvalLimits:
    """The figures that scores are judged by.

    Attributes:
        least: lowest score by the task's name, or by task and metric.
        sources: source of such a score by the same name, where it is known.
        before: scores of an earlier evaluation, such as that of the version before.
    """

    least: Mapping[str, float] = field(default_factory=dict)
    before: Sequence[TaskScore] = ()
    sources: Mapping[str, str] = field(default_factory=dict)


def evaluation_run(request: EvalRequest, scores: Sequence[TaskScore], limits: EvalLimits) -> Run:
    """Return the findings on *scores* as a run of their own."""
    findings = [_evaluated(request, scores)]
    for score in scores:
        findings += [_thresholds(score, limits), _compared(score, limits)]
    findings += [_unscored(name) for name in limits.least if not _named(name, scores)]
    return run_of(
        request, findings, tasks=", ".join(request.tasks), prompts="chats" if request.chat else "raw"
    )


def run_of(request: EvalRequest, findings: Sequence[Finding], **told: str) -> Run:
    """Return *findings* on the server of *request* as a run; its manifest also has what is *told*."""
    return Run(
        manifest={
            "title": f"{request.model} at {request.url}",
            "profile": "evaluation",
            "checks": (CHECK,),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "url": request.url,
            "model": request.model,
            **told,
        },
        findings=findings,
    )


def _finding(name: str, definition: str, verdict: Verdict, cause: str, **more: object) -> Finding:
    return Finding(check=CHECK, name=name, definition=definition, verdict=verdict, cause=cause, **more)  # type: ignore[arg-type]


def _evaluated(request: EvalRequest, scores: Sequence[TaskScore]) -> Finding:
    return _finding(
        "tasks were evaluated",
        "lm-evaluation-harness put every question to the server and rated the answers.",
        Verdict.PASS if scores else Verdict.INCONCLUSIVE,
        "; ".join(f"{score.name} {score}" for score in scores) or f"no score of {', '.join(request.tasks)}",
        measured={score.name: str(score) for score in scores},
        threshold="none: scores are judged where a limit or an earlier evaluation is given",
    )


_GOOD = "The score beside the lowest one that is allowed, with its 95 % interval."


def _named(name: str, scores: Sequence[TaskScore]) -> bool:
    """Tell if a limit of this *name* is one of any score."""
    return any(name in {score.name, score.task} for score in scores)


def _unscored(name: str) -> Finding:
    """Return the finding on a limit whose task was not evaluated, or has no such metric."""
    cause = "it was not evaluated, or has no such metric"
    return _finding(f"{name} is good enough", _GOOD, Verdict.INCONCLUSIVE, cause)


def _thresholds(score: TaskScore, limits: EvalLimits) -> Finding:
    name = f"{score.name} is good enough"
    key = score.name if score.name in limits.least else score.task
    least = limits.least.get(key)
    if least is None:
        because = "no lowest score is known (--least, or [[evaluation]] of a recipe)"
        return _finding(name, _GOOD, Verdict.NOT_APPLICABLE, because)
    verdict, words = _against(score, least)
    ends = dict(zip(("lower end", "upper end"), score.interval or (), strict=False))
    source = f", of {limits.sources[key]}" if key in limits.sources else ""
    return _finding(
        name,
        _GOOD,
        verdict,
        f"{score}, {words} {least:g}",
        measured={"score": score.value, "limit": least, **ends},
        threshold=f"{least:g}{source}: fails where the whole interval is worse, undecided where a part is",
    )


def _against(score: TaskScore, least: float) -> tuple[Verdict, str]:
    """Return the verdict on *score* against the lowest one, and how it stands to that, in words."""
    if score.interval is None:
        return Verdict.INCONCLUSIVE, "without an interval beside"
    low, high = score.interval
    if not score.higher_is_better:
        low, high, least = -high, -low, -least
    if high < least:
        return Verdict.FAIL, "surely worse than"
    return (Verdict.PASS, "surely not worse than") if low >= least else (Verdict.INCONCLUSIVE, "spanning")


def _compared(score: TaskScore, limits: EvalLimits) -> Finding:
    name = f"{score.name} is as good as before"
    definition = "Questions that only one of two evaluations answers rightly (McNemar's exact test)."
    before = next((one for one in limits.before if one.name == score.name), None)
    if before is None:
        because = (
            "it was not evaluated before" if limits.before else "no earlier evaluation was given (--before)"
        )
        return _finding(name, definition, Verdict.NOT_APPLICABLE, because)
    common = score.by_question.keys() & before.by_question.keys()
    if not (score.binary and before.binary) or not common:
        return _finding(
            name, definition, Verdict.NOT_APPLICABLE, "questions are not right or wrong, or are others"
        )
    right = ({name: bool(value) for name, value in one.by_question.items()} for one in (before, score))
    solved = Solved.of(*right)
    lost, won, p = len(solved.lost), solved.won, solved.p
    if not score.higher_is_better:
        lost, won = won, lost
    verdict = Verdict.FAIL if p < SURE and lost > won else Verdict.PASS
    if len(common) < FEW_QUESTIONS:
        verdict = Verdict.INCONCLUSIVE
    return _finding(
        name,
        definition,
        verdict,
        f"{solved.after} of {len(common)} questions, before {solved.before}: {lost} lost and {won} won"
        f" (p = {p:.4f})",
        measured={"lost": lost, "won": won, "questions": len(common), "p": round(p, 5)},
        threshold=f"fails where more are lost than won and p < {SURE}; decides nothing with fewer than"
        f" {FEW_QUESTIONS} questions",
    )


# llama-benchy ----------------------------------------------------------------------------------------------

BENCHY = EvalTool(
    "llama-benchy",
    "llama_benchy",
    "llama-benchy==0.4.0",
    "it loads the tokenizer of its --model: name another one by -- --tokenizer",
)
BENCHY_FILE = f"{RESULTS}/llama-benchy.json"
"""Its result in the run's folder."""
# It takes the key on its command line alone, which every user of the machine can read.
_WITH_KEY = (
    "import os, runpy, sys; sys.argv += ['--api-key', os.environ['OPENAI_API_KEY']];"
    " runpy.run_module('llama_benchy', run_name='__main__')"
)
_FIGURES = {"pp_throughput": "pp tok/s", "tg_throughput": "tg tok/s", "e2e_ttft": "TTFT ms"}


def run_benchy(request: EvalRequest, folder: Path, cache: Path) -> Run:
    """Run llama-benchy with the arguments of *request* and return its figures; `BENCHY_FILE` has all.

    Raises:
        ConfigError: it left no result, or another one than this version's.
        ServerError: it cannot be installed, a request failed, or it did.
        NotInStoreError: it would have to be fetched, and the network is off.
    """
    target = folder / BENCHY_FILE
    arguments = ["--base-url", f"{request.url}/v1", "--model", request.model, "--exit-on-first-fail"]
    arguments += ["--format", "json", "--save-result", str(target)]
    run_tool(BENCHY, request, ["-c", _WITH_KEY, *arguments], target.parent, cache)
    try:
        tests = [_figures(one) for one in json.loads(target.read_text(encoding="utf-8"))["benchmarks"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{target} cannot be read", because=repr(error)) from error
    measured: dict[str, float | str] = {name: figures for name, figures in tests if figures}
    finding = Finding(
        check=CHECK,
        name="llama-benchy measured every test",
        definition="Its prompts are sent to the server, and its figures are means by its own definitions.",
        verdict=Verdict.PASS if tests and len(measured) == len(tests) else Verdict.INCONCLUSIVE,
        cause="; ".join(f"{name}: {told}" for name, told in measured.items()) or "no test has a figure",
        measured=measured,
        threshold="none: speed is not judged",
    )
    return run_of(request, [finding], tool=BENCHY.requirement, arguments=" ".join(request.arguments))


def _figures(test: dict[str, Any]) -> tuple[str, str]:
    """Return a test's name, as in the program's own table, and its mean figures; none if one is missing."""
    name = (
        f"pp{test['prompt_size']} tg{test['response_size']} @ d{test['context_size']} c{test['concurrency']}"
    )
    if test["is_context_prefill_phase"]:
        name = f"context of {name}"
    means = {title: test[key] and test[key]["mean"] for key, title in _FIGURES.items()}
    if None in means.values():
        return name, ""
    return name, ", ".join(f"{title} {mean:.1f}" for title, mean in means.items())
