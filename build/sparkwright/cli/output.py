"""What a command leaves behind: one JSON document for machines, a message and an exit code for errors."""

from __future__ import annotations

import json
import os
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from sparkwright.base.errors import SparkwrightError

if TYPE_CHECKING:
    from pathlib import Path

_DEBUG = "SPARKWRIGHT_DEBUG"
_owed: ContextVar[bool] = ContextVar("owed", default=False)
"""Whether a JSON document is still to be printed."""


def expect_json(wanted: bool) -> None:  # noqa: FBT001 - one plain question
    """Say whether standard output has to hold one JSON document when the command ends."""
    _owed.set(wanted)


def print_json(value: Any) -> None:
    """Print the result for machines."""
    _owed.set(False)
    click.echo(json.dumps(value, indent=1, ensure_ascii=False, default=str))


def printable(text: str) -> str:
    """Return *text*, of which others may have written a part, with escapes for all that steers a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or character.isprintable()
        else character.encode("unicode_escape").decode()
        for character in text
    )


def report(error: SparkwrightError, *, kind: str = "", code: int | None = None) -> int:
    """Report *error*; returns the exit status.

    Where a JSON document is owed and no result was printed, the error is that document. A result that
    was printed stays the only one, and the error goes to standard error as it does for people.

    Args:
        error: what to report.
        kind: what to call it in JSON; its class by default.
        code: the exit status; its class's by default.
    """
    status = error.exit_code if code is None else code
    if _owed.get():
        described = {
            "kind": kind or type(error).__name__,
            "what": error.what,
            "because": error.because,
            "next-step": error.next_step,
            "exit-code": status,
        }
        print_json({"error": described})
        return status
    click.secho(f"error: {printable(error.what)}", fg="red", bold=True, err=True, color=colour())
    for heading, text in (("because", error.because), ("next", error.next_step)):
        if lines := [printable(line.rstrip()) for line in text.splitlines() if line.strip()]:
            click.echo(f"  {heading:<7}  " + f"\n{'':11}".join(lines), err=True)
    return status


def colour() -> bool | None:
    """What click should think of colours: never with ``NO_COLOR`` (no-color.org), else as it sees fit."""
    return False if os.environ.get("NO_COLOR") else None


def unforeseen(error: Exception, folder: Path | None = None) -> SparkwrightError:
    """An error that nobody foresaw, as one line; its traceback goes into a file in *folder*.

    With ``SPARKWRIGHT_DEBUG`` set, and where no file can be written, it goes to standard error.
    """
    text = "".join(traceback.format_exception(error))
    because = " ".join(f"{type(error).__name__}: {error}".split())
    where = "above"
    if folder is not None and not os.environ.get(_DEBUG):
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        path = folder / f"crash-{stamp}-{os.getpid()}.txt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            where = f"in {path}"
        except OSError:
            folder = None
    if where == "above":
        click.echo(text, err=True)
    return SparkwrightError(
        "something went wrong that nobody foresaw",
        because=because,
        next_step=f"please report it with the traceback {where}",
    )
