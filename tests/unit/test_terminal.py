"""How work with parts under way is shown: lines for a log, bars on a terminal."""

import contextlib
import io
import itertools
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from sparkwright.base.events import Event, subscribe, task
from sparkwright.cli import terminal

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
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


STARTED = Event("task.started", 0.0, {"name": "compile", "total": 193, "unit": "units", "done": 0})


class TestLines:
    def test_one_line_says_it_all(self, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
        show = terminal._PlainLines()
        show(STARTED)
        clock[0] += 10
        show(progress(57, *NAMES, peak_mib=5120, failed=1, held="memory: 2.1 GiB free"))
        assert capsys.readouterr().err == (
            "… compile\n… compile: 57 of 193 (30%), 12 min 30 s left, 2 running with 2.00 GiB, "
            "longest _C/csrc/cache.cu (5.0 s), peak 5.00 GiB, 1 failed, held back by memory: 2.1 GiB free\n"
        )

    def test_machines_are_named(self, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
        show = terminal._PlainLines()
        show(STARTED)
        clock[0] += 10
        there = [
            {**part("a", elapsed=2.0), "machine": "spark-1"},
            {**part("b"), "machine": "spark-2"},
            {**part("c"), "machine": "spark-1"},
        ]
        show(progress(57, running=there))
        assert "longest b on spark-2 (4.0 s), on spark-1: 2, spark-2: 1\n" in capsys.readouterr().err

    def test_there_are_few_of_them(self, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
        show = terminal._PlainLines()
        show(STARTED)
        told = []
        for second in range(300):
            clock[0] += 1
            show(progress(second % 193, *NAMES))
            if capsys.readouterr().err.count("left"):
                told.append(second)
        assert told[0] == 1
        assert {after - before for before, after in itertools.pairwise(told)} == {4}

    def test_a_silent_task_is_told_of_as_well(self, clock, capsys):
        show = terminal._PlainLines()
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

    def test_what_a_task_does_not_say_is_guessed_or_left_out(self, clock, capsys):
        show = terminal._PlainLines()
        show(STARTED)
        clock[0] += 10
        show(progress(100, left=None))
        assert capsys.readouterr().err.endswith("compile: 100 of 193 (52%), 9.3 s left\n")


class TestBars:
    @pytest.fixture
    def bars(self) -> Progress:
        column = TextColumn("{task.description}|{task.completed}/{task.total}|{task.fields[amount]}")
        console = Console(file=io.StringIO(), force_terminal=True, width=200)
        return Progress(column, terminal._time_left_column(), console=console, auto_refresh=False)

    def shown(self, bars: Progress) -> list[str]:
        with bars.console.capture() as captured:
            bars.console.print(bars.get_renderable(), soft_wrap=True, no_wrap=True)
        return [" ".join(line.split()) for line in _plain(captured.get()).splitlines() if line.strip()]

    def test_each_unit_under_way_has_one(self, bars: Progress) -> None:
        show = terminal._LiveDisplay(bars)
        show(STARTED)
        show(progress(57, *NAMES, peak_mib=5120))
        assert self.shown(bars) == [
            "compile|57/193|57 of 193 units, peak 5.00 GiB 12 min 30 s",
            "…orch_stable/moe/marlin_moe_wna16/ops.cu|4.0/40.0|1.00 GiB 36 s",
            "_C/csrc/cache.cu|5.0/40.0|1.00 GiB 35 s",
        ]
        show(progress(58, NAMES[1]))
        assert len(self.shown(bars)) == 2, "and has none when it ended"
        show(Event("task.finished", 0.0, {"name": "compile", "seconds": 1, "done": 193}))
        assert self.shown(bars) == []

    def test_one_that_is_overdue_is_full_and_no_more(self, bars: Progress) -> None:
        show = terminal._LiveDisplay(bars)
        show(STARTED)
        show(progress(1, running=[part("a", elapsed=90.0)]))
        assert self.shown(bars)[1] == "a|90.0/90.0|1.00 GiB 0.0 s"

    def test_a_failure_takes_all_away(self, bars: Progress) -> None:
        with subscribe(terminal._LiveDisplay(bars)), contextlib.suppress(KeyError), task("compile") as work:
            work.advance(1, running=[part("a")], left=1.0)
            assert len(self.shown(bars)) == 2
            raise KeyError
        assert self.shown(bars) == []

    def test_other_tasks_look_as_ever(self, bars: Progress) -> None:
        show = terminal._LiveDisplay(bars)
        show(Event("task.started", 0.0, {"name": "load", "total": 4096, "unit": "B", "done": 0}))
        show(Event("task.progress", 0.0, {"name": "load", "total": 4096, "unit": "B", "done": 2048}))
        assert self.shown(bars) == ["load|2048/4096|2.0 KiB -:--:--"]


def _plain(text: str) -> str:
    from rich.text import Text

    return Text.from_ansi(text).plain
