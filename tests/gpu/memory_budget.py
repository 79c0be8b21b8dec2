#!/usr/bin/env python3
"""The memory that preflight predicts for a server, beside what the server takes when it boots on a GPU.

Needs one GPU, torch and an installed vLLM wheel of 0.24 or 0.33, and of this project's sources
what preflight imports (msgspec, which vLLM requires); downloads nothing::

    python3 tests/gpu/memory_budget.py --out /tmp/budget
    python3 tests/gpu/memory_budget.py --out /tmp/budget --only graphs --skip 8b
    python3 tests/gpu/memory_budget.py --out /tmp/budget --plan          # predictions alone, without a GPU

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
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# From a copy of the sources: where this runs, nothing of this project is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "build"))
from collections.abc import Sequence

from serve_pair import Run, environment, run_engine, say

from sparkwright.engine.observations import BootFacts
from sparkwright.serve.preflight import PreflightReport

GIB = 1 << 30
WEIGHTS_SHARE, WEIGHTS_GIB = 0.03, 0.1
CARD = ("NVIDIA H200", "9.0", "580.95.05", 140 * GIB, 139 * GIB, "Default", "Enabled")  # of --plan alone
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


def tensors(shape: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Qwen3 of that *shape*, by name."""
    hidden, middle, heads = shape["hidden"], shape["middle"], shape["heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, hidden)}
    for layer in range(shape["layers"]):
        inner = {
            "self_attn.q_proj": (heads * HEAD, hidden),
            "self_attn.k_proj": (KV_HEADS * HEAD, hidden),
            "self_attn.v_proj": (KV_HEADS * HEAD, hidden),
            "self_attn.o_proj": (hidden, heads * HEAD),
            "self_attn.q_norm": (HEAD,),
            "self_attn.k_norm": (HEAD,),
            "mlp.gate_proj": (middle, hidden),
            "mlp.up_proj": (middle, hidden),
            "mlp.down_proj": (hidden, middle),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        found |= {f"model.layers.{layer}.{name}.weight": size for name, size in inner.items()}
    found["model.norm.weight"] = (hidden,)
    if not shape["tied"]:
        found["lm_head.weight"] = (VOCABULARY, hidden)
    return found


def write_checkpoint(folder: Path, shape: dict[str, int]) -> Path:
    """Write a checkpoint of zeros in 16 bits: after its header, the file is a hole."""
    folder.mkdir(parents=True, exist_ok=True)
    header, offset = {}, 0
    for name, size in tensors(shape).items():
        end = offset + 2 * math.prod(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + offset)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "attention_bias": False, "head_dim": HEAD, "hidden_size": shape["hidden"],
        "intermediate_size": shape["middle"], "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"], "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
        "tie_word_embeddings": bool(shape["tied"]), "torch_dtype": "bfloat16", "vocab_size": VOCABULARY,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder


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


def predicted(case: Case, model: Path, *, real: bool) -> PreflightReport:
    """Return preflight's report of *case*; on this machine if *real*, else on a made-up card."""
    from sparkwright.recipes import Recipe
    from sparkwright.serve.preflight import (
        CardFacts,
        EngineFacts,
        HostFacts,
        PreflightRequest,
        inspect_start,
        read_host,
    )

    own = {name.replace("_", "-"): value for name, value in flags(case).items()}
    recipe = Recipe(format=1, name="budget", title="made up", model=str(model), flags=own)
    if real:
        variables = dict(os.environ)
        host = read_host(variables, models=model)
        return inspect_start(PreflightRequest(recipe, python=Path(sys.executable), host=host))
    memory = {"MemTotal": 256 * GIB, "MemAvailable": 240 * GIB, "MemFree": 240 * GIB}
    host = HostFacts(meminfo=memory, card=CardFacts(*CARD))
    return inspect_start(PreflightRequest(recipe, host=host, engine=EngineFacts(), environment={}))


def prediction(report: PreflightReport) -> dict[str, Any]:
    """Return the figures of a report in GiB; of estimates the lowest, likely and highest."""
    budget = report.budget
    rows = {row.part: (row.low, row.gib, row.high) for row in report.rows}
    # What takes the most leaves the least for the cache.
    pools = sorted(budget.pool(end) / GIB for end in ("low", "likely", "high"))
    return {"weights": budget.demand.weights / GIB, "kv": pools, "graphs": rows.get("CUDA graphs", (0, 0, 0))}


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
    spec = scratch / f"{case.name}.json"
    asked = {"model": str(model), **flags(case)}
    asked |= {"attention_backend": args.attention_backend} if args.attention_backend else {}
    spec.write_text(json.dumps(asked), encoding="utf-8")
    env = environment(Run("v2-eager"), scratch) | {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    del env["VLLM_USE_V2_MODEL_RUNNER"]  # the release's own choice
    return run_engine("pair.budget_engine", spec, args.out / f"{case.name}.log", env, args.seconds)


def measured(case: Case, args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return the record of *case*, booted now."""
    from sparkwright.engine.server import read_boot_log

    model = write_checkpoint(scratch / case.shape, SHAPES[case.shape])
    expected = prediction(predicted(case, model, real=True))
    status = boot(case, model, args, scratch)
    log = (args.out / f"{case.name}.log").read_text(encoding="utf-8", errors="replace")
    seen = measurement(read_boot_log(log))
    found = faults(case, expected, seen) + ([] if status == 0 else [f"exit status {status}"])
    say(f"{case.name}: {'; '.join(found) or 'agrees'}")
    return {"predicted": expected, "measured": seen, "faults": found}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; made when missing")
    parser.add_argument("--only", nargs="*", default=[], help="only cases whose names hold all of these")
    parser.add_argument("--skip", nargs="*", default=[], help="no cases whose names hold one of these")
    parser.add_argument("--seconds", type=int, default=420, help="time for a boot")
    parser.add_argument("--attention-backend", help="such as TRITON_ATTN; vLLM's choice if not given")
    parser.add_argument("--plan", action="store_true", help="print predictions for a made-up card")
    return parser.parse_args(words)


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
        if args.plan:
            for case in cases:
                model = write_checkpoint(scratch / case.shape, SHAPES[case.shape])
                say(f"{case.name}: {json.dumps(prediction(predicted(case, model, real=False)))}")
            return 0
        records = {case.name: measured(case, args, scratch) for case in cases}
    (args.out / "report.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    (args.out / "table.md").write_text(table(records) + "\n", encoding="utf-8")
    say(table(records))
    failed = sum(bool(record["faults"]) for record in records.values())
    say(f"{len(records) - failed} passed, {failed} failed")
    return 1 if failed or not records else 0


if __name__ == "__main__":
    sys.exit(main())
