"""The judge of predicted memory: figures beyond preflight's are found, those within it pass."""

import json
import sys
from pathlib import Path
from typing import Any

import memory_budget
import pytest
from memory_budget import Case

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


def test_a_boot_is_held_against_its_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_engine(
        _module: str, _spec: dict[str, Any], log: Path, _env: dict[str, str], _seconds: float
    ) -> int:
        log.write_text("nothing of weights\n")
        return 3

    monkeypatch.setattr(memory_budget, "run_engine", run_engine)
    monkeypatch.setattr(memory_budget, "predicted", lambda *_, **__: None)
    monkeypatch.setattr(memory_budget, "prediction", lambda _: EXPECTED)
    monkeypatch.setattr(sys, "argv", ["x", "--out", str(tmp_path), "--only", "0.6b-fp8-eager"])
    assert memory_budget.main() == 1
    (record,) = json.loads((tmp_path / "report.json").read_text()).values()
    assert record["faults"] == ["weights was not measured", "kv was not measured", "exit status 3"]
