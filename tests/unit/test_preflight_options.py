"""Flags and variables that the release which would serve does not have, by a made-up answer of its parser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from preflight_kit import ENGINE, recipe, start

from sparkwright.base.errors import ToolError
from sparkwright.recipes.release_options import (
    ParsedCommand,
    ReleaseFlag,
    ReleaseOptions,
    ReleaseVariables,
)
from sparkwright.serve.ask import ReleaseAnswer, ask_installed
from sparkwright.serve.preflight import Finding, run_preflight
from sparkwright.store import Store

NAMES = ("served-model-name", "host", "port", "max-model-len", "max-num-seqs", "gpu-memory-utilization")
OPTIONS = ReleaseOptions(
    flags=(
        *(ReleaseFlag((f"--{name}",)) for name in NAMES),
        ReleaseFlag(("--old-way",), deprecated="use another way"),
    ),
    variables=ReleaseVariables(declared=("VLLM_USE_V2_MODEL_RUNNER",), read=("VLLM_PLAIN",)),
    speculative={},
    attention_backends=(),
    kv_types=(),
    tool_parsers=(),
    reasoning_parsers=(),
)
CHECKS = {"options", "dead-variable", "deprecated-flag"}


def found(
    error: str = "",
    environment: dict[str, str] | None = None,
    served_with: dict[str, str] | None = None,
    **keys: Any,
) -> list[Finding]:
    """Findings about options, of a release that answers *error* to the command.

    *environment* is the user's, *served_with* the recipe's.
    """

    def ask(python: Path | None, engine: Any, lines: Any) -> ReleaseAnswer:
        assert (python, engine) == (None, ENGINE)
        assert [line[0] for line in lines] == ["serve"]
        return ReleaseAnswer("0.24.0", OPTIONS, (ParsedCommand(error),))

    request = start(recipe(environment=served_with or {}, **keys), environment=environment or {}, ask=ask)
    return [one for one in run_preflight(request) if one.check in CHECKS]


def test_known_flags_and_variables_are_silent() -> None:
    assert found(environment={"VLLM_PLAIN": "1", "HOME": "/"}, flags={"max-num-seqs": 4}) == []


def test_an_unknown_flag_is_refused_and_its_neighbour_named() -> None:
    (one,) = found(flags={"max-num-seq": 4})
    assert (one.level, one.liftable) == ("refuse", False)
    assert "--max-num-seq" in one.what
    assert "max-num-seqs" in one.because


def test_the_parsers_own_refusal_is_a_finding() -> None:
    (one,) = found("argument --max-num-seqs: invalid int value: 'many'", flags={"max-num-seqs": "many"})
    assert one.level == "refuse"
    assert "invalid int value" in one.because


def test_a_recipes_dead_variable_is_refused_and_can_be_forced() -> None:
    (one,) = found(environment={"VLLM_GONE": "2"}, served_with={"VLLM_GONE": "1"})
    assert (one.check, one.level, one.liftable) == ("dead-variable", "refuse", True)
    assert found(served_with={"VLLM_USE_V2_MODEL_RUNNER": "1"}) == []


def test_a_dead_variable_of_the_user_is_a_warning() -> None:
    (one,) = found(environment={"VLLM_GONE": "1", "OTHER_GONE": "1"})
    assert (one.check, one.level) == ("dead-variable", "warn")
    assert one.what.startswith("VLLM_GONE")


def test_a_deprecated_flag_is_a_warning() -> None:
    (one,) = found(flags={"old-way": 1})
    assert (one.check, one.level, one.because) == ("deprecated-flag", "warn", "use another way")


def test_a_release_that_cannot_be_asked_is_said() -> None:
    def broken(*_: Any) -> ReleaseAnswer:
        raise ToolError("it could not be asked", because="it has no parser")

    (one,) = [
        one for one in run_preflight(start(recipe(), environment={}, ask=broken)) if one.check in CHECKS
    ]
    assert (one.level, one.because) == ("note", "it has no parser")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An interpreter that answers as the child does, and counts how often it was started."""
    python = tmp_path / "python"
    report = msgspec.json.encode({"parsed": [{"error": "", "warnings": []}], "options": OPTIONS}).decode()
    python.write_text(
        f"#!/bin/sh\necho once >> {tmp_path}/starts\nwhile [ $# -gt 1 ]; do shift; done\n"
        f"cat > \"$1\" <<'END'\n{report}\nEND\n"
    )
    python.chmod(0o755)
    return python


def starts(folder: Path) -> int:
    path = folder / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_wheel_is_asked_once(store: Store, installed: Path, tmp_path: Path) -> None:
    line = ("serve", "m")
    engine = replace(ENGINE, files="f" * 64)
    assert ask_installed(store, None, engine, [line]) is None, "nothing is recorded of a wheel yet"
    first = ask_installed(store, installed, engine, [line])
    assert ask_installed(store, installed, engine, [line]) == first
    assert ask_installed(store, None, engine, [line]) == first, (
        "recorded for the wheel as for its installation"
    )
    assert starts(tmp_path) == 1


def test_what_can_change_in_place_is_asked_each_time(store: Store, installed: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert ask_installed(store, installed, ENGINE, [("serve", "m")]) is not None
    assert starts(tmp_path) == 2
    for _ in range(2):
        assert ask_installed(store, installed, ENGINE, [("serve", "m")], identity="a") is not None
    assert starts(tmp_path) == 3
