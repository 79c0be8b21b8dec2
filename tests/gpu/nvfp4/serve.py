"""A tiny Qwen3 served over an NVFP4 cache: both runners, with and without DFlash, c = 1…64; capacity.

Each engine is a process of its own, a few at a time: boots are Python's imports for the most part. The pool
of every engine has the same size in bytes, so that the tokens that it holds can be compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pair.models import write_models
from pair.sessions import ended, engines_end_on_sigterm

from nvfp4.record import Recorder

__all__ = ["environment", "odd_layers", "processes", "run"]

LEVELS = [1, 2, 3, 4, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64]
CACHE_BYTES = 4 << 30
AT_ONCE = 4
SECONDS = 240
SIZE = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    """One engine."""

    name: str
    cache: str = "nvfp4"
    runner: str = "v1"
    drafter: bool = False
    eager: bool = True
    levels: tuple[int, ...] = tuple(LEVELS)
    drafter_backend: str | None = None


RUNS = [
    Run("v1-dflash-graphs", drafter=True, eager=False, drafter_backend="TRITON_ATTN"),
    Run("v2-dflash-graphs", runner="v2", drafter=True, eager=False),
    Run("v1-plain-graphs", eager=False),
    Run("v2-plain-graphs", runner="v2", eager=False),
    Run("v1-dflash-eager", drafter=True, levels=(1, 17, 64)),
    Run("v1-dflash-fp8", cache="fp8", drafter=True, drafter_backend="TRITON_ATTN", levels=(1, 17, 64)),
    Run("v1-plain-fp8", cache="fp8", levels=(1,)),
    Run("v1-plain-auto", cache="auto", levels=(1,)),
]


def odd_layers(spec: dict[str, Any], layers: dict[str, dict[str, Any]]) -> list[str]:
    """Return the layers whose cache or backend is not the one asked for; a drafter's follow the target's."""
    extra = spec.get("speculative_extra", {})
    wanted = {
        False: (spec["cache"], spec["backend"]),
        True: (extra.get("kv_cache_dtype", spec["cache"]), extra.get("attention_backend", spec["backend"])),
    }
    odd = []
    for name, layer in layers.items():
        cache, backend = wanted[int(name.split("layers.")[1].split(".")[0]) >= spec["layers"]]
        plain = {"auto", "bfloat16"}
        same = layer["dtype"] == cache or {layer["dtype"], cache} <= plain
        if not same or layer["backend"] != backend:
            odd.append(name)
    return odd


def environment(runner: str, scratch: Path) -> dict[str, str]:
    """Return the engine's environment: offline, its model runner pinned, nothing stale."""
    return os.environ | {
        "VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "v2" else "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled for a minute, and no request here needs it
        "VLLM_CACHE_ROOT": str(scratch / "vllm-cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }


@dataclass
class Process:
    """A child with its log; ended with all that it started."""

    name: str
    child: subprocess.Popen[bytes]
    guard: contextlib.ExitStack
    begun: float

    def end(self) -> int:
        """Kill what is left of it; its exit status.

        Raises:
            SystemExit: SIGTERM has arrived.
        """
        status = self.child.poll()
        try:
            self.guard.close()
        finally:
            self.child.wait()
        return -1 if status is None else status


def processes(
    commands: dict[str, tuple[list[str], dict[str, str]]], logs: Path, at_once: int, seconds: float
) -> dict[str, int]:
    """Run commands, *at_once* of them together; exit status by name, -1 for one that took too long."""
    waiting, running, done = list(commands.items()), list[Process](), {}
    with engines_end_on_sigterm():
        while waiting or running:
            while waiting and len(running) < at_once:
                name, (command, env) = waiting.pop(0)
                running.append(started(name, command, env, logs / f"{name}.log"))
            time.sleep(0.2)
            for one in list(running):
                if one.child.poll() is not None or time.monotonic() - one.begun > seconds:
                    done[one.name] = one.end()
                    running.remove(one)
    return done


def started(name: str, command: list[str], env: dict[str, str], log: Path) -> Process:
    """Start a process in a session of its own, which ends with this script."""
    guard = contextlib.ExitStack()
    with log.open("wb") as stream:
        child = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
    guard.enter_context(ended(child.pid))
    return Process(name, child, guard, time.monotonic())


def run(spec: dict[str, Any], record: Recorder) -> None:
    """All engines, then what their pools hold."""
    if spec["device"] == "cpu":
        record.write("fact", name="serve", value="needs a card")
        return
    logs = Path(spec["out"])
    chosen = [one for one in RUNS if not spec.get("runs") or one.name in spec["runs"]]
    with tempfile.TemporaryDirectory(prefix="nvfp4-serve-") as folder:
        scratch = Path(folder)
        target, drafter = write_models(scratch)
        commands = {}
        for one in chosen:
            given = {
                "run": one.name,
                "runner": one.runner,
                "cache": one.cache,
                "drafter": str(drafter) if one.drafter else "",
                "backend": "TRITON_ATTN",
                "speculative_extra": {"attention_backend": one.drafter_backend}
                if one.drafter_backend
                else {},
                "target": str(target),
                "eager": one.eager,
                "levels": list(one.levels),
                "layers": layers_of(target),
                "drafter_layers": layers_of(drafter),
                "max_num_seqs": 64,
                "gpu_memory_utilization": 0.25,
                "cache_bytes": CACHE_BYTES,
                "lines": spec["lines"],
            }
            file = scratch / f"{one.name}.json"
            file.write_text(json.dumps(given), encoding="utf-8")
            commands[one.name] = (
                [sys.executable, "-m", "nvfp4.engine", str(file)],
                environment(one.runner, scratch),
            )
        done = processes(commands, logs, AT_ONCE, SECONDS)
    for name, status in done.items():
        log = (logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        record.check(f"{name}: came to its end", status == 0, f"exit status {status}")
        if found := SIZE.search(log):
            tokens = int(found[1].replace(",", ""))
            record.write("capacity", run=name, tokens=tokens, gib=CACHE_BYTES / (1 << 30))
    capacity(record)


def layers_of(model: Path) -> int:
    """Return the layers of a model by its configuration."""
    return int(json.loads((model / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"])


def capacity(record: Recorder) -> None:
    """Compare the tokens of pools of equal size, by the boot logs."""
    from nvfp4.record import read

    lines = [line for line in read(record.file) if line["kind"] == "capacity"]
    tokens = {line["run"]: line["tokens"] for line in lines}
    ours, names = tokens.get("v1-plain-graphs"), {"fp8": "v1-plain-fp8", "16 bits": "v1-plain-auto"}
    for (name, run_name), wanted in zip(names.items(), (16 / 9, 32 / 9), strict=True):
        if ours and run_name in tokens:
            ratio = ours / tokens[run_name]
            detail = f"{ours:,} tokens against {tokens[run_name]:,}: {ratio:.3f}, by bytes {wanted:.3f}"
            record.check(f"tokens against {name}", abs(ratio / wanted - 1) < 0.01, detail)
