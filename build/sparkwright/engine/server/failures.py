"""The cause of a server's failed start or end, by its log and its exit status: rows of ``failures.toml``."""

from __future__ import annotations

import functools
import re
import signal
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Literal

from sparkwright.base.config import Model, parse_toml
from sparkwright.base.errors import ServerError
from sparkwright.engine.server.bootlog import plain


@dataclass(frozen=True)
class Cause:
    """A cause of a failure.

    Attributes:
        name: short and unique.
        consequence: another error led to it.
        breaks: its line alone shows that a server which runs is broken.
    """

    name: str
    because: str
    next_step: str
    consequence: bool = False
    breaks: bool = False


class ServerFailedError(ServerError):
    """The server under test could not be started, or stopped responding.

    Attributes:
        status: its exit status, negative for a signal; `None` if it still ran.
        log_excerpt: the lines of its log up to the first error; the last ones without an error.
    """

    def __init__(self, what: str, cause: Cause, status: int | None, log_excerpt: str, evidence: Path) -> None:
        self.cause, self.status, self.log_excerpt, self.evidence = cause, status, log_excerpt, evidence
        super().__init__(
            f"{what} ({cause.name})",
            because=f"{cause.because}; its log says:\n{log_excerpt}",
            next_step=f"{cause.next_step}; see {evidence}",
        )


class _Row(Model, frozen=True):
    sign: str
    because: str
    next: str
    consequence: bool = False
    breaks: bool = False


class _Table(Model, frozen=True):
    format: Literal[1]
    causes: dict[str, _Row]


@functools.cache
def causes() -> dict[str, tuple[Cause, re.Pattern[str]]]:
    """Return every known cause by its name, with its sign in a log; see the head of ``failures.toml``."""
    data = (resources.files("sparkwright.engine.server") / "failures.toml").read_bytes()
    rows = parse_toml(data, _Table, newest_format=1, name="failures.toml").causes
    return {
        name: (
            Cause(name, row.because, row.next, row.consequence, row.breaks),
            re.compile(row.sign, re.IGNORECASE | re.MULTILINE),
        )
        for name, row in rows.items()
    }


# What vLLM puts before each line of its processes, and of a traceback.
_PREFIX = re.compile(r"(?:\([^)]*\) )?(?:(?:ERROR|CRITICAL) [^\]\n]*\] ?)?")
# Lines that report no error of vLLM, uvicorn, torch or Python, though some quote one (a prompt may):
_CALM = re.compile(r"(?:\([^)]*\) )?(?:INFO|WARN|WARNING|DEBUG)\b|\[?[IW]\d{3,4} |(?:\S+: )?\w*Warning: ")
_READ = 2000  # characters of a line: signs stand at its beginning, and some are slow on long ones
_ROOT = re.compile(r"(?:^|\s)((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt): \S.*)$", re.MULTILINE)
_KILLED_STATUS = {137, -signal.SIGKILL}
_LEAST_SIGNAL = 128
_LONGEST = 300


def known_cause(log: str, *, running: bool = False) -> tuple[Cause, str] | None:
    """Return the known cause of a failure, and the line of the *log* that shows it.

    Args:
        log: the server's log; lines that are no errors do not count.
        running: the server runs on: causes alone that show it broken, and not what a request did wrong.
    """
    lines = (line[:_READ] for line in plain(log).split("\n") if not _CALM.match(line))
    text = "\n".join(_PREFIX.sub("", line, count=1) for line in lines)
    for cause, sign in causes().values():
        if (cause.breaks or not running) and (found := sign.search(text)):
            end = text.find("\n", found.end())
            line = text[text.rfind("\n", 0, found.start()) + 1 : end if end >= 0 else len(text)]
            return cause, " ".join(line.split())[:_LONGEST]
    return None


def diagnose(log: str, status: int | None) -> Cause:
    """Return the cause of a failure.

    Args:
        log: the server's log.
        status: its exit status, negative for a signal; `None` while it runs.
    """
    if (found := known_cause(log)) is not None:
        cause, line = found
        return replace(cause, because=_quoted(cause.because, _root(log) if cause.consequence else line))
    if status in _KILLED_STATUS:
        return causes()["killed"][0]
    how = "it does not answer" if status is None else f"it ended with {_named(status)}"
    return Cause("unknown", _quoted(how, _root(log)), "see the end of the log")


def tail(log: str, *, lines: int = 40) -> str:
    """Return the last *lines* of a log, with the last state of each progress bar."""
    kept = [line.rsplit("\r", 1)[-1].rstrip() for line in plain(log).rstrip("\n").split("\n")]
    return "\n".join(kept[-lines:])


def excerpt(log: str, *, before: int = 6, lines: int = 12) -> str:
    """Return the lines of a log that end with the first Python error; without one, its last *lines*."""
    text = plain(log)
    found = _ROOT.search(text)
    if found is None:
        return tail(log, lines=lines)
    end = text.find("\n", found.start(1))
    return tail(text[: end if end >= 0 else len(text)], lines=before)


def _root(log: str) -> str:
    """Return the first Python error in the log."""
    found = _ROOT.search(plain(log))
    return found.group(1)[:_LONGEST] if found else ""


def _quoted(because: str, line: str) -> str:
    return f"{because} ({line})" if line and line not in because else because


def _named(status: int) -> str:
    number = -status if status < 0 else status - _LEAST_SIGNAL if status > _LEAST_SIGNAL else 0
    try:
        return f"status {status} ({signal.Signals(number).name})" if number else f"status {status}"
    except ValueError:
        return f"status {status}"
