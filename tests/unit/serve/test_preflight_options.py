"""Flags and variables that the release which would serve does not have, by made-up answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from preflight_kit import ENGINE, recipe, start

from sparkwright.base.errors import ToolError
from sparkwright.engine.release import ReleaseAnswer, ask_installed
from sparkwright.recipes.release_options import Problem, Question
from sparkwright.serve.preflight.finding import Finding
from sparkwright.serve.preflight.run import run_preflight
from sparkwright.store.paths import Store

CHECKS = {"options", "dead-variable", "deprecated-flag"}
PROBLEMS = {
    "flag": ("--max-num-seq", "options", "refuse", False),
    "parser": ("vllm serve", "options", "refuse", False),
    "variable": ("VLLM_GONE", "dead-variable", "refuse", True),
    "shell variable": ("VLLM_GONE", "dead-variable", "warn", False),
    "deprecated": ("--old-way", "deprecated-flag", "warn", False),
}


def found(*problems: Problem, environment: dict[str, str] | None = None) -> list[Finding]:
    """Findings about options, of a release that finds *problems*."""

    def ask(python: Path | None, engine: Any, questions: Any) -> ReleaseAnswer:
        assert (python, engine) == (None, ENGINE)
        assert [one.shell for one in questions] == [("VLLM_A",)] * bool(environment) or [()]
        return ReleaseAnswer("0.24.0", (problems,))

    request = start(recipe(), environment=environment or {}, ask=ask)
    return [one for one in run_preflight(request) if one.check in CHECKS]


def test_no_problem_is_silent() -> None:
    assert found(environment={"VLLM_A": "1", "OTHER": "2"}) == []


@pytest.mark.parametrize("kind", PROBLEMS)
def test_each_kind_of_problem_is_a_finding(kind: Any) -> None:
    name, check, level, liftable = PROBLEMS[kind]
    (one,) = found(Problem(kind, name, "so it is", "another"))
    assert (one.check, one.level, one.liftable) == (check, level, liftable)
    assert name in one.what or kind == "parser"
    assert "another" in one.because or kind in {"deprecated", "shell variable"}


def test_a_release_that_cannot_be_asked_is_said() -> None:
    def broken(*_: Any) -> ReleaseAnswer:
        raise ToolError("it could not be asked", because="it has no parser")

    found = run_preflight(start(recipe(), environment={}, ask=broken))
    (one,) = [one for one in found if one.check in CHECKS]
    assert (one.level, one.because) == ("note", "it has no parser")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An interpreter that answers as the child does, and counts how often it was started."""
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\necho once >> {tmp_path}/starts\nwhile [ $# -gt 1 ]; do shift; done\n"
        f"cat > \"$1\" <<'END'\n[[]]\nEND\n"
    )
    python.chmod(0o755)
    return python


def starts(folder: Path) -> int:
    path = folder / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_wheel_is_asked_once(store: Store, installed: Path, tmp_path: Path) -> None:
    line = Question(("m",), {}, {})
    engine = replace(ENGINE, files="f" * 64)
    assert ask_installed(store, None, engine, [line]) is None, "nothing is recorded of a wheel yet"
    first = ask_installed(store, installed, engine, [line])
    assert ask_installed(store, installed, engine, [line]) == first
    assert ask_installed(store, None, engine, [line]) == first, (
        "recorded for the wheel as for its installation"
    )
    assert starts(tmp_path) == 1
