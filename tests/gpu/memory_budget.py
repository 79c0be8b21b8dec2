#!/usr/bin/env python3
"""The memory that preflight predicts for a server, beside what the server takes when it boots on a GPU.

Needs one GPU, torch and an installed vLLM wheel of 0.24 or 0.33, and of this project's sources
what preflight imports (msgspec, which vLLM requires); downloads nothing::

    python3 tests/gpu/memory_budget.py --out /tmp/budget
    python3 tests/gpu/memory_budget.py --out /tmp/budget --only graphs --skip 8b

Checkpoints are made up: real shapes, real files of zeros, which take no disk. Each case is a server of one
checkpoint, KV cache and mode. What is compared, and fails the script:

- weights: preflight's bytes and vLLM's "Model loading took" differ by no more than 3 % or 0.1 GiB;
- KV cache: the measured pool lies between preflight's lowest and highest;
- CUDA graphs: the measured pool lies between preflight's lowest and highest.

``OUT`` receives each server's log, ``report.json`` and ``table.md``. The exit status is 0 when every figure
agreed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.shapes import ATTENTION, NORMS, config, rows
from fleet.tensors import Checkpoint, write_checkpoint
from pair.sessions import run_engine
from serve_pair import environment, parser_of, say

from sparkwright.engine.observations import BootFacts
from sparkwright.engine.server.bootlog import read_boot_log
from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.facts import PreflightRequest
from sparkwright.serve.preflight.machine import read_host
from sparkwright.serve.preflight.run import PreflightReport, inspect_start

GIB = 1 << 30
WEIGHTS_SHARE, WEIGHTS_GIB = 0.03, 0.1
SHAPES: dict[str, dict[str, int]] = {
    # Those of Qwen3's 0.6B, 1.7B and 8B.
    "0.6b": {"hidden": 1024, "middle": 3072, "layers": 28, "heads": 16, "tied": 1},
    "1.7b": {"hidden": 2048, "middle": 6144, "layers": 28, "heads": 16, "tied": 1},
    "8b": {"hidden": 4096, "middle": 12288, "layers": 36, "heads": 32, "tied": 0},
}
VOCABULARY, KV_HEADS, HEAD = 151_936, 8, 128


@dataclass(frozen=True)
class Case:
    """One server."""

    shape: str
    cache: str
    eager: bool

    @property
    def name(self) -> str:
        return f"{self.shape}-{self.cache}-{'eager' if self.eager else 'graphs'}"


CASES = [
    Case(shape, cache, eager) for shape in SHAPES for cache in ("auto", "fp8") for eager in (True, False)
]


def checkpoint(shape: dict[str, int]) -> Checkpoint:
    """Return the checkpoint of a Qwen3 of that *shape*."""
    hidden, middle, heads = shape["hidden"], shape["middle"], shape["heads"]
    told = config(
        "Qwen3ForCausalLM", "qwen3", shape["layers"], (heads, KV_HEADS, HEAD), hidden_size=hidden,
        intermediate_size=middle, max_position_embeddings=40_960, tie_word_embeddings=bool(shape["tied"]),
        vocab_size=VOCABULARY,
    )  # fmt: skip
    table = f"""model.embed_tokens V D; model.norm D; {ATTENTION}; {NORMS}; L.mlp.gate_proj M D;
        L.mlp.up_proj M D; L.mlp.down_proj D M{"" if shape["tied"] else "; lm_head V D"}"""
    sizes = {"V": VOCABULARY, "D": hidden, "M": middle, "Q": heads * HEAD, "K": KV_HEADS * HEAD, "S": HEAD}
    return Checkpoint(told, rows(table, "model.layers.", [""] * shape["layers"], **sizes))


def flags(case: Case) -> dict[str, Any]:
    """Return the engine's options of *case*."""
    return {
        "kv_cache_dtype": case.cache,
        "max_model_len": 16_384,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": case.eager,
        "skip_tokenizer_init": True,
    }


def recipe(case: Case, model: Path) -> Recipe:
    """Return a recipe that serves *model* as *case* says."""
    own = {name.replace("_", "-"): value for name, value in flags(case).items()}
    return Recipe(format=1, name="budget", title="made up", model=str(model), flags=own)


def predicted(case: Case, model: Path) -> PreflightReport:
    """Return preflight's report of *case* on this machine."""
    host = read_host(dict(os.environ), models=model)
    return inspect_start(PreflightRequest(recipe(case, model), python=Path(sys.executable), host=host))


def prediction(report: PreflightReport) -> dict[str, Any]:
    """Return the figures of a report in GiB; of estimates the lowest, likely and highest."""
    budget = report.budget
    rows = {row.part: (row.low, row.gib, row.high) for row in report.rows}
    # What takes the most leaves the least for the cache.
    pools = sorted(budget.pool(end) / GIB for end in ("low", "likely", "high"))
    return {"weights": budget.weights / GIB, "kv": pools, "graphs": rows.get("CUDA graphs", (0, 0, 0))}


def measurement(facts: BootFacts) -> dict[str, float | None]:
    """Return the figures of a boot in GiB; `None` where the log has none."""
    known = {"weights": facts.weights_gib, "kv": facts.kv_gib, "graphs": facts.graph_actual_gib}
    return {name: None if value is None or value < 0 else float(value) for name, value in known.items()}


def faults(case: Case, expected: dict[str, Any], seen: dict[str, float | None]) -> list[str]:
    """Return each figure that preflight did not predict, a line each."""
    found = [f"{name} was not measured" for name in ("weights", "kv") if seen.get(name) is None]
    weights, kv, graphs = seen.get("weights"), seen.get("kv"), seen.get("graphs")
    if weights is not None:
        allowed = max(WEIGHTS_GIB, WEIGHTS_SHARE * weights)
        if abs(weights - expected["weights"]) > allowed:
            found.append(f"weights take {weights:.2f} GiB, predicted {expected['weights']:.2f}")
    low, _, high = expected["kv"]
    if kv is not None and not low <= kv <= high:
        found.append(f"the KV cache has {kv:.2f} GiB, predicted {low:.2f} to {high:.2f}")
    if case.eager:
        return found
    low, _, high = expected["graphs"]
    if graphs is None:
        found.append("graphs was not measured")
    elif not (low or 0) <= graphs <= (high or 0):
        found.append(f"graphs take {graphs:.2f} GiB, predicted {low or 0:.2f} to {high or 0:.2f}")
    return found


def table(records: dict[str, dict[str, Any]]) -> str:
    rows = ["| case | weights | predicted | KV | predicted | graphs | predicted | verdict |"]
    rows.append("|---|---:|---:|---:|---:|---:|---:|---|")
    for name, one in records.items():
        cells = [name]
        for part in ("weights", "kv", "graphs"):
            value, wanted = one["measured"].get(part), one["predicted"][part]
            cells.append("none" if value is None else f"{value:.2f}")
            spread = wanted if isinstance(wanted, (list, tuple)) else (wanted,)
            cells.append(" / ".join(f"{one or 0:.2f}" for one in spread))
        rows.append(f"| {' | '.join(cells)} | {'FAIL' if one['faults'] else 'agrees'} |")
    return "\n".join(rows)


def boot(case: Case, model: Path, args: argparse.Namespace, scratch: Path) -> int | None:
    """Boot an engine, let it answer once, and end it; return its exit status, or None after a time-out."""
    spec = {"model": str(model), **flags(case)}
    spec |= {"attention_backend": args.attention_backend} if args.attention_backend else {}
    env = environment("v2", scratch)
    del env["VLLM_USE_V2_MODEL_RUNNER"]  # the release's own choice
    return run_engine("pair.budget_engine", spec, args.out / f"{case.name}.log", env, args.seconds)


def measured(case: Case, args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return the record of *case*, booted now."""
    model = write_checkpoint(scratch / case.shape, checkpoint(SHAPES[case.shape]), zeros=True)
    expected = prediction(predicted(case, model))
    status = boot(case, model, args, scratch)
    log = (args.out / f"{case.name}.log").read_text(encoding="utf-8", errors="replace")
    seen = measurement(read_boot_log(log))
    found = faults(case, expected, seen) + ([] if status == 0 else [f"exit status {status}"])
    say(f"{case.name}: {'; '.join(found) or 'agrees'}")
    return {"predicted": expected, "measured": seen, "faults": found}


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="only cases whose names hold all of these")
    parser.add_argument("--skip", nargs="*", default=[], help="no cases whose names hold one of these")
    parser.add_argument("--seconds", type=int, default=420, help="time for a boot")
    parser.add_argument("--attention-backend", help="such as TRITON_ATTN; vLLM's choice if not given")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    cases = [
        case
        for case in CASES
        if all(part in case.name for part in args.only) and not any(part in case.name for part in args.skip)
    ]
    with tempfile.TemporaryDirectory(prefix="memory-budget-") as folder:
        scratch = Path(folder)
        records = {case.name: measured(case, args, scratch) for case in cases}
    (args.out / "report.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    (args.out / "table.md").write_text(table(records) + "\n", encoding="utf-8")
    say(table(records))
    failed = 0
    for name, record in records.items():
        failed += bool(record["faults"])
        for fault in record["faults"]:
            say(f"FAIL {name}: {fault}")
    say(f"{len(records) - failed} passed, {failed} failed")
    return 1 if failed or not records else 0


if __name__ == "__main__":
    sys.exit(main())
