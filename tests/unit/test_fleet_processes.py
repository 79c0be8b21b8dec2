"""Engines of the fleet as forks of one process: each has its own status, time limit and output."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import serve_fleet
from fleet import judge
from fleet.matrix import Cell
from fleet.processes import Forks

# Stands in for vLLM: an engine that says what it was told, and ends as it was told.
STUB = """
import os, sys, time
__version__ = "0"
class LLM:
    def __init__(self, status, seconds):
        print("told", os.environ.get("FLEET_TOLD"), os.environ.get("FLEET_SERVER"), flush=True)
        time.sleep(seconds)
        os._exit(status)
"""


@pytest.fixture
def forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forks:
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "vllm.py").write_text(STUB, encoding="utf-8")
    monkeypatch.syspath_prepend(str(stub))
    monkeypatch.setenv("FLEET_SERVER", "")  # restored afterwards
    return Forks({"FLEET_SERVER": "server"}, "cpu", tmp_path / "first.log")


def specification(folder: Path, name: str, **engine: float) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"engine": engine, "out": str(folder / f"{name}.out")}), encoding="utf-8")
    return path


def test_each_engine_has_its_own_status_and_output(forks: Forks, tmp_path: Path) -> None:
    def run(number: int) -> tuple[int | None, str]:
        name = f"engine-{number}"
        env = dict(os.environ) | {"FLEET_TOLD": name, "FLEET_SERVER": "own"}
        spec = specification(tmp_path, name, status=number, seconds=0)
        status = forks.run(spec, tmp_path / f"{name}.log", env, 60)
        return status, (tmp_path / f"{name}.log").read_text(encoding="utf-8")

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(run, range(12)))
    assert found == [(number, f"told engine-{number} own\n") for number in range(12)]


def test_an_engine_that_hangs_is_ended(forks: Forks, tmp_path: Path) -> None:
    spec = specification(tmp_path, "hangs", status=0, seconds=600)
    assert forks.run(spec, tmp_path / "hangs.log", dict(os.environ), 1) is None
    assert "told" in (tmp_path / "hangs.log").read_text(encoding="utf-8")


def test_an_engine_that_raises_says_why(forks: Forks, tmp_path: Path) -> None:
    spec = specification(tmp_path, "raises", unknown=1)
    assert forks.run(spec, tmp_path / "raises.log", dict(os.environ), 60) == 1
    assert "unexpected keyword argument 'unknown'" in (tmp_path / "raises.log").read_text(encoding="utf-8")


def test_a_fork_that_cannot_use_the_card_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "torch.py").write_text("raise RuntimeError('no card')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(stub))
    with pytest.raises(RuntimeError, match="cannot use the card"):
        Forks({}, "cuda", tmp_path / "first.log")
    assert "no card" in (tmp_path / "first.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("engine", "came"),
    [
        ({"status": 0, "seconds": 600}, "out of time"),
        ({"status": 3, "seconds": 0}, "crashed"),
    ],
)
def test_a_fork_that_the_budget_ends_is_out_of_time(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: dict[str, int], came: str
) -> None:
    (tmp_path / "logs").mkdir()
    told = {"engine": engine, "out": str(tmp_path / "seen.json")}
    monkeypatch.setattr(serve_fleet, "specification", lambda *_: told)
    monkeypatch.setattr(serve_fleet, "GRACE", 0.0)
    args = serve_fleet.arguments(["--out", str(tmp_path), "--version", "0.24.0"])
    line = serve_fleet.execute(Cell("dense"), args, tmp_path / "scratch", forks, 5.0)
    assert judge.outcome(line) == came
