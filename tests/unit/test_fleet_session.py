"""A session over the fleet's cells: what is planned, judged and reported."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

import serve_fleet
from fleet.matrix import Cell, Fleet
from fleet_records import CELL, RIGHT, V24, layer, other, record, seen, view

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
