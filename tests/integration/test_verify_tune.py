"""``sparkwright verify tune`` on simulated servers, through kills: processes, journal, page and recipe."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkwright.recipes import load_recipe

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "sparkwright", "verify", "tune")
SIZES = ("--demo", "--speed", "10", "--levels", "1,4", "--requests", "4", "--max-tokens", "16")
BATCHED = "max-num-batched-tokens"
# Of the recipe's settings one varies, and each value is a server with another fault.
PLANTED = {
    8192: "slow=3",  # the recipe as it is
    5120: "boot-cuda-oom",
    6144: "word-salad",
    7168: "slow=70",  # its first tokens take 14 s and more
}
BEST = 4096


def tune(*arguments: str | Path, cwd: Path, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def lines(run: Path) -> list[dict[str, Any]]:
    path = run / "journal.jsonl"
    *whole, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    return [json.loads(line) for line in whole]


def cells(run: Path) -> list[str]:
    return [line["id"] for line in lines(run) if line["kind"] == "cell"]


def left_behind(run: Path) -> list[int]:
    """Return processes that work in the folder of *run*."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(process.cwd()).startswith(str(run)):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def killed_after(count: int, run: Path, *arguments: str, cwd: Path) -> None:
    """Begin or continue the search, and kill it once the journal holds *count* cells."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 300
        while len(cells(run)) < count and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert process.poll() is None, "it ended before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.walk
def test_a_search_through_two_kills_finds_the_planted_best(tmp_path: Path) -> None:
    run = tmp_path / "run"
    faults = [word for value, fault in PLANTED.items() for word in ("--fault", f"{fault}@{BATCHED}={value}")]
    values = ",".join(map(str, sorted({*PLANTED, BEST})))
    asked = (
        "qwen3.8-27b-mtp", *SIZES, "--vary", f"{BATCHED}={values}", "--slo", "ttft_p95=10s", *faults,
        "--out", "run",
    )  # fmt: skip
    killed_after(1, run, *asked, cwd=tmp_path)
    killed_after(5, run, "--resume", "run", cwd=tmp_path)
    done = tune("--resume", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    states = {one["settings"][BATCHED]: one for one in told["configurations"]}
    assert told["to-serve"] == states[BEST]["key"], told["result"]
    assert (states[5120]["state"], states[7168]["state"]) == ("untestable", "breaks a limit")
    assert "CUDA out of memory" in states[5120]["because"]
    assert "TTFT" in states[7168]["because"]
    assert states[6144]["state"] == "worse answers"
    assert states[8192]["state"] == "slower"
    found = cells(run)
    assert len(found) == len(set(found))
    refusals = [line["name"] for line in lines(run) if line["kind"] == "note"]
    assert len(refusals) == 1
    assert load_recipe(run / "recipe.toml").flags[BATCHED] == BEST
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Serve another configuration" in page
    assert "CUDA out of memory" in page
    assert not left_behind(run)


def test_a_search_in_which_nothing_starts_fails_with_the_reason(tmp_path: Path) -> None:
    asked = ("qwen3.8-27b-mtp", *SIZES, "--vary", f"{BATCHED}=8192,7168", "--fault", "boot-cuda-oom")
    done = tune(*asked, "--out", "run", cwd=tmp_path)
    assert done.returncode == 83, done.stderr
    assert "2 untestable" in done.stderr
    assert "CUDA out of memory" in done.stdout


def test_a_plan_starts_nothing(tmp_path: Path) -> None:
    done = tune("qwen3.8-27b-mtp", "--demo", "--vary", f"{BATCHED}=8192,7168", "--plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 configurations: at least 2 starts, at most 6" in done.stdout
    assert list(tmp_path.iterdir()) == []
