"""A plugin of pytest that notes the outcome of each test and the classes of error that it expected."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_raises = pytest.raises
_caught: dict[str, list[str]] = {}
_outcomes: dict[str, str] = {}
_running = ""


@contextlib.contextmanager
def _noting(*given: Any, **named: Any) -> Iterator[Any]:
    with _raises(*given, **named) as caught:
        yield caught
    _caught.setdefault(_running, []).append(type(caught.value).__name__)


def raises(*given: Any, **named: Any) -> Any:
    """Stand in for `pytest.raises`."""
    return _raises(*given, **named) if len(given) > 1 else _noting(*given, **named)


pytest.raises = raises


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note which test runs."""
    global _running  # noqa: PLW0603 - pytest passes nothing from one hook to another
    _running = nodeid.rpartition("::")[2]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what became of it."""
    name = report.nodeid.rpartition("::")[2]
    if report.when == "call" or report.outcome != "passed":
        _outcomes[name] = report.outcome


def pytest_sessionfinish() -> None:
    """Write what was noted."""
    found = {name: " ".join([one, *dict.fromkeys(_caught.get(name, []))]) for name, one in _outcomes.items()}
    Path(os.environ["SAFETY_NET_ATTACKS"]).write_text(json.dumps(found), encoding="utf-8")
