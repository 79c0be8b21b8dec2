"""Preflight as a person meets it: ``doctor RECIPE``, and before ``verify`` starts a server."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_kit import DENSE, write_checkpoint
from hub_kit import HubServer, hub_server

from sparkwright.cli.main import main

RECIPE = """\
format = 1
name = "small"
title = "a small model"
model = "{model}"

[flags]
max-model-len = 1024
max-num-seqs = 2
max-num-batched-tokens = 256
gpu-memory-utilization = {utilization}

[environment]
VLLM_CPU_KVCACHE_SPACE = "{space}"
HF_HUB_OFFLINE = "1"
"""


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a card: no nvidia-smi on PATH, but what other commands need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "uv", "g++", "gcc"):
        if (found := shutil.which(name)) is not None:
            (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))


def write(tmp_path: Path, *, tokenizer: bool = True, utilization: float = 0.1, space: str = "0.1") -> Path:
    model = write_checkpoint(tmp_path / "model", DENSE, tokenizer=tokenizer)
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.format(model=model, utilization=utilization, space=space))
    return path


def test_a_healthy_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write(tmp_path)
    assert main(["doctor", str(recipe)]) == 0
    out = capsys.readouterr().out
    assert "KV cache, one request of 1,024 tokens" in out
    assert main(["doctor", str(recipe), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["findings"] == []
    weights = next(row for row in told["memory"] if row["part"] == "weights")
    assert weights["gib"] == pytest.approx(2 * 512 * 64 * 2 / (1 << 30))


def test_a_use_of_a_recipe(tmp_path: Path) -> None:
    recipe = write(tmp_path)
    use = '[uses.many]\ntitle = "many"\nflags = { max-model-len = 1048576 }\n'
    recipe.write_text(f"{recipe.read_text()}\n{use}")
    assert main(["doctor", str(recipe)]) == 0
    assert main(["doctor", str(recipe), "--use", "many"]) == 76
    assert main(["doctor", str(recipe), "--use", "none"]) == 10


def verify(recipe: Path) -> int:
    """Return the exit status of a verification by *recipe*, with an interpreter that has no vLLM."""
    words = ["--python", sys.executable, "--recipe", str(recipe), "--out", "run", "--checks", "boot"]
    return main(["verify", *words])


def test_verify_starts_nothing_that_would_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding comes before the interpreter is found to have no vLLM, and no server has a folder."""
    monkeypatch.chdir(tmp_path)
    recipe = write(tmp_path, tokenizer=False)
    assert verify(recipe) == 76
    assert "has no tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "run" / "servers").exists()


def test_verify_leaves_models_that_are_not_here_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "absent.toml"
    recipe.write_text(RECIPE.format(model="org/absent", utilization=0.1, space="0.1"))
    assert verify(recipe) == 77
    assert "has no vLLM" in capsys.readouterr().err


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as server:
        server.models["org/small"] = write_checkpoint(tmp_path / "remote", DENSE)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
        yield server


def remote(tmp_path: Path) -> Path:
    path = tmp_path / "remote.toml"
    text = RECIPE.format(model="org/small", utilization=0.1, space="0.1")
    path.write_text(text.replace('HF_HUB_OFFLINE = "1"\n', ""))
    return path


def test_serve_refuses_a_model_that_it_may_not_fetch_before_it_installs_anything(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "vllm-0.24.0-cp38-abi3-linux_x86_64.whl"
    wheel.write_bytes(b"no wheel")
    words = ["serve", str(remote(tmp_path)), "--wheel", str(wheel), "--port", "0"]
    hub.gated.add("org/small")
    assert main(words) == 76
    assert "org/small cannot be fetched" in capsys.readouterr().err
    hub.gated.clear()
    assert main(words) != 76  # it gets as far as the wheel
    shown = capsys.readouterr()
    assert re.search(r"org/small is fetched before the server starts: [\d.]+ KiB in 4 files", shown.out)
    assert "cannot be fetched" not in shown.err
