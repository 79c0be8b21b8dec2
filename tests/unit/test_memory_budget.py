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


def test_what_was_measured_is_not_booted_again(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    record = {"vllm": "0.33.0", "measured": SEEN}
    path.write_text(json.dumps(record))
    assert memory_budget.known(path, "0.33.0") == record
    assert memory_budget.known(path, "0.24.0") is None
    path.write_text(json.dumps({"vllm": "0.33.0", "measured": {**SEEN, "weights": None}}))
    assert memory_budget.known(path, "0.33.0") is None
    assert memory_budget.known(tmp_path / "none", "0.33.0") is None


def test_the_table_has_every_case() -> None:
    records = {
        case.name: {"predicted": EXPECTED, "measured": SEEN, "faults": ["x"] if case.eager else []}
        for case in (GRAPHS, EAGER)
    }
    text = memory_budget.table(records)
    assert f"| {GRAPHS.name} | 15.20 | 15.00 | 50.00 | 47.00 / 52.00 / 54.00 |" in text
    assert [line.rpartition("| ")[2] for line in text.splitlines()[2:]] == ["agrees |", "FAIL |"]


def test_the_report_lists_cases_of_earlier_calls_and_fails_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert memory_budget.report(tmp_path, "0.24.0") == 1, "nothing on record is no pass"
    (tmp_path / "cases").mkdir()
    for case, vllm, wrong in ((EAGER, "0.24.0", []), (GRAPHS, "0.24.0", []), (CASES[0], "0.33.0", ["x"])):
        record = {"vllm": vllm, "predicted": EXPECTED, "measured": SEEN, "faults": wrong}
        (tmp_path / "cases" / f"{case.name}.json").write_text(json.dumps(record))
    assert memory_budget.report(tmp_path, "0.24.0") == 0
    text = (tmp_path / "table.md").read_text()
    assert EAGER.name in text
    assert GRAPHS.name in text
    assert CASES[0].name not in text, "it is of another vLLM"
    assert memory_budget.report(tmp_path, "0.33.0") == 1
    assert "0 passed, 1 failed" in capsys.readouterr().out
