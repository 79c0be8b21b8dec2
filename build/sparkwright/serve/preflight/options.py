"""Findings about flags and variables that the release which would serve does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sparkwright.base.errors import SparkwrightError
from sparkwright.engine.installed import EngineFacts
from sparkwright.recipes import Recipe, serve_arguments
from sparkwright.recipes.release_options import Problem, problems
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.release_child import ReleaseAnswer

AskOptions = Callable[[Path | None, EngineFacts, Sequence[Sequence[str]]], ReleaseAnswer | None]

_OURS = "VLLM_"


def check_options(
    recipe: Recipe,
    environment: Mapping[str, str],
    python: Path | None,
    engine: EngineFacts,
    ask: AskOptions,
) -> Iterator[Finding]:
    """Yield a finding for each flag and variable that the release refuses, or that has no effect there.

    Args:
        recipe: the recipe, with its use and the user's flags.
        environment: variables of the server below the recipe's.
        python: interpreter that has the release; `None` where it is not installed.
        engine: facts about the release.
        ask: asks the release's own parser; returns `None` where it cannot be asked yet.
    """
    # Address and port change from start to start, and the parser's answer does not depend on them.
    line = serve_arguments(recipe, host="localhost", port=8000)
    try:
        answer = ask(python, engine, [line])
    except SparkwrightError as error:
        yield Finding(
            "options",
            "note",
            "flags and variables could not be compared with those that this vLLM has",
            error.because or error.what,
            "see the engine's log for options that it refuses",
        )
        return
    if answer is None:
        return
    for problem in problems(recipe, answer.options, answer.parsed[0], {}):
        yield _finding(problem, answer.version)
    known = answer.options.variable_names
    for name in sorted(environment.keys() - recipe.environment.keys() - known):
        if name.startswith(_OURS):
            yield Finding(
                "dead-variable",
                "warn",
                f"{name} has no effect",
                f"no code of vllm {answer.version} reads it",
                f"unset {name}",
            )


def _finding(problem: Problem, version: str) -> Finding:
    nearest = f"; the nearest name is {problem.nearest}" if problem.nearest else ""
    if not problem.refuses:
        return Finding(
            "deprecated-flag", "warn", f"{problem.name} will not be there in a later release", problem.because
        )
    if problem.kind == "variable":
        return Finding(
            "dead-variable",
            "refuse",
            f"{problem.name} of the recipe has no effect",
            f"no code of vllm {version} reads it{nearest}",
            f"take {problem.name} out of the recipe, or replace it by what this release reads",
            liftable=True,
        )
    return Finding(
        "options",
        "refuse",
        f"vllm {version} does not take {problem.name}"
        if problem.kind != "parser"
        else f"vllm {version} refuses the command",
        f"{problem.because}{nearest}",
        "correct it in the recipe or in --set; `vllm serve --help=all` lists what this release takes",
    )
