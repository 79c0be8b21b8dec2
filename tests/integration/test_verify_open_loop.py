"""The search for a capacity against the simulated server, and open loops against a server that waits."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_engine_client_shapes import cell, run

from sparkwright.engine.client.load import arrivals

COMMAND = (sys.executable, "-m", "sparkwright", "verify")
DEMO = ("--demo", "--slo", "e2e_p50=1.5s", "--max-tokens", "16")


def capacity(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    argv = [*COMMAND, *map(str, arguments)]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300)


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
    done = capacity(*DEMO, "--speed", "15", "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    finding = json.loads(done.stdout)["findings"][0]
    assert "at E2E p50 ≤ 1.5 s" in finding["cause"]
    assert (
        1 < finding["measured"]["low"] < finding["measured"]["requests/s"] < finding["measured"]["high"] < 6
    )


@pytest.mark.walk
def test_a_search_on_the_simulator_is_reported_and_resumed(tmp_path: Path) -> None:
    limits = ("--slo", "tpot_p50=1ms", "--speed", "20")  # no rate keeps that, which is told after seven steps
    done = capacity(*DEMO, *limits, "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 83, done.stderr
    told = json.loads(done.stdout)
    assert told["findings"][0]["cause"].startswith("no rate holds at TPOT p50 ≤ 1 ms")
    rows = list(csv.DictReader((tmp_path / "run" / "cells.csv").read_text().splitlines()))
    assert {float(row["rate_req_s"]) for row in rows} == {2.0**-power for power in range(7)}
    assert "Goodput by rate" in (tmp_path / "run" / "report.html").read_text()
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))  # as if it had been stopped before its verdict
    again = capacity("--resume", "run", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["findings"] == told["findings"]
    assert sum(b'"kind":"cell"' in line for line in journal.read_bytes().splitlines()) == len(rows)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--demo", "--slo", "ttft_p95=2"), "unit is missing"),
        (("--demo", "--slo", "ttft_p95=2s", "--prompts", "own.jsonl", "--input-tokens", "500"), "exclude"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_starts(tmp_path, arguments, told):
    (tmp_path / "own.jsonl").write_text('{"prompt": "x"}\n')
    done = capacity(*arguments, "--out", "run", cwd=tmp_path)
    assert done.returncode != 0
    assert told in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
