"""A session over the fleet's cells: what is planned, judged and reported."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from collections.abc import Callable

import serve_fleet
from fleet import judge
from fleet.matrix import Cell, Fleet
from fleet_records import CELL, RIGHT, V24, V33, layer, other, record, seen, view
from pair import sessions

GPU = Path(__file__).parents[1] / "gpu"
DENSE = ("--only", "dense", "fp8", "graphs", "v1")


def args(folder: Path, *words: str) -> Any:
    for name in ("logs", "cells"):
        (folder / name).mkdir(exist_ok=True)
    return serve_fleet.arguments(["--out", str(folder), "--version", V24, "--levels", "1", "8", *words])


def put(asked: Any, cell: Cell, what: dict[str, Any] | None, **more: Any) -> None:
    line = {**record(what), "asked": [asked.version, asked.device, asked.levels], **more}
    serve_fleet.path_of(cell, asked).write_text(json.dumps(line))


def put_references(asked: Any) -> None:
    for cell, cache in ((Fleet(V24).reference(CELL), "fp8"), (Fleet(V24).plain(CELL), "auto")):
        layers = {"model.layers.0.self_attn.attn": layer(cache=cache)}
        put(asked, cell, seen(counted={}, view=view(drafter="", captured=0, layers=layers), wheel=V24))


def test_a_cell_that_passed_is_not_planned_again(tmp_path: Path) -> None:
    asked = args(tmp_path, *DENSE)
    assert CELL in serve_fleet.planned(asked)
    put_references(asked)
    put(asked, CELL, other(seen(wheel=V24), 4000))
    assert CELL in serve_fleet.planned(asked)
    put(asked, CELL, seen(wheel=V24))
    assert CELL not in serve_fleet.planned(asked)
    assert CELL in serve_fleet.planned(args(tmp_path, *DENSE, "--levels", "1"))
    serve_fleet.path_of(CELL, asked).write_text('{"asked": cut o')
    assert CELL in serve_fleet.planned(asked)


def test_the_report_judges_what_is_on_record(tmp_path: Path) -> None:
    asked = args(tmp_path, "--report")
    assert serve_fleet.report(asked) == 1
    put_references(asked)
    put(asked, CELL, seen(wheel=V24))
    assert serve_fleet.report(asked) == 0
    put(asked, CELL, other(seen(wheel=V24), 4000))
    assert serve_fleet.report(asked) == 1
    text = (tmp_path / "matrix.md").read_text()
    assert text.startswith(f"wheel: {V24}\n")
    assert f"| {CELL.name} | served | FAIL |" in text
    own = Fleet(V24).reference(CELL)
    assert f"| {own.name} | served | pass | 9.0 | 30 | 0/332 (0.00) | 0/332 (0.00) |" in text
    assert "2 passed, 1 failed, 0 out of time" in text


def test_the_plan_needs_no_gpu_and_keeps_to_its_budget(tmp_path: Path) -> None:
    words = ["--out", str(tmp_path), "--version", V33, "--plan", "--budget", "300", "--only", "hybrid"]
    done = subprocess.run(
        [sys.executable, str(GPU / "serve_fleet.py"), *words], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert 2 < len(lines) < 12
    assert float(lines[-1].split()[0]) <= 300
    assert lines[0].endswith("hybrid-none-bf16-v2-eager")


def test_a_cell_that_the_budget_does_not_hold_is_not_started(tmp_path: Path, monkeypatch: Any) -> None:
    started: list[str] = []

    def execute(cell: Cell, *_: Any) -> dict[str, Any]:
        started.append(cell.name)
        return {**record(None), "asked": [V24, "cuda", [1, 8, 64]]}

    monkeypatch.setattr(serve_fleet, "execute", execute)
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path), "--version", V24, "--budget", "5"])
    assert serve_fleet.main() == 1
    assert started == []
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-1], "1000", "--only", CELL.name])
    assert serve_fleet.main() == 1  # what came to no end is no pass
    both = [Fleet(V24).plain(CELL).name, Fleet(V24).reference(CELL).name]
    assert started == [*both, CELL.name]


@pytest.mark.parametrize("breaks", [False, True])
def test_other_cells_of_a_shape_wait_until_its_first_has_compiled(tmp_path, monkeypatch, *, breaks):
    asked, running, ran = args(tmp_path, "--jobs", "3"), threading.Semaphore(0), []
    cells = [Cell("hybrid"), Cell("hybrid", "mtp"), Cell("dense")]

    def execute(cell: Cell, *_: Any) -> dict[str, Any]:
        ran.append(cell)
        if cell == cells[0]:
            assert running.acquire(timeout=30)  # the cell of another shape runs meanwhile
            assert cells[1] not in ran
            if breaks:
                raise OSError(cell.name)
        running.release()
        return {**record(None), "asked": []}

    monkeypatch.setattr(serve_fleet, "execute", execute)
    monkeypatch.setattr(serve_fleet, "planned", lambda _: cells)
    run: Callable[[], int] = lambda: serve_fleet.run_all(asked, tmp_path)  # noqa: E731
    if breaks:
        with pytest.raises(OSError, match="hybrid-none"):
            run()
    else:
        assert run() == 0
    assert set(ran) == set(cells)


def test_a_cell_that_hangs_is_ended_shortly_after_the_budget(tmp_path: Path, monkeypatch: Any) -> None:
    limits: list[float] = []

    def hang(_module: str, _spec: dict[str, Any], log: Path, _env: dict[str, str], seconds: float) -> None:
        limits.append(seconds)
        log.write_text("still at it\n")

    asked = args(tmp_path)
    monkeypatch.setattr(serve_fleet, "specification", lambda *_: {})
    monkeypatch.setattr(sessions, "run_engine", hang)
    lines = [serve_fleet.execute(CELL, asked, tmp_path / str(left), left) for left in (90.0, 1000.0)]
    assert limits == [90 + serve_fleet.GRACE, 3 * Fleet(V24).seconds(CELL) + 120]
    assert [judge.outcome(line) for line in lines] == ["out of time", "crashed"]


@pytest.mark.parametrize(
    ("status", "cut", "tail", "came"),
    [
        (None, True, "still at it", "out of time"),
        (None, False, "still at it", "crashed"),
        (None, True, "CUDA error: an illegal memory access was encountered", "crashed"),
        (-11, False, "Segmentation fault", "crashed"),
    ],
)
def test_a_cell_that_the_budget_ends_is_no_failure_and_is_run_again(tmp_path, *, status, cut, tail, came):
    asked = args(tmp_path, *DENSE)
    put(asked, Fleet(V24).reference(CELL), RIGHT)
    put(asked, CELL, {"stage": "start", "levels": {}}, status=status, tail=tail, cut=cut)
    assert CELL in serve_fleet.planned(asked)
    serve_fleet.report(asked)
    text, late = (tmp_path / "matrix.md").read_text(), came == "out of time"
    assert f"| {CELL.name} | {came} | {'not run to its end' if late else 'FAIL'} |" in text
    # The reference here is no healthy one, and fails by itself.
    assert f"{1 if late else 2} failed, {1 if late else 0} out of time" in text
