"""Why a compiler failed, read from its status and its log."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

Cause = Literal["refused", "no-output", "memory", "disk"]

_MOST_LINES = 15
_TAIL_BYTES = 1 << 20
_FULL_BYTES = 1 << 20
"""With less room than this, whatever failed for a reason it could not write down failed for that."""

_SHELL_KILLED = 128 + signal.SIGKILL

# g++, then nvcc ("'cicc' died due to signal 9 (Kill signal)"), then a shell's or make's own line.
_KILLED = re.compile(
    r"Killed signal terminated program|died due to signal 9\b|^(?:.*: )?(?:line \d+: +\d+ )?Killed\b",
    re.MULTILINE,
)
_NO_MEMORY = re.compile(
    r"virtual memory exhausted|out of memory allocating|\bstd::bad_alloc\b|Cannot allocate memory"
    r"|Memory allocation failure|LLVM ERROR: out of memory",
    re.IGNORECASE,
)
_DISK = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
_ERROR = re.compile(r"\berror\b|\bfatal\b|undefined reference", re.IGNORECASE)
_NO_ERROR = re.compile(r"^\s*\d+ errors? detected|-W\w*error|\b0 errors?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Diagnosis:
    """Why a unit gave no object.

    Attributes:
        cause: what kind of failure it was.
        detail: how one knows, as a clause.
        lines: the first lines of its output that tell of an error.
    """

    cause: Cause
    detail: str
    lines: tuple[str, ...] = ()


def diagnose(status: int, log: Path, output: Path) -> Diagnosis | None:
    """Why a compiler that nobody stopped on purpose failed; `None` if it did not.

    Args:
        status: its exit status; negative is the signal that ended it.
        log: its command, an empty line, and what it wrote.
        output: the object that it was to make.
    """
    if status == 0 and output.is_file() and output.stat().st_size > 0:
        return None
    text = _output_of(log)
    lines = error_lines(text)
    if detail := _said(_DISK, text) or _full_disk(output.parent, log.parent):
        return Diagnosis("disk", detail, lines)
    if detail := _said(_KILLED, text) or _said(_NO_MEMORY, text) or _killed(status):
        return Diagnosis("memory", detail, lines)
    if status == 0:
        return Diagnosis("no-output", "it ended well and made no object", lines)
    return Diagnosis("refused", _ended(status), lines)


def error_lines(text: str) -> tuple[str, ...]:
    """The first lines of *text* that tell of an error; its last lines if none says so."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _NO_ERROR.search(line)]
    return tuple(errors[:_MOST_LINES] or lines[-_MOST_LINES:])


def _said(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return f"it said '{found.group().strip()}'" if found else ""


def _killed(status: int) -> str:
    return "it was killed (SIGKILL)" if status in {-signal.SIGKILL, _SHELL_KILLED} else ""


def _ended(status: int) -> str:
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it ended with status {status}"


def _output_of(log: Path) -> str:
    """What the program wrote, below its command; both ends of it if that is very long."""
    data = log.read_bytes().partition(b"\n\n")[2]
    if len(data) > 2 * _TAIL_BYTES:
        data = data[:_TAIL_BYTES] + b"\n" + data[-_TAIL_BYTES:]
    return data.decode(errors="replace")


def _full_disk(*folders: Path) -> str:
    for folder in folders:
        found = os.statvfs(folder)
        if found.f_bavail * found.f_frsize < _FULL_BYTES:
            return f"no space is left on the disk of {folder}"
    return ""
