"""Events: packages emit them, subscribers render or record them.

Nothing below the command line prints. A module calls `emit` or opens a `task`; each subscriber (the
terminal, the JSONL file, a test) gets every `Event` in order. Without a subscriber, as in a script
or a notebook, warnings go to Python's log, which writes them to standard error by default.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: dotted name, such as ``task.started`` or ``merge.outcome``.
    """

    kind: str
    at: float
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the event as one line of JSON."""
        return json.dumps({"at": round(self.at, 6), "kind": self.kind, **self.data}, default=str)


_LOG = logging.getLogger("sparkwright")
_sinks: ContextVar[tuple[Callable[[Event], None], ...]] = ContextVar("sinks", default=())


def emit(kind: str, **data: Any) -> None:
    """Send an event of *kind* to every subscriber."""
    sinks = _sinks.get()
    if sinks:
        event = Event(kind, time.time(), data)
        for sink in sinks:
            sink(event)


def warn(message: str, **data: Any) -> None:
    """Warn the user of something that does not stop the work."""
    if _sinks.get():
        emit("warning", message=message, **data)
    else:
        _LOG.warning("%s", message)


@contextlib.contextmanager
def subscribe(sink: Callable[[Event], None]) -> Iterator[None]:
    """Send every event that is emitted inside the block to *sink* too."""
    token = _sinks.set((*_sinks.get(), sink))
    try:
        yield
    finally:
        _sinks.reset(token)


class Task:
    """A piece of work with measurable progress; see `task`."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self.name, self.total, self.unit, self.done = name, total, unit, 0
        self._last_emitted = 0.0

    def advance(self, amount: int = 1, **details: Any) -> None:
        """Record *amount* more units as done; subscribers receive it ten times a second at most.

        *details* are further facts, JSON-ready: ``left`` is a better estimate of the seconds left than the
        finished share gives; ``running`` are its running parts, each with ``name``, ``elapsed``, ``expected``
        (seconds) and ``mib``, and ``machine`` where that is another one.
        """
        self.done += amount
        now = time.monotonic()
        if now - self._last_emitted >= 0.1:  # noqa: PLR2004
            self._last_emitted = now
            emit("task.progress", name=self.name, done=self.done, total=self.total, unit=self.unit, **details)


@contextlib.contextmanager
def task(name: str, *, total: int | None = None, unit: str = "", done: int = 0) -> Iterator[Task]:
    """Report the block as a task called *name* with *total* units, *done* of them already."""
    started = time.monotonic()
    this = Task(name, total, unit)
    this.done = done
    emit("task.started", name=name, total=total, unit=unit, done=done)
    try:
        yield this
    except BaseException as error:
        emit("task.failed", name=name, seconds=round(time.monotonic() - started, 3), error=repr(error))
        raise
    emit("task.finished", name=name, seconds=round(time.monotonic() - started, 3), done=this.done)


class JsonlSink:
    """Appends each event to a file as one line, flushed at once so that a kill loses nothing.

    A log that cannot be written any more, as its disk is full, stops nothing: one warning says so.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream: IO[str] = path.open("a", encoding="utf-8")
        self.path = path
        self._lost = False

    def __call__(self, event: Event) -> None:
        """Write *event*; one `write` a line, so that lines of two processes never mix."""
        if self._lost or event.kind == "task.progress":
            return
        try:
            os.write(self._stream.fileno(), (event.to_json() + "\n").encode())
        except OSError as error:
            self._lost = True
            warn(f"events are not written to {self.path} any more: {error.strerror}")

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
