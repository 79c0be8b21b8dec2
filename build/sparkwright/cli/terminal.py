"""Events as text: a live display on a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from sparkwright.base.events import Event, subscribe
from sparkwright.base.text import human_seconds, human_size

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

Sink = Callable[[Event], None]
"""Receives each event."""

_QUIET_S = 2.0

# With the time between two looks, less than five seconds.
_EVERY_S = 4.0
_LOOK_S = 0.5

_NAME_WIDTH = 40

# Before this much of a task is done, an estimate of the rest is unreliable.
_GUESS_AFTER_S = 2.0
_GUESS_AFTER_SHARE = 0.01


@contextlib.contextmanager
def showing_events(*, quiet: bool = False) -> Iterator[None]:
    """Show events on standard error inside the block."""
    with display(quiet=quiet) as sink, subscribe(sink):
        yield


@contextlib.contextmanager
def display(*, quiet: bool = False) -> Iterator[Sink]:
    """Yield what shows each event that it is called with on standard error, until the block ends."""
    if quiet:
        yield _warnings_only
    elif sys.stderr.isatty():  # noqa: TID251
        with _live() as sink:
            yield sink
    else:
        with _PlainLines().beating() as lines:
            yield lines


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


@dataclass
class _Running:
    """A task that runs: when it began, with what done, when it was last told of, and its last progress."""

    began: float
    had: int
    told: float
    progress: dict[str, Any] = field(default_factory=dict)


class _PlainLines:
    """Prints a line at the start of a task, one every few seconds while any runs, and one at its end."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._said = 0.0

    @contextlib.contextmanager
    def beating(self) -> Iterator[_PlainLines]:
        """Yield this, and inside the block print a line also while a task says nothing of its progress."""
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
        name, now = str(event.data.get("name")), time.monotonic()
        if event.kind == "task.started":
            self._running[name] = _Running(now, event.data["done"], now - _EVERY_S + _QUIET_S)
            self._say(f"… {name}")
        elif event.kind == "task.progress" and name in self._running:
            self._running[name].progress = event.data
            if now - self._running[name].told >= _EVERY_S:
                self._tell(name)
        elif event.kind in {"task.finished", "task.failed"}:
            self._running.pop(name, None)
            if event.kind == "task.finished" and event.data["seconds"] >= _QUIET_S:
                self._say(f"  {name}: {human_seconds(event.data['seconds'])}")

    def beat(self) -> None:
        """Print how far the task is that began last, if nothing was printed for a while."""
        running = list(self._running)
        if running and time.monotonic() - self._said >= _EVERY_S:
            self._tell(running[-1])

    def _tell(self, name: str) -> None:
        running = self._running.get(name)
        if running is None:  # it ended meanwhile
            return
        now, progress = time.monotonic(), running.progress
        running.told = now
        share = _share(progress, now - running.began, running.had) if progress else ""
        said = ", ".join([share or human_seconds(now - running.began), *_particulars(progress)])
        self._say(f"… {name}: {said}")

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        click.echo(line, err=True)


def _share(data: dict[str, Any], elapsed: float, had: int) -> str:
    """Return the finished part of a task that had *had* done at its start, *elapsed* seconds ago."""
    done, total = data["done"], data["total"]
    shown = human_size if data["unit"] == "B" else str
    if not total:
        return f"{shown(done)} {'' if data['unit'] == 'B' else data['unit']}".strip()
    left = data.get("left")
    if left is None:
        left = seconds_left(elapsed, done - had, total - done, total)
    amount = f"{shown(done)} of {shown(total)} ({done / total:.0%})"
    return amount if left is None else f"{amount}, {human_seconds(left)} left"


def _amount(data: dict[str, Any]) -> str:
    """Return the finished amount of a task: bytes, or parts of the total."""
    if data["unit"] == "B":
        return human_size(data["done"])
    share = f"{data['done']} of {data['total']}" if data["total"] else data["done"]
    return f"{share} {data['unit']}"


def _particulars(data: dict[str, Any]) -> list[str]:
    """Return details of a task and its running parts, each as a clause; mostly none."""
    said = []
    if running := data.get("running"):
        longest = max(running, key=lambda part: part["elapsed"])
        memory = human_size(sum(part["mib"] for part in running) * (1 << 20))
        said.append(f"{len(running)} running with {memory}")
        said.append(f"longest {_placed(longest)} ({human_seconds(longest['elapsed'])})")
        counted = Counter(part["machine"] for part in running if "machine" in part)
        if counted:
            said.append("on " + ", ".join(f"{name}: {count}" for name, count in sorted(counted.items())))
    if peak := data.get("peak_mib"):
        said.append(f"peak {human_size(peak << 20)}")
    if failed := data.get("failed"):
        said.append(f"{failed} failed")
    if held := data.get("held"):
        said.append(f"held back by {held}")
    return said


def _placed(part: dict[str, Any]) -> str:
    """Return the name of a running part, and the machine that runs it where that is another one."""
    name = _shortened(part["name"])
    return f"{name} on {part['machine']}" if "machine" in part else name


def seconds_left(elapsed: float, made: float, missing: float, total: float) -> float | None:
    """Return the estimated seconds that a task still takes, or `None` while no estimate is possible.

    Args:
        elapsed: seconds since its start.
        made: amount done since then, without the results of earlier runs.
        missing: amount still to be done.
        total: the whole amount.
    """
    if elapsed < _GUESS_AFTER_S or made < total * _GUESS_AFTER_SHARE or made <= 0:
        return None
    return elapsed * missing / made


@contextlib.contextmanager
def _live() -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        _time_left_column(),
    )
    # What else is printed goes above the bars, but for what is not printed to a terminal.
    above = sys.stdout.isatty()  # noqa: TID251
    with Progress(*columns, console=console, transient=True, redirect_stdout=above) as progress:
        yield _LiveDisplay(progress)


def _time_left_column() -> ProgressColumn:
    """Return a column with the task's own estimate of the time left, else one from its speed."""
    from rich.progress import Task, TimeRemainingColumn
    from rich.text import Text

    class TimeLeft(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            left = task.fields.get("left")
            return super().render(task) if left is None else Text(human_seconds(left), "progress.remaining")

    return TimeLeft()


class _LiveDisplay:
    """Shows one bar for each running task, and one below it for each of its parts."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._parts: dict[str, dict[str, TaskID]] = {}

    def __call__(self, event: Event) -> None:
        data = event.data
        if line := _line(event):
            self._progress.console.print(line, highlight=False, markup=False)
        name = str(data.get("name"))
        if event.kind == "task.started":
            self._bars[name] = self._progress.add_task(
                name, total=data["total"], completed=data["done"], amount=""
            )
        elif event.kind == "task.progress" and name in self._bars:
            said = ", ".join([_amount(data), *_particulars({**data, "running": ()})])
            self._progress.update(
                self._bars[name], completed=data["done"], amount=said, left=data.get("left")
            )
            self._show_parts(name, data.get("running", ()))
        elif event.kind in {"task.finished", "task.failed"} and name in self._bars:
            self._show_parts(name, ())
            self._progress.remove_task(self._bars.pop(name))

    def _show_parts(self, name: str, running: Sequence[dict[str, Any]]) -> None:
        """Show a bar for each running part: elapsed of expected time, and memory."""
        bars = self._parts.setdefault(name, {})
        for gone in bars.keys() - {part["name"] for part in running}:
            self._progress.remove_task(bars.pop(gone))
        for part in running:
            if part["name"] not in bars:
                bars[part["name"]] = self._progress.add_task("", total=None, amount="", left=None)
            self._progress.update(
                bars[part["name"]],
                description=f"  {_placed(part)}",
                total=max(part["expected"], part["elapsed"]),
                completed=part["elapsed"],
                amount=human_size(part["mib"] << 20),
                left=max(0.0, part["expected"] - part["elapsed"]),
            )


def _shortened(name: str) -> str:
    """Return the end of a long name, which is more specific than its beginning."""
    return name if len(name) <= _NAME_WIDTH else f"…{name[1 - _NAME_WIDTH :]}"
