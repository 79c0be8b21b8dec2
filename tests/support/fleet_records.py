"""Made-up records of the fleet's cells: healthy ones, and changes that stand for faults.

The test that imports this module has `tests/gpu` on its path.
"""

import json
from typing import Any

from fleet import judge, load
from fleet.matrix import Cell, Expectation

V24, V33 = "0.24.0+spark.5.00512fd5", "0.33.0+spark.2.0ede9e4c"
LEVELS = [1, 8]
CELL = Cell("dense", "dflash", "fp8", eager=False)
SERVES, TOLD = Expectation("serves"), Expectation("told")
ASKED = {
    "version": V24,
    "backend": "TRITON_ATTN",
    "device": "cuda",
    "prefix": True,
    "levels": LEVELS,
    "layers": 6,
}
RUNNER = "vllm.v1.worker.gpu_model_runner.GPUModelRunner"
PROPOSER = "vllm.v1.spec_decode.dflash.DFlashProposer"


NEAR = {"100": 0.0, "2000": 0.02, "4000": 3.5, "8000": 3.4}


def answers(asked: list[load.Asked]) -> list[dict[str, Any]]:
    return [{"tokens": [100] * one.output, "cached": 0, "near": [dict(NEAR)] * one.output} for one in asked]


def layer(backend: str = "TRITON_ATTN", cache: str = "fp8", **more: Any) -> dict[str, Any]:
    return {"backend": backend, "cache": cache, "kind": "Attention", "size": 128, "sinks": False, **more}


def view(**changes: Any) -> dict[str, Any]:
    layers = {f"model.layers.{place}.self_attn.attn": layer() for place in range(6)}
    layers["model.layers.6.self_attn.attn"] = layer("FLASH_ATTN", "auto")  # a drafter's own
    return {
        "runner": RUNNER, "drafter": PROPOSER, "layers": layers, "captured": 9, "prefix_cache": True,
        **changes,
    }  # fmt: skip


def seen(*, counted: dict[str, int] | None = None, **changes: Any) -> dict[str, Any]:
    rise = {"drafts": 40, "drafted": 120, "accepted": 30} if counted is None else counted
    levels = {
        str(level): {"answers": answers(load.requests(level)), "counters": dict(rise)} for level in LEVELS
    }
    cold = answers([load.prefix()])[0]
    found = {
        "stage": "end",
        "vllm": V24,
        "view": view(),
        "levels": levels,
        "cold": cold,
        "boot_seconds": 9.0,
    }
    return {**found, "warm": {**cold, "cached": 1024}, **changes}


def record(what: dict[str, Any] | None, status: int | None = 0, tail: str = "") -> dict[str, Any]:
    return {"status": status, "seconds": 30.0, "seen": what, "tail": tail}


RIGHT = seen(counted={})


def faults(what: dict[str, Any], cell: Cell = CELL, wanted: Expectation = SERVES) -> list[str]:
    return judge.faults(cell, record(what), RIGHT, wanted, ASKED)


def other(what: dict[str, Any], token: int, *, level: str = "8", requests: int = 1) -> dict[str, Any]:
    """Return a copy with another token at the fifth place of some answers of a level."""
    changed = json.loads(json.dumps(what))
    for one in changed["levels"][level]["answers"][:requests]:
        one["tokens"][4] = token
    return changed
