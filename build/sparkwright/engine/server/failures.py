"""The cause of a server's failed start or end, by its log and exit status, and the evidence kept of it.

Causes are rows of ``failures.toml``.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Literal

from sparkwright.base.config import Model, parse_toml
from sparkwright.base.errors import ServerError, SparkwrightError
from sparkwright.base.process.run import run
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

    Of a server that is *running*, causes alone count that show it broken, and not what a request did wrong.
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
    """Return the cause of a failure."""
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


def excerpt(log: str) -> str:
    """Return the six lines of a log that end with the first Python error; without one, its last twelve."""
    text = plain(log)
    found = _ROOT.search(text)
    if found is None:
        return tail(log, lines=12)
    end = text.find("\n", found.start(1))
    return tail(text[: end if end >= 0 else len(text)], lines=6)


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


_LINES = 400
_SECONDS = 15.0
# Programs whose words are kept where they may be run; many hosts show the kernel's to root alone.
_PROGRAMS = {
    "dmesg.txt": ("dmesg", "--ctime", "--level=emerg,alert,crit,err,warn"),
    "nvidia-smi.txt": ("nvidia-smi", "-q", "-d", "CLOCK,POWER,TEMPERATURE,MEMORY,PERFORMANCE,ECC"),
}


def keep_evidence(
    folder: Path,
    reason: str,
    *,
    status: int | None,
    log: str,
    metrics: str,
    argv: Sequence[str],
    seconds: float,
) -> Path:
    """Write evidence of a server that died or does not respond into a new folder; returns that.

    Unreadable parts do not keep the rest from being written: ``incident.json`` lists them as missing.
    """
    number = 1
    while (place := folder / f"incident-{number}").exists():
        number += 1
    place.mkdir(parents=True)
    cause = diagnose(log, status)
    _write(place / "log-tail.txt", tail(log, lines=_LINES))
    missing = [] if metrics else ["metrics.txt"]
    if metrics:
        _write(place / "metrics.txt", metrics)
    for name, command in _PROGRAMS.items():
        if not _keep_output(place / name, command):
            missing.append(name)
    for name in ("meminfo", "loadavg"):
        try:
            _write(place / f"{name}.txt", Path("/proc", name).read_text(encoding="utf-8"))
        except OSError:
            missing.append(f"{name}.txt")
    summary = {
        "reason": reason,
        "cause": cause.name,
        "because": cause.because,
        "exit_status": status,
        "argv": argv,
        "seconds": round(seconds, 3),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "missing": missing,
    }
    _write(place / "incident.json", json.dumps(summary, indent=1) + "\n")
    return place


def _keep_output(path: Path, command: tuple[str, ...]) -> bool:

    if shutil.which(command[0]) is None:
        return False
    try:
        done = run(command, timeout=_SECONDS)
    except SparkwrightError:
        return False
    _write(path, done.stdout.decode(errors="replace"))
    return True


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")
