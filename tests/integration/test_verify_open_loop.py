"""The search for a capacity against the simulated server, and open loops against a server that waits."""

import json
from pathlib import Path

import pytest
from command import call
from test_engine_client_shapes import cell, run

from sparkwright.engine.client.load import arrivals

DEMO = ("--demo", "--slo", "e2e_p50=1.5s", "--max-tokens", "16")


def test_an_open_loop_sends_at_its_times_whatever_the_others_do() -> None:
    load = {"shape": "open", "concurrency": 0, "rate": 200.0, "requests": 40, "warm_up": 10, "seed": 3}
    samples, served = run(cell(**load))
    counted = [sample for sample in samples if sample.counted]
    assert len(counted) == 40
    assert 50 <= len(samples) <= 60
    due = sorted(
        sample.due for sample in samples
    )  # a busy machine may send two that are overdue the other way round
    schedule = [at for at, _ in zip(arrivals(200.0, 3), due, strict=False)]
    assert [(at - due[0]) / 1e9 for at in due] == pytest.approx(
        [at - schedule[0] for at in schedule], abs=1e-6
    )
    assert all(sample.started >= sample.due and sample.late >= 0 for sample in samples)
    assert len({body["prompt"] for body in served.asked}) == len(samples)


def test_other_loads_have_no_due_time() -> None:
    samples, _ = run(cell(requests=3))
    assert [(sample.due, sample.late) for sample in samples] == [(0, 0)] * 3


@pytest.mark.walk
def test_the_capacity_of_the_simulator_is_found(tmp_path: Path) -> None:
    done = call("verify", *DEMO, "--speed", "15", "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    finding = json.loads(done.stdout)["findings"][0]
    assert "at E2E p50 ≤ 1.5 s" in finding["cause"]
    assert (
        1 < finding["measured"]["low"] < finding["measured"]["requests/s"] < finding["measured"]["high"] < 6
    )


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
