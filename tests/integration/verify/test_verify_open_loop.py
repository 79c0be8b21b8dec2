"""The search for a capacity against the simulated server, and open loops against a server that waits."""

import json
from pathlib import Path

import pytest
from command import call

DEMO = ("--demo", "--slo", "e2e_p50=1.5s", "--max-tokens", "16")


@pytest.mark.walk
def test_the_capacity_of_the_simulator_is_found(tmp_path: Path) -> None:
    done = call("verify", *DEMO, "--speed", "15", "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    finding = json.loads(done.stdout)["findings"][0]
    assert "at E2E p50 ≤ 1.5 s" in finding["cause"]
    assert 1 < finding["measured"]["requests/s"] < finding["measured"]["lowest failed"] < 6


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--demo", "--slo", "ttft_p95=2"), "unit is missing"),
        (("--demo", "--slo", "ttft_p95=2s", "--prompts", "own.jsonl"), "line 1 is not JSON"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_starts(tmp_path, arguments, told):
    (tmp_path / "own.jsonl").write_text('{"prompt": "x"')
    done = call("verify", *arguments, "--out", "run", cwd=tmp_path)
    assert done.returncode != 0
    assert told in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
