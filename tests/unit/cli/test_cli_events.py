"""Progress of tasks on standard error: lines for a log, bars on a terminal."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.text import Text

from sparkwright.base.events import Event
from sparkwright.cli import output

NAMES = ("_moe_C/csrc/libtorch_stable/moe/marlin_moe_wna16/ops.cu", "_C/csrc/cache.cu")


def part(name: str, *, elapsed: float = 4.0, expected: float = 40.0, mib: int = 1024) -> dict[str, Any]:
    return {"name": name, "elapsed": elapsed, "expected": expected, "mib": mib}


def progress(done: int, *names: str, **details: Any) -> Event:
    data = {"name": "compile", "done": done, "total": 193, "unit": "units", "left": 750.0}
    running = [part(name, elapsed=4.0 + number) for number, name in enumerate(names)]
    return Event("task.progress", 0.0, {**data, "running": running, **details})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as a list with one number that a test moves on."""
    now = [1000.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


STARTED = Event("task.started", 0.0, {"name": "compile", "total": 193, "unit": "units", "done": 0})


class TestLines:
    def test_one_line_says_it_all(self, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
        show = output._PlainLines()
        show(STARTED)
        clock[0] += 10
        show(progress(57, *NAMES, peak_mib=5120, failed=1, held="memory: 2.1 GiB free"))
        show.beat()
        assert capsys.readouterr().err == (
            "… compile\n… compile: 57 of 193 units (30%), 12 min 30 s left, 2 running with 2.00 GiB, "
            "longest _C/csrc/cache.cu (5.0 s), peak 5.00 GiB, 1 failed, held back by memory: 2.1 GiB free\n"
        )

    def test_machines_are_named(self, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
        show = output._PlainLines()
        show(STARTED)
        clock[0] += 10
        there = [
            {**part("a", elapsed=2.0), "machine": "spark-1"},
            {**part("b"), "machine": "spark-2"},
            {**part("c"), "machine": "spark-1"},
        ]
        show(progress(57, running=there))
        show.beat()
        assert "longest b on spark-2 (4.0 s), on spark-1: 2, spark-2: 1\n" in capsys.readouterr().err

    def test_a_silent_task_is_told_of_as_well(self, clock, capsys):
        show = output._PlainLines()
        show(STARTED)
        show(Event("task.started", 0.0, {"name": "install", "total": None, "unit": "", "done": 0}))
        capsys.readouterr()
        for _ in range(9):
            clock[0] += 1
            show.beat()
        assert capsys.readouterr().err == "… install: 4.0 s\n… install: 8.0 s\n", "the one that began last"
        show(Event("task.finished", 0.0, {"name": "install", "seconds": 9.0, "done": 0}))
        clock[0] += 4
        show.beat()
        assert capsys.readouterr().err == "  install: 9.0 s\n… compile: 13 s\n"
        show(Event("task.failed", 0.0, {"name": "compile", "seconds": 13.0, "error": ""}))
        clock[0] += 9
        show.beat()
        assert not capsys.readouterr().err, "nothing runs"


def test_each_task_has_a_bar_until_it_ends() -> None:
    column = TextColumn("{task.description}|{task.completed}/{task.total}|{task.fields[told]}")
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    bars = Progress(column, console=console, auto_refresh=False)

    def shown() -> list[str]:
        with console.capture() as captured:
            console.print(bars.get_renderable(), soft_wrap=True, no_wrap=True)
        return [line.strip() for line in Text.from_ansi(captured.get()).plain.splitlines() if line.strip()]

    show = output._LiveDisplay(bars)
    show(STARTED)
    show(progress(57, peak_mib=5120))
    show(Event("task.started", 0.0, {"name": "load", "total": 4096, "unit": "B", "done": 0}))
    show(Event("task.progress", 0.0, {"name": "load", "total": 4096, "unit": "B", "done": 2048}))
    assert shown() == [
        "compile|57/193|57 of 193 units (30%), 12 min 30 s left, peak 5.00 GiB",
        "load|2048/4096|2.0 KiB of 4.0 KiB (50%)",
    ]
    show(Event("task.finished", 0.0, {"name": "compile", "seconds": 1, "done": 193}))
    show(Event("task.failed", 0.0, {"name": "load", "seconds": 1, "error": ""}))
    assert shown() == []
