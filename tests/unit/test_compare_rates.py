"""The comparison of two trees' rates: what it makes of them, and what it takes for a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import compare_rates

# A worker's process, without vLLM: it answers as it is told to.
ANSWERS = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    c, seed = json.loads(line)
    print(json.dumps({"seconds": %s, "tokens": c * %d}), flush=True)
"""


def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, seconds: str = "2.0", tokens: int = 10) -> Any:
    started = compare_rates.subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        assert command[2] == "--worker"
        spec = json.loads(command[3])
        assert (spec["tokens"], spec["engine"]) == (10, {"attention_backend": "FLASH_ATTN"})
        # On, it makes model runner V2 import FlashInfer, which not every installation has.
        assert options["env"]["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
        return started([sys.executable, "-c", ANSWERS % (seconds, tokens)], **options)

    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    monkeypatch.setattr(compare_rates.subprocess, "Popen", start)
    engine = {"attention_backend": "FLASH_ATTN"}
    args = SimpleNamespace(out=tmp_path, tokens=10, gpu_memory_utilization=0.3, engine=engine)
    made = compare_rates.Worker("stock", "/nowhere", "v1-graphs", args, tmp_path)  # type: ignore[arg-type]
    assert made.ready(60)
    return made


def test_a_rate_is_tokens_of_output_over_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = worker(tmp_path, monkeypatch)
    assert made.rate(3, seed=1) == pytest.approx(3 * 10 / 2.0)
    made.end()
    assert made.process.poll() is not None


def test_a_round_with_other_tokens_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = worker(tmp_path, monkeypatch, tokens=9)
    with pytest.raises(ValueError, match="c = 3"):
        made.rate(3, seed=1)
    made.end()


def test_the_ratio_is_that_of_neighbours_and_not_of_the_medians() -> None:
    # The machine gets slower and slower, and the second tree takes 10 % longer throughout.
    first = [1000.0, 800.0, 600.0, 400.0, 300.0, 200.0]
    found = compare_rates.summary("v1-graphs", 8, first, [rate / 1.1 for rate in first])
    assert found.ratio == pytest.approx(1 / 1.1)
    assert found.low == pytest.approx(1 / 1.1)
    assert found.high == pytest.approx(1 / 1.1)
    assert found.pairs == len(first)


def test_rounds_that_scatter_give_a_wide_interval() -> None:
    found = compare_rates.summary("v1-graphs", 8, [100.0] * 6, [50.0, 60.0, 90.0, 110.0, 140.0, 150.0])
    assert found.low < 0.8 < found.ratio < 1.2 < found.high


@pytest.mark.parametrize(
    ("low", "high", "status"), [(0.90, 0.96, 1), (0.90, 1.02, 0), (0.98, 1.01, 0)], ids=str
)
def test_slower_beyond_doubt_is_a_failure_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, low: float, high: float, status: int
) -> None:
    ratio = compare_rates.Ratio("v1-graphs", 8, 100.0, 95.0, 0.95, low, high, 6)
    monkeypatch.setattr(compare_rates, "compare", lambda *_: [ratio])
    assert main(tmp_path, monkeypatch) == status
    assert "| v1-graphs | 8 | 100 | 95 | 0.950 |" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_an_engine_that_does_not_boot_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> list[Any]:
        raise ValueError("stock did not boot")

    monkeypatch.setattr(compare_rates, "compare", fail)
    assert main(tmp_path, monkeypatch) == 1


def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    command = ["compare_rates.py", "--tree", "stock=/a", "--tree", "patched=/b", "--runs", "v1-graphs"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(tmp_path)])
    return compare_rates.main()


def test_an_engine_that_hangs_while_booting_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = worker(tmp_path, monkeypatch)  # it said that it is ready, and says no more
    assert not made.ready(0.2)
    made.end()
