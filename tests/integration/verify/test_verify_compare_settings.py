"""``sparkwright verify compare --vary`` on simulated servers, through kills: journal, page and recipe."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import begin, call
from killed import stopped

from sparkwright.recipes.recipe import load_recipe

pytestmark = pytest.mark.slow

SIZES = ("--demo", "--speed", "30", "--levels", "1,4")
BATCHED = "max-num-batched-tokens"
# Of the recipe's settings one varies, and each value is a server with another fault.
PLANTED = {
    8192: "slow=3",  # the recipe as it is
    5120: "boot-cuda-oom",
    6144: "word-salad",
    7168: "slow=30",  # its first tokens take 6 s and more
}
BEST = 4096


def compare(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return call("verify", "compare", *arguments, cwd=cwd)


def cells(run: Path) -> list[str]:
    path = run / "journal.jsonl"
    *whole, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    lines: list[dict[str, Any]] = [json.loads(line) for line in whole]
    return [line["id"] for line in lines if line["kind"] == "cell"]


@pytest.mark.walk
def test_a_comparison_through_two_kills_finds_the_planted_best(tmp_path: Path) -> None:
    run = tmp_path / "run"
    faults = [word for value, fault in PLANTED.items() for word in ("--fault", f"{fault}@{BATCHED}={value}")]
    values = ",".join(map(str, sorted({*PLANTED, BEST})))
    asked = (
        "qwen3.8-27b-mtp", *SIZES, "--vary", f"{BATCHED}={values}", "--slo", "ttft_p95=4s", *faults,
        "--out", "run",
    )  # fmt: skip
    for count, words in ((1, asked), (5, ("--resume", "run"))):
        child = begin("verify", "compare", *words, cwd=tmp_path)
        stopped(child, signal.SIGKILL, lambda count=count: len(cells(run)) >= count)
    done = compare("--resume", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    best, *rows = json.loads(done.stdout)["findings"]
    assert best["cause"].startswith(f"{BATCHED} {BEST}: +")
    causes = {one["name"]: one["cause"] for one in rows}
    standings = {one["name"]: one["measured"]["standing"] for one in rows}
    assert "CUDA out of memory" in causes[f"{BATCHED} 5120"]
    assert "TTFT p95" in causes[f"{BATCHED} 7168"]
    assert "known facts are right" in causes[f"{BATCHED} 6144"]
    assert {standings[f"{BATCHED} {value}"] for value in (5120, 6144, 7168)} == {"left out"}
    assert standings["the recipe as it is"] == "slower"
    found = cells(run)
    assert len(found) == len(set(found))
    assert load_recipe(run / "recipe.toml").flags[BATCHED] == BEST
    assert "CUDA out of memory" in (run / "report.html").read_text(encoding="utf-8")


def test_a_plan_starts_nothing(tmp_path: Path) -> None:
    done = compare("qwen3.8-27b-mtp", "--demo", "--vary", f"{BATCHED}=8192,7168", "--plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "starts" in done.stdout
    assert list(tmp_path.iterdir()) == []
