"""Ask the parser of an installed vLLM which recipes it refuses, so that no server is started for them.

A child process imports vLLM in its own environment, without a card; see `ask_release` for releases that are
not installed.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import Model
from sparkwright.base.errors import ToolError
from sparkwright.base.events import task
from sparkwright.base.process import LimitsExceeded, ProcessLimits, run_limited
from sparkwright.recipes import serve_arguments
from sparkwright.recipes.release_options import ParsedCommand, ReleaseOptions, problems
from sparkwright.serve.ask_release import child

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.recipes import Recipe

# Importing vLLM takes ten seconds of CPU time, and minutes on a machine that does much else.
_LIMITS = ProcessLimits(900.0, 6144)
_SAID = 2000
_WHERE = "import importlib.util; print(importlib.util.find_spec('vllm').origin)"


class _InstalledAnswer(Model, frozen=True):
    """The report that the child writes."""

    parsed: tuple[ParsedCommand, ...]
    options: ReleaseOptions


def ask_installed(python: Path, recipes: Sequence[Recipe]) -> tuple[str, ...]:
    """Return for each of *recipes* why the vLLM of *python* refuses its options; empty where it does not.

    Args:
        python: interpreter of the environment with vLLM.
        recipes: the recipes, with their uses applied.

    Raises:
        ToolError: that vLLM could not be asked.
    """
    commands = [serve_arguments(recipe, host="localhost", port=8000)[1:] for recipe in recipes]
    with task("ask vLLM for its options"), tempfile.TemporaryDirectory() as folder:
        answer = _ask(python, commands, Path(folder))
    return tuple(
        "; ".join(str(one) for one in problems(recipe, answer.options, parsed, {}) if one.refuses)
        for recipe, parsed in zip(recipes, answer.parsed, strict=True)
    )


def _ask(python: Path, commands: Sequence[Sequence[str]], folder: Path) -> _InstalledAnswer:
    request, report, log = (folder / name for name in ("request.json", "report.json", "log"))
    request.write_text(json.dumps({"commands": commands, "describe": True}), encoding="utf-8")
    argv: list[str | Path] = [python, child(), "--tree", _tree(python, folder), "--metadata", folder]
    argv += ["--request", request, "--report", report]
    # With it vLLM looks for the model's files while it parses, and there may be none yet.
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    try:
        run_limited(argv, limits=_LIMITS, cwd=folder, env=environment, log=log)
        return msgspec.json.decode(report.read_bytes(), type=_InstalledAnswer)
    except (LimitsExceeded, FileNotFoundError, msgspec.MsgspecError) as error:
        said = log.read_bytes()[-_SAID:].decode(errors="replace").strip() if log.exists() else ""
        raise ToolError(
            "the installed vLLM could not be asked for its options", because=said or str(error)
        ) from error


def _tree(python: Path, folder: Path) -> Path:
    """Return the folder that holds the package vllm."""
    log = folder / "where"
    run_limited([python, "-c", _WHERE], limits=_LIMITS, cwd=folder, env=dict(os.environ), log=log)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.endswith("__init__.py")]
    if not lines:
        raise ToolError("there is no vLLM to ask for its options", because=f"{python} does not find one")
    return Path(lines[-1]).parents[1]
