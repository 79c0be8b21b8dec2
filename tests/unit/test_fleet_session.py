"""A session over the fleet's cells: what is planned, judged and reported."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import serve_fleet
from fleet import judge, matrix, report
from fleet_records import CELL, RIGHT, V24, V33, layer, other, record, seen, view

if TYPE_CHECKING:
    from fleet.matrix import Cell

GPU = Path(__file__).parents[1] / "gpu"


def args(folder: Path, *words: str) -> Any:
    return serve_fleet.arguments(["--out", str(folder), "--version", V24, "--levels", "1", "8", *words])


def put(asked: Any, cell: Cell, what: dict[str, Any]) -> None:
    line = {**record(what), "key": serve_fleet.key(cell, asked), "cell": cell.name}
    with (asked.out / "matrix.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def test_what_ran_is_not_planned_again_unless_it_failed_and_is_retried(tmp_path: Path) -> None:
    asked = args(tmp_path, "--only", "dense", "fp8", "graphs", "v1")
    judge_cell = matrix.reference(CELL, V24)
    assert CELL in dict(serve_fleet.planned(asked))
    put(asked, judge_cell, RIGHT)
    put(asked, CELL, other(seen(), 4000))
    assert CELL not in dict(serve_fleet.planned(asked))
    retried = args(tmp_path, "--only", "dense", "fp8", "graphs", "v1", "--retry")
    assert CELL in dict(serve_fleet.planned(retried))
    put(asked, CELL, seen())
    assert CELL not in dict(serve_fleet.planned(retried))
    assert CELL in dict(serve_fleet.planned(args(tmp_path, "--levels", "1")))
    with (tmp_path / "matrix.jsonl").open("a") as stream:
        stream.write('{"key": "cut o')
    assert CELL not in dict(serve_fleet.planned(asked))


def test_the_report_judges_what_is_on_record(tmp_path: Path) -> None:
    asked = args(tmp_path, "--report")
    own, plain = matrix.reference(CELL, V24), matrix.plain(CELL, V24)
    for cell, cache in ((own, "fp8"), (plain, "auto")):
        whole = seen(counted={}, views=[view(drafter="", captured=0)], wheel=V24)
        whole["views"][0]["layers"] = {"model.layers.0.self_attn.attn": layer(cache=cache)}
        put(asked, cell, whole)
    put(asked, CELL, seen(wheel=V24))
    assert serve_fleet.report(asked) == 0
    put(asked, CELL, other(seen(wheel=V24), 4000))
    assert serve_fleet.report(asked) == 1
    text = (tmp_path / "matrix.md").read_text()
    assert text.startswith(f"wheel: {V24}\n")
    assert f"| {CELL.name} | served | FAIL |" in text
    assert f"| {own.name} | served | pass | 9.0 | 30 | 0/40 (0.00), 0/292 (0.00) | 0/332 (0.00) |" in text
    assert "2 passed, 1 failed" in text
    assert report.table([], 3, "cuda").endswith(
        "0 passed, 0 failed, 0 without a kernel, 0 out of time, 3 not run"
    )


def test_a_kernel_that_a_cpu_lacks_is_no_fault_of_the_cell_and_on_a_card_it_is() -> None:
    tail = "kernel[grid](\nTypeError: 'function' object is not subscriptable\n"
    line = record({"stage": "boot"}, 1, tail)
    assert judge.lacking(line, "cpu")
    assert not judge.lacking(line, "cuda")
    assert not judge.lacking(record({"stage": "boot"}, 1, "ValueError: shapes differ"), "cpu")
    assert not judge.lacking(record(seen()), "cpu")
    row = (CELL, line, None, None, ["exit status 1"])
    assert "| no kernel |" in report.table([row], 1, "cpu")
    assert "| FAIL |" in report.table([row], 1, "cuda")


def test_the_plan_needs_no_gpu_and_keeps_to_its_budget(tmp_path: Path) -> None:
    words = ["--out", str(tmp_path), "--version", V33, "--plan", "--budget", "300", "--only", "hybrid"]
    done = subprocess.run(
        [sys.executable, str(GPU / "serve_fleet.py"), *words], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert 3 < len(lines) < 12
    assert float(lines[-1].split()[0]) <= 300
    assert lines[0].endswith("hybrid-none-bf16-v2-eager")


def test_a_cell_that_the_budget_does_not_hold_is_not_started(tmp_path: Path, monkeypatch: Any) -> None:
    started: list[str] = []

    def execute(cell: Cell, *_: Any) -> dict[str, Any]:
        started.append(cell.name)
        return {"key": "k", "cell": cell.name, "status": 0, "seconds": 1.0, "seen": None, "tail": ""}

    monkeypatch.setattr(serve_fleet, "execute", execute)
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path), "--version", V24, "--budget", "5"])
    assert serve_fleet.main() == 1
    assert started == []
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-1], "1000", "--only", CELL.name])
    assert serve_fleet.main() == 1  # what came to no end is no pass
    both = [matrix.plain(CELL, V24).name, matrix.reference(CELL, V24).name]
    assert started == [*both, CELL.name]


def test_a_cell_that_hangs_is_ended_shortly_after_the_budget(tmp_path: Path, monkeypatch: Any) -> None:
    class Hanging:
        limits: ClassVar[list[float]] = []

        def run(self, _spec: Path, log: Path, _env: dict[str, str], seconds: float) -> None:
            self.limits.append(seconds)
            log.write_text("still at it\n")

    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(serve_fleet, "specification", lambda *_: {})
    for budget, limit in (("90", 90 + serve_fleet.GRACE), ("1000", 3 * matrix.seconds(CELL) + 120)):
        asked = args(tmp_path, "--budget", budget)
        scratch = tmp_path / budget
        session = serve_fleet.Session(asked, scratch, Hanging(), time.monotonic(), threading.Lock())  # type: ignore[arg-type]
        assert session.run(CELL)
        assert limit - 5 < Hanging.limits[-1] <= limit
    lines = [json.loads(text) for text in (tmp_path / "matrix.jsonl").read_text().splitlines()]
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
def test_a_cell_that_the_budget_ends_is_no_failure_and_is_run_again(
    tmp_path: Path, *, status: int | None, cut: bool, tail: str, came: str
) -> None:
    asked = args(tmp_path, "--only", "dense", "fp8", "graphs", "v1")
    put(asked, matrix.reference(CELL, V24), RIGHT)
    line = {**record({"stage": "start", "levels": {}}, status, tail), "cut": cut, "cell": CELL.name}
    with (tmp_path / "matrix.jsonl").open("a") as stream:
        stream.write(json.dumps({**line, "key": serve_fleet.key(CELL, asked)}) + "\n")
    late = came == "out of time"
    assert judge.outcome(line) == came
    assert (CELL in dict(serve_fleet.planned(asked))) is late
    serve_fleet.report(asked)
    text = (tmp_path / "matrix.md").read_text()
    assert f"| {CELL.name} | {came} | {'not run to its end' if late else 'FAIL'} |" in text
    # The reference here is no healthy one, and fails by itself.
    assert f"{1 if late else 2} failed, 0 without a kernel, {1 if late else 0} out of time" in text


def test_cells_that_are_named_come_first_after_their_references_and_though_they_are_skipped(
    tmp_path: Path,
) -> None:
    names = ["gemma4-windows-bf16-v1-graphs-synthetic", "dense-none-turbo-v1-eager"]
    asked = args(tmp_path, "--skip", "turbo", "synthetic", "--first", *names)
    order = [cell.name for cell, _ in serve_fleet.planned(asked)]
    assert order[:5] == [
        "hybrid-none-bf16-v1-eager", "gemma4-none-bf16-v1-eager", names[0],
        "dense-none-bf16-v1-eager", names[1],
    ]  # fmt: skip
    assert len(order) == len(set(order))
    assert [name for name in order if "turbo" in name or "synthetic" in name] == names
    with pytest.raises(SystemExit, match="no cell named dense-none"):
        serve_fleet.planned(args(tmp_path, "--first", "dense-none"))


@pytest.mark.parametrize(
    ("made", "asked", "wanted"),
    [
        ("both", None, []),
        ("code", {"cudagraph_mode": "NONE"}, ["9 graphs were captured"]),
        ("graphs", {"mode": 0, "cudagraph_mode": "FULL"}, ["4 parts of the models were compiled"]),
    ],
)
def test_compiled_code_and_graphs_are_asked_for_apart(
    tmp_path: Path, made: str, asked: dict[str, Any] | None, wanted: list[str]
) -> None:
    alone = args(tmp_path, "--made", made)
    eager = matrix.reference(CELL, V24)
    assert serve_fleet.key(eager, alone) == serve_fleet.key(eager, args(tmp_path))
    assert (serve_fleet.key(CELL, alone) == serve_fleet.key(CELL, args(tmp_path))) == (made == "both")
    engine = serve_fleet.specification(CELL, alone, tmp_path, tmp_path / "out")["engine"]
    assert engine.get("compilation_config") == asked
    engine = serve_fleet.specification(eager, alone, tmp_path, tmp_path / "out")["engine"]
    assert "compilation_config" not in engine
    told = serve_fleet.asked_of(CELL, alone)

    def found(**changes: Any) -> list[str]:
        what = seen(views=[view(**{"compiled": 4, **changes})])
        faults = judge.faults(CELL, record(what), RIGHT, matrix.expectation(CELL, V24), told)
        return [fault for fault in faults if "graphs" in fault or "compiled" in fault]

    assert found() == wanted
    healthy = {"code": {"captured": 0}, "graphs": {"compiled": 0}}
    assert found(**healthy.get(made, {})) == []
