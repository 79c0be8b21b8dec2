"""One run of lm-evaluation-harness against a server."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.errors import ConfigError, ProcessError, ServerError, ToolError
from sparkwright.base.events import task
from sparkwright.engine.server.environment import prepare_requirement
from sparkwright.verify.evaluation.scores import read_scores

if TYPE_CHECKING:
    from sparkwright.verify.evaluation.scores import TaskScore

REQUIREMENT = "lm-eval[api]==0.4.13"
"""Installed where neither this environment has it nor an interpreter was named; about 580 MB, no torch."""
RESULTS = "evaluation"
"""Name of the folder of its files in a run's."""
_TASK = re.compile(r"^task:\s*['\"]?([\w.-]+)", re.MULTILINE)
_LAST_LINES = 12


@dataclass(frozen=True)
class EvalRequest:
    """The tasks to evaluate, and the server.

    Attributes:
        url: the server's root.
        model: name of the model to request.
        tasks: names of the harness's own tasks, or YAML files of others.
        limit: questions of each task; 0 for all.
        chat: send chats instead of raw prompts.
        concurrency: requests at a time.
        api_key: the server's.
        python: interpreter of an environment with lm-eval; one is found or made by default.
        offline: fetch neither packages nor data sets.
        hours: limit of the whole.
    """

    url: str
    model: str
    tasks: tuple[str, ...]
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
    from sparkwright.base.process import run

    names, places = _tasks(request.tasks)
    python = _interpreter(request, cache)
    out = folder / RESULTS
    out.mkdir(parents=True, exist_ok=True)
    with task("evaluate tasks"):
        try:
            done = run(
                [python, *_arguments(request, names, places, out)],
                env=_environment(request),
                timeout=3600 * request.hours,
            )
        except (ProcessError, ToolError) as error:
            told = error.because.strip().splitlines()[-_LAST_LINES:]
            (out / "log").write_text(f"{error.what}\n{error.because}\n", encoding="utf-8")
            raise ServerError(
                "lm-evaluation-harness failed",
                because="\n".join(told),
                next_step=f"see {out / 'log'}; tasks that rate given answers need a tokenizer: use others",
            ) from error
    (out / "log").write_text(f"{done.text}\n{done.stderr}", encoding="utf-8")
    return read_scores(out)


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


def _interpreter(request: EvalRequest, cache: Path) -> Path:
    """Return an interpreter that has the harness: the named one, this one, or one that is made."""
    if request.python:
        return Path(request.python)
    if find_spec("lm_eval") is not None:
        return Path(sys.executable)
    with task("install lm-evaluation-harness"):
        return prepare_requirement(REQUIREMENT, cache / "lm-eval-0.4.13", offline=request.offline)


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
