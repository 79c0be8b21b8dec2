"""The cause of a failed start is named by logs of real releases, and logs of healthy starts name none.

`server_logs` holds both, each with its origin: paths and process ids are made alike, and lines of tracebacks
that name source files are left out.
"""

import re
import signal
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from boot_logs import Boot

from sparkwright.cli.main import group
from sparkwright.engine.server.failures import causes, diagnose, excerpt, known_cause

LOGS = Path(__file__).with_name("server_logs")
FAILED = tomllib.loads((LOGS / "failed.toml").read_text(encoding="utf-8"))["log"]
HEALTHY = tomllib.loads((LOGS / "healthy.toml").read_text(encoding="utf-8"))["log"]


def _named(log: dict[str, Any]) -> str:
    return f"{log.get('cause', 'healthy')}: {log['from']}"


@pytest.mark.parametrize("log", FAILED, ids=_named)
def test_the_cause_of_a_failed_start_is_named_with_a_line_of_its_log(log: dict[str, Any]) -> None:
    cause = diagnose(log["text"], log.get("status", 1))
    assert cause.name == log["cause"], cause
    assert log.get("line", "") in cause.because
    after_warnings = diagnose(f"{HEALTHY[0]['text']}{Boot().text}{log['text']}", log.get("status", 1))
    assert after_warnings.name == log["cause"], after_warnings


def test_each_known_cause_has_a_log() -> None:
    assert {log["cause"] for log in FAILED} == set(causes())


@pytest.mark.parametrize("log", HEALTHY, ids=_named)
def test_a_healthy_start_names_no_cause(log: dict[str, Any]) -> None:
    assert known_cause(log["text"]) is None
    assert diagnose(log["text"], 137).name == "killed", "nothing in the log hides what ended it"


def test_remedies_name_commands_and_options_that_exist() -> None:
    named = {
        match
        for cause, _ in causes().values()
        for match in re.findall(r"sparkwright ((?:[a-z]+ ?)+)((?:--[a-z-]+)?)", cause.next_step)
    }
    assert named
    for words, option in named:
        command: click.Command = group
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            found = command.get_command(click.Context(command), word)
            assert found is not None, words
            command = found
        assert not option or option in {name for one in command.params for name in one.opts}, (words, option)


def test_the_root_cause_comes_before_what_followed_from_it() -> None:
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    followed = "RuntimeError: Engine core initialization failed. See root cause above."
    cause = diagnose(f"(EngineCore pid=1) ERROR 07-01 10:00:00 [c.py:1] x\n{memory}\n{followed}", 1)
    assert cause.name == "cuda-out-of-memory"
    assert cause.because == f"CUDA out of memory ({memory})"


@pytest.mark.parametrize("status", [137, -signal.SIGKILL])
def test_a_kill_that_left_no_word_is_named(status: int) -> None:
    assert diagnose(Boot().text, status).name == "killed"
    assert "137" in diagnose("", status).because


def test_an_unknown_end_says_how_it_ended() -> None:
    assert "status 3" in diagnose("", 3).because
    assert "SIGSEGV" in diagnose("", -signal.SIGSEGV).because
    assert "SIGABRT" in diagnose("", 134).because
    assert "status 255" in diagnose("", 255).because
    assert "ValueError: no such thing" in diagnose("ValueError: no such thing", 1).because


def test_an_excerpt_ends_with_the_first_error_and_not_with_what_followed() -> None:
    before = [f"INFO line {number}" for number in range(50)]
    trace = ["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: the first one"]
    after = ["During handling of the above exception", "RuntimeError: the last one", "goodbye"]
    log = "\n".join([*before, *trace, *after])
    assert diagnose(log, 1).because.endswith("(ValueError: the first one)")
    shown = excerpt(log).split("\n")
    assert shown[-3:] == trace
    assert len(shown) == 6
    assert excerpt("\n".join(before)).split("\n") == before[-12:]
