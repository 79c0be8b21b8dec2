"""One run of a tool that evaluates a server: a process in an environment of its own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from sparkwright.base.errors import ConfigError, ProcessError, ServerError, ToolError
from sparkwright.base.events import task
from sparkwright.engine.server.environment import prepare_requirement
from sparkwright.verify.evaluation.scores import TaskScore, read_scores

RESULTS = "evaluation"
"""Name of the folder of a tool's files in a run's."""
_TASK = re.compile(r"^task:\s*['\"]?([\w.-]+)", re.MULTILINE)
_LAST_LINES = 12


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
        hours: limit of the whole.
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
    hours: float = 12.0


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
                timeout=3600 * request.hours,
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
