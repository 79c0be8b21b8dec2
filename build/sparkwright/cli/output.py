"""The output of a command: progress while it works, its JSON document, or its error and exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.events import Event, JsonlSink, subscribe
from sparkwright.base.text import clean, human_seconds, human_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


NOT_OURS = (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError)
"""Exceptions of click and of a closed pipe, which end a command and are not reported as our errors."""
EVENTS = "events.jsonl"
_QUIET_S = 2.0
_EVERY_S, _LOOK_S = 4.0, 0.5  # together less than five seconds
_NAME_WIDTH = 40
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


def printable(text: str) -> str:
    """Return *text*, which may be untrusted, with its control characters escaped and in full length."""
    return clean(text, sys.maxsize)


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

    If no file can be written, the traceback goes to standard error.
    """
    text = "".join(traceback.format_exception(error))
    because = " ".join(f"{type(error).__name__}: {error}".split())
    where = "above"
    if folder is not None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        path = folder / f"crash-{stamp}-{os.getpid()}.txt"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            where = f"in {path}"
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


@contextlib.contextmanager
def showing_events(*, quiet: bool = False) -> Iterator[None]:
    """Show events on standard error inside the block."""
    with contextlib.ExitStack() as open_:
        if quiet:
            sink: Callable[[Event], None] = _warnings_only
        elif sys.stderr.isatty():  # noqa: TID251
            sink = open_.enter_context(_live())
        else:
            sink = open_.enter_context(_PlainLines().beating())
        open_.enter_context(subscribe(sink))
        yield


def _warnings_only(event: Event) -> None:
    if event.kind == "warning":
        click.echo(f"warning: {event.data['message']}", err=True)


def _line(event: Event) -> str | None:
    """Return the line for an event that is not part of a task's progress."""
    data = event.data
    if event.kind == "warning":
        return f"warning: {data['message']}"
    if event.kind == "lock.waiting":
        return f"waiting for another run, which uses {data['what']}"
    if event.kind == "verify.planned":
        size = f"{data['cells']} measurements, {data['requests']:,} requests, {data['tokens']:,} tokens"
        return f"about {human_seconds(data['seconds'])} are expected: {size}"
    if event.kind == "step.found":
        return f"✓ {data['step']} (already there)"
    if event.kind == "step.made":
        return f"✓ {data['step']} ({human_seconds(data['seconds'])})"
    return None


class _PlainLines:
    """Prints a line at the start and the end of a task, and every few seconds how far the newest one is."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[float, dict[str, Any]]] = {}
        self._said = 0.0

    @contextlib.contextmanager
    def beating(self) -> Iterator[_PlainLines]:
        """Print how far the newest task is, now and then, as long as the block runs."""
        end = threading.Event()

        def watch() -> None:
            while not end.wait(_LOOK_S):
                self.beat()

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            end.set()
            thread.join()

    def __call__(self, event: Event) -> None:
        if line := _line(event):
            self._say(line)
        name = str(event.data.get("name"))
        if event.kind == "task.started":
            self._running[name] = time.monotonic(), {}
            self._say(f"… {name}")
        elif event.kind == "task.progress" and name in self._running:
            self._running[name] = self._running[name][0], event.data
        elif event.kind in {"task.finished", "task.failed"}:
            self._running.pop(name, None)
            if event.kind == "task.finished" and event.data["seconds"] >= _QUIET_S:
                self._say(f"  {name}: {human_seconds(event.data['seconds'])}")

    def beat(self) -> None:
        """Print how far the task is that began last, if nothing was printed for a while."""
        running, now = list(self._running.items()), time.monotonic()
        if running and now - self._said >= _EVERY_S:
            name, (began, progress) = running[-1]
            self._say(f"… {name}: {_told(progress) if progress else human_seconds(now - began)}")

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        click.echo(line, err=True)


def _told(data: dict[str, Any]) -> str:
    """Return how far a task is, and what runs of it, in one line."""
    done, total, unit = data["done"], data["total"], data["unit"]
    shown = human_size if unit == "B" else str
    of = f" of {shown(total)}" if total else ""
    said = [f"{shown(done)}{of}{'' if unit == 'B' else f' {unit}'}".strip()]
    if total:
        said[0] += f" ({done / total:.0%})"
    if (left := data.get("left")) is not None:
        said.append(f"{human_seconds(left)} left")
    if running := data.get("running"):
        longest = max(running, key=lambda part: part["elapsed"])
        memory = human_size(sum(part["mib"] for part in running) * (1 << 20))
        said.append(f"{len(running)} running with {memory}")
        there = f" on {longest['machine']}" if "machine" in longest else ""
        said.append(f"longest {_shortened(longest['name'])}{there} ({human_seconds(longest['elapsed'])})")
        counted = Counter(part["machine"] for part in running if "machine" in part)
        if counted:
            said.append("on " + ", ".join(f"{name}: {count}" for name, count in sorted(counted.items())))
    if peak := data.get("peak_mib"):
        said.append(f"peak {human_size(peak << 20)}")
    if failed := data.get("failed"):
        said.append(f"{failed} failed")
    if held := data.get("held"):
        said.append(f"held back by {held}")
    return ", ".join(said)


def _shortened(name: str) -> str:
    """Return the end of a long name, which is more specific than its beginning."""
    return name if len(name) <= _NAME_WIDTH else f"…{name[1 - _NAME_WIDTH :]}"


@contextlib.contextmanager
def _live() -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
    )
    # What else is printed goes above the bars, but for what is not printed to a terminal.
    above = sys.stdout.isatty()  # noqa: TID251
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=above) as progress:
        yield _LiveDisplay(progress)


class _LiveDisplay:
    """Shows one bar for each running task."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def __call__(self, event: Event) -> None:
        data = event.data
        if line := _line(event):
            self._progress.console.print(line, highlight=False, markup=False)
        name = str(data.get("name"))
        if event.kind == "task.started":
            self._bars[name] = self._progress.add_task(
                name, total=data["total"], completed=data["done"], told=""
            )
        elif event.kind == "task.progress" and name in self._bars:
            self._progress.update(self._bars[name], completed=data["done"], told=_told(data))
        elif event.kind in {"task.finished", "task.failed"} and name in self._bars:
            self._progress.remove_task(self._bars.pop(name))
