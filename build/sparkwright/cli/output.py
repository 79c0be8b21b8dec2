"""The output of a command: one JSON document for machines, or a message and an exit code for errors."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.events import JsonlSink, subscribe
from sparkwright.base.text import clean

NOT_OURS = (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError)
"""Exceptions of click and of a closed pipe, which end a command and are not reported as our errors."""
EVENTS = "events.jsonl"
_DEBUG = "SPARKWRIGHT_DEBUG"
_owed: ContextVar[bool] = ContextVar("owed", default=False)
"""True while a JSON document is still to be printed."""


def expect_json(expected: bool) -> None:  # noqa: FBT001 - the only argument
    """Set if standard output has to contain one JSON document when the command ends."""
    _owed.set(expected)


def json_expected() -> bool:
    """Return whether a JSON document is still to be printed."""
    return _owed.get()


def print_json(value: Any) -> None:
    """Print *value*, the result, as JSON."""
    _owed.set(False)
    click.echo(json.dumps(value, indent=1, ensure_ascii=False, default=str))


printable = functools.partial(clean, most=sys.maxsize)
"""Returns a text, which may be untrusted, with its terminal control characters escaped."""


def report(error: SparkwrightError, *, kind: str = "", code: int | None = None) -> int:
    """Report *error* and return the exit status.

    If a JSON document is expected and no result was printed, the error is that document. After a printed
    result, the error goes to standard error as text.

    Args:
        error: the error to report.
        kind: its name in JSON; its class by default.
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
    """Return click's setting for colours: none with ``NO_COLOR`` (no-color.org), else its default."""
    return False if os.environ.get("NO_COLOR") else None


def unforeseen(error: Exception, folder: Path | None = None) -> SparkwrightError:
    """Return an internal error for *error*, and write its traceback into a file in *folder*.

    With ``SPARKWRIGHT_DEBUG`` set, or if no file can be written, the traceback goes to standard error.
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
        "internal error",
        because=because,
        next_step=f"please report it with the traceback {where}",
    )


@contextlib.contextmanager
def crashes_kept(folder: Path) -> Iterator[None]:
    """Turn an unexpected exception into one error, with its traceback in *folder*."""
    try:
        yield
    except (SparkwrightError, *NOT_OURS):
        raise
    except Exception as error:
        raise unforeseen(error, folder) from error


@contextlib.contextmanager
def events_kept(folder: Path, instead: str = "point SPARKWRIGHT_HOME to another disk") -> Iterator[None]:
    """Write the events of the block into *folder*, and the traceback of an unexpected exception."""
    from sparkwright.store.disk import storing

    with storing(f"writing to {folder}", instead=instead):
        log = JsonlSink(folder / EVENTS)
    what = f"'{click.get_current_context().command_path}'"
    with crashes_kept(folder), storing(what, instead=instead), contextlib.closing(log), subscribe(log):
        yield
