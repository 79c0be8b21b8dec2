"""`sparkwright serve` with a real vLLM and a real model: the merged Python on the CPU."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from serve_kit import SECRET, TOOL, Serving, all_files, key_file

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Any]:
    started: list[Serving] = []

    def start(*words: str | Path) -> Serving:
        out = tmp_path / f"{len(started)}.jsonl"
        argv = [sys.executable, "-m", "sparkwright", "serve", "rehearsal-smollm2", "--series", "0.24"]
        with out.open("w") as stream:
            child = subprocess.Popen(
                [*argv, "--json", "--port", "0", *map(str, words)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        started.append(Serving(child, out, patience_s=1200.0))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def test_a_real_model_chats_calls_a_tool_and_is_gone_at_the_end(serving: Any, tmp_path: Path) -> None:
    # The warm-up is the shorter for it.
    small = ("--set", "max-num-seqs=2", "--set", "max-num-batched-tokens=64")
    this = serving("--api-key-file", key_file(tmp_path), *small)
    ready = this.wait_for("serve.ready")
    # What so small a model says differs between processors.
    assert len(this.chat(ready["url"], "What is the capital of France?", SECRET)["content"].split()) > 2
    choice = {"type": "function", "function": {"name": "get_weather"}}
    called = this.chat(ready["url"], "Weather in Rome?", SECRET, tools=[TOOL], tool_choice=choice)
    (call,) = called["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert list(json.loads(call["function"]["arguments"])) == ["city"]
    assert requests.get(f"{ready['url']}/models", timeout=60).status_code == 401, "the key is demanded"
    state = this.wait_for("serve.status", tokens_per_s=0.1)
    assert state["available_gib"] > 0
    assert len(this.family) >= 3, "guard, server and engine core"
    assert SECRET not in this.command_lines()
    status, errors = this.stop(signal.SIGTERM)
    assert status == 0, errors
    assert this.lines()[-1]["orphans"] == 0
    assert SECRET not in all_files(Path(ready["log"]).parent) + this.out.read_text() + errors
