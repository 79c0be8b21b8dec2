"""Events as text: a live display on a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from sparkwright.base.events import Event, subscribe
from sparkwright.base.text import human_seconds, human_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Sink = Callable[[Event], None]
"""Receives each event."""

_QUIET_S = 2.0

# With the time between two looks, less than five seconds.
_EVERY_S = 4.0
_LOOK_S = 0.5

_NAME_WIDTH = 40


@contextlib.contextmanager
def showing_events(*, quiet: bool = False) -> Iterator[None]:
    """Show events on standard error inside the block."""
    with contextlib.ExitStack() as open_:
        if quiet:
            sink: Sink = _warnings_only
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
        """Yield this, and print how far it is inside the block."""
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
