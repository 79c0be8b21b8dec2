"""The order in which threads start the fleet's cells."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from fleet.matrix import Cell
from fleet.turns import Turns

CELLS = [
    Cell("hybrid"),
    Cell("hybrid", "mtp"),
    Cell("dense"),
    Cell("hybrid", "dflash"),
    Cell("dense", "ngram"),
]


def test_a_second_cell_of_a_shape_starts_after_the_first_has_ended() -> None:
    turns = Turns(CELLS)
    first, second = turns.take(), turns.take()
    assert (first, second) == (CELLS[0], CELLS[2])
    turns.end(CELLS[2])
    assert turns.take() == CELLS[4]
    turns.end(CELLS[0])
    assert [turns.take(), turns.take(), turns.take()] == [CELLS[1], CELLS[3], None]


def test_a_thread_waits_for_the_first_cell_of_the_only_shape_that_is_left() -> None:
    turns = Turns(CELLS[:2])
    first = turns.take()
    assert first is not None
    taken: list[Cell | None] = []
    thread = threading.Thread(target=lambda: taken.append(turns.take()))
    thread.start()
    assert not taken
    turns.end(first)
    thread.join(10)
    assert taken == [CELLS[1]]


def test_threads_run_every_cell_once_and_one_that_raises_holds_none_back() -> None:
    turns, ran, lock = Turns(CELLS), [], threading.Lock()

    def run(cell: Cell) -> bool:
        with lock:
            ran.append(cell)
        if cell == CELLS[0]:
            raise OSError(cell.name)
        return cell.shape == "dense"

    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(turns.work, run) for _ in range(3)]
    assert sorted(cell.name for cell in ran) == sorted(cell.name for cell in CELLS)
    failed = [thread for thread in threads if thread.exception()]
    assert len(failed) == 1
    with pytest.raises(OSError, match="hybrid-none"):
        failed[0].result()


def test_a_single_thread_goes_on_after_a_cell_that_raises_and_raises_at_the_end() -> None:
    turns, ran = Turns(CELLS), []

    def run(cell: Cell) -> bool:
        ran.append(cell)
        if cell.shape == "hybrid":
            raise OSError(cell.name)
        return True

    with pytest.raises(OSError, match="hybrid-none"):
        turns.work(run)
    assert ran == [CELLS[0], CELLS[1], CELLS[2], CELLS[3], CELLS[4]]
