"""The judge of predicted memory: figures beyond preflight's are found, those within it pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import memory_budget
from memory_budget import CASES, SHAPES, Case

from sparkwright.engine.observations import BootFacts
from sparkwright.serve.preflight.checkpoint import read_checkpoint

GPU = Path(__file__).parents[1] / "gpu"
GRAPHS, EAGER = Case("8b", "auto", eager=False), Case("8b", "auto", eager=True)
EXPECTED = {"weights": 15.0, "kv": [47.0, 52.0, 54.0], "graphs": (0.1, 1.0, 3.0)}
SEEN: dict[str, float | None] = {"weights": 15.2, "kv": 50.0, "graphs": 0.7}


def test_figures_within_the_prediction_pass() -> None:
    assert memory_budget.faults(GRAPHS, EXPECTED, SEEN) == []
    assert memory_budget.faults(EAGER, EXPECTED, {**SEEN, "graphs": None}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": 16.0}, "weights take 16.00 GiB, predicted 15.00"),
        ({"kv": 46.0}, "the KV cache has 46.00 GiB, predicted 47.00 to 54.00"),
        ({"kv": 55.0}, "the KV cache has 55.00 GiB"),
        ({"graphs": 3.5}, "graphs take 3.50 GiB, predicted 0.10 to 3.00"),
        ({"graphs": None}, "graphs was not measured"),
        ({"weights": None}, "weights was not measured"),
        ({"kv": None}, "kv was not measured"),
    ],
)
def test_a_figure_beyond_it_is_found(change: dict[str, float | None], said: str) -> None:
    (fault,) = memory_budget.faults(GRAPHS, EXPECTED, {**SEEN, **change})
    assert fault.startswith(said)


def test_what_the_log_lacks_is_not_measured() -> None:
    assert memory_budget.measurement(BootFacts()) == {"weights": None, "kv": None, "graphs": None}
    facts = BootFacts(weights_gib=1.5, kv_gib=3.0, graph_actual_gib=0.2)
    assert memory_budget.measurement(facts) == {"weights": 1.5, "kv": 3.0, "graphs": 0.2}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_has_the_published_number_of_parameters(tmp_path: Path, shape: str) -> None:
    folder = memory_budget.write_checkpoint(tmp_path / shape, SHAPES[shape])
    published = {"0.6b": 0.596e9, "1.7b": 1.72e9, "8b": 8.19e9}[shape]
    size = (folder / "model.safetensors").stat()
    assert size.st_size / 2 == pytest.approx(published, rel=0.01)
    assert size.st_blocks * 512 < 1 << 20, "it is a hole"
    assert read_checkpoint(shape, folder).text["num_hidden_layers"] == SHAPES[shape]["layers"]


def test_predictions_need_no_gpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(GPU / "memory_budget.py"), "--out", str(tmp_path), "--plan", "--only", "1.7b"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, dict[str, Any]] = {
        name: json.loads(text)
        for name, _, text in (line.partition(": ") for line in done.stdout.splitlines())
    }
    assert sorted(found) == sorted(case.name for case in CASES if case.shape == "1.7b")
    eager, graphs = found["1.7b-auto-eager"], found["1.7b-auto-graphs"]
    assert eager["weights"] == graphs["weights"] == pytest.approx(1.72 * 2 / 1.0737, rel=0.01)
    assert eager["kv"][0] > graphs["kv"][0], "graphs take memory of the cache's"


def test_the_table_has_every_case() -> None:
    records = {
        case.name: {"predicted": EXPECTED, "measured": SEEN, "faults": ["x"] if case.eager else []}
        for case in (GRAPHS, EAGER)
    }
    text = memory_budget.table(records)
    assert f"| {GRAPHS.name} | 15.20 | 15.00 | 50.00 | 47.00 / 52.00 / 54.00 |" in text
    assert [line.rpartition("| ")[2] for line in text.splitlines()[2:]] == ["agrees |", "FAIL |"]


def test_a_boot_is_held_against_its_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_engine(_module: str, _spec: Path, log: Path, _env: dict[str, str], _seconds: float) -> int:
        log.write_text("nothing of weights\n")
        return 3

    monkeypatch.setattr(memory_budget, "run_engine", run_engine)
    monkeypatch.setattr(memory_budget, "predicted", lambda *_, **__: None)
    monkeypatch.setattr(memory_budget, "prediction", lambda _: EXPECTED)
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path), "--only", "0.6b-fp8-eager"])
    assert memory_budget.main() == 1
    (record,) = json.loads((tmp_path / "report.json").read_text()).values()
    assert record["faults"] == ["weights was not measured", "kv was not measured", "exit status 3"]
