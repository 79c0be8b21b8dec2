#!/usr/bin/env python3
"""Serve tiny models of the fleet's architectures with every drafter and cache, and compare their answers.

Needs one GPU, torch, numpy and an installed vLLM of 0.24 or 0.33 with its carries; downloads nothing and
imports nothing of this project but its tiny models::

    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.33.0 --plan             # no GPU
    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.33.0 --budget 560 --jobs 8
    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.33.0 --only hybrid nvfp4
    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.33.0 --report           # no GPU
    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.32.0 --device cpu --only dense ngram

Each cell is an engine in a process of its own with a time limit: a shape (gated delta nets with full
attention, experts, Gemma 4, gpt-oss, latent attention), a drafter, a KV cache, a model runner, eager or with
CUDA graphs. The checkpoints are made up and small. What fails a cell:

- it does not boot, dies, hangs, or is refused where it must serve; or is served where it must be refused;
- runner, drafter, attention backend, format of the caches, graphs or sinks are not those asked for;
- a token of a greedy answer is not the one of the format's reference, an eager engine with the same cache and
  no drafter, and no near tie of it; the same for one prompt cold and from the prefix cache, which has to hold
  some of it. How far a reference is from the one of 16 bits is reported, and fails only where it is gross;
- counters are not exactly what synthetic acceptance predicts; or its blindly accepted drafts look right.

A cell that nothing on record promises to serve may be refused with an error before it serves: that is noted.
``OUT`` receives a record of each cell, ``matrix.md`` and logs. A cell that passed is not run again with the
same version and levels. One that was ended with the budget is out of time: neither passed nor failed. The
exit status is 0 if all that ran to an end passed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fleet import judge, matrix
from fleet.load import LEVELS
from fleet.matrix import CACHES, Cell
from fleet.shapes import MAX_MODEL_LEN, checkpoint, layers_of, speculative
from fleet.tensors import kept_checkpoint
from pair.sessions import engines_end_on_sigterm
from serve_pair import Run, environment, on_cpu, run_engine, say

WITH_EXPERTS = ("hybrid", "moe", "gptoss", "mla")
TAIL = 6000  # characters of a log that are kept
GRACE = 30.0  # seconds after the budget's end in which a cell may come to its own


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; made when missing")
    parser.add_argument("--version", required=True, help="the installed vLLM's version, or its release")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="*", default=[], help="only cells whose names hold all of these")
    parser.add_argument("--skip", nargs="*", default=[], help="no cells whose names hold one of these")
    parser.add_argument("--levels", nargs="+", type=int, default=list(LEVELS))
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for all cells")
    parser.add_argument("--jobs", type=int, default=1, help="engines at once")
    parser.add_argument("--plan", action="store_true", help="print the cells in order; start nothing")
    parser.add_argument("--report", action="store_true", help="judge what is on record; start nothing")
    return parser.parse_args(words)


def path_of(cell: Cell, args: argparse.Namespace) -> Path:
    """Return the file of a cell's record."""
    return Path(args.out, "cells", f"{cell.name}.json")


def record(cell: Cell, args: argparse.Namespace) -> dict[str, Any] | None:
    """Return a cell's record; None if it was not run with this version and these levels."""
    try:
        found: dict[str, Any] = json.loads(path_of(cell, args).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if found["asked"] == [args.version, args.device, args.levels] else None


def selected(args: argparse.Namespace) -> list[Cell]:
    """Return the cells named with all of ``--only`` and none of ``--skip``."""
    return [
        cell
        for cell in matrix.cells(args.version, device=args.device)
        if all(part in cell.name.split("-") or part == cell.name for part in args.only)
        and not any(part in cell.name.split("-") for part in args.skip)
    ]


def asked_of(cell: Cell, args: argparse.Namespace) -> dict[str, Any]:
    """Return what the record of a cell is judged by."""
    return {
        "version": args.version,
        "backend": matrix.backend(cell, device=args.device),
        "device": args.device,
        "prefix": matrix.caches_prefixes(cell, device=args.device),
        "levels": args.levels,
        "layers": layers_of(cell.shape),
    }


def rows(args: argparse.Namespace) -> list[judge.Row]:
    """Return the report's rows: every cell on record, references included."""
    known = {
        cell: line for cell in matrix.cells(args.version, device=args.device) if (line := record(cell, args))
    }
    seen = {cell: line["seen"] for cell, line in known.items() if judge.outcome(line) == "served"}
    every, found = selected(args), []
    every += [matrix.reference(cell, args.version, device=args.device) for cell in every]
    every += [matrix.plain(cell, args.version, device=args.device) for cell in every]
    for cell in (cell for cell in dict.fromkeys(every) if cell in known):
        own = matrix.reference(cell, args.version, device=args.device)
        base = matrix.plain(cell, args.version, device=args.device)
        right, plain = seen.get(own), seen.get(base) if cell == own != base else None
        wanted = matrix.expectation(cell, args.version, device=args.device)
        wrong = judge.faults(cell, known[cell], right, wanted, asked_of(cell, args), plain=plain)
        found.append((cell, known[cell], right, plain, wrong))
    return found


def planned(args: argparse.Namespace) -> list[Cell]:
    """Return the cells that have not passed yet, in their order."""
    done = {
        cell for cell, line, *_, wrong in rows(args) if not wrong and judge.outcome(line) != "out of time"
    }
    return matrix.ordered(selected(args), done, args.version, device=args.device)


def specification(cell: Cell, args: argparse.Namespace, scratch: Path, out: Path) -> dict[str, Any]:
    """Write a cell's checkpoints; return what its engine's process is told."""
    backend, models = matrix.backend(cell, device=args.device), scratch / "models"
    engine: dict[str, Any] = {
        "model": str(kept_checkpoint(models / cell.shape, checkpoint(cell.shape))),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "seed": 0,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 4096,
        "enforce_eager": cell.eager,
        "kv_cache_dtype": CACHES[cell.cache],
        "kv_cache_memory_bytes": 1 << (30 if args.device == "cpu" else 32),
        "enable_prefix_caching": matrix.caches_prefixes(cell, device=args.device),
        "disable_log_stats": False,
        "worker_extension_cls": "fleet.view.FleetView",
    }
    if args.device == "cuda":
        engine |= {"gpu_memory_utilization": 0.08, "enable_flashinfer_autotune": False}
        # What a GB10 takes. Elsewhere vLLM may choose kernels that are first compiled for minutes.
        if cell.shape == "hybrid":
            engine["additional_config"] = {"gdn_prefill_backend": "triton"}
        if cell.shape in WITH_EXPERTS:
            engine["moe_backend"] = "triton"
    engine |= {"attention_backend": backend} if backend else {}
    of_drafter = backend if backend == "TRITON_ATTN" else None
    drafting = speculative(cell.shape, cell.drafter, models, synthetic=cell.synthetic, backend=of_drafter)
    if drafting:
        engine["speculative_config"] = drafting
    near = cell == matrix.reference(cell, args.version, device=args.device)
    return {"engine": engine, "levels": args.levels, "near": near, "out": str(out)}


def variables(cell: Cell, args: argparse.Namespace, scratch: Path) -> dict[str, str]:
    """Return the environment of a cell's process."""
    found = environment(Run(f"{cell.runner}-{'eager' if cell.eager else 'graphs'}"), scratch) | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled for a minute, and no request here needs it
        "VLLM_CACHE_ROOT": str(scratch / cell.name / "cache"),  # engines side by side write no common file
    }
    return on_cpu(found) if args.device == "cpu" else found


def execute(cell: Cell, args: argparse.Namespace, scratch: Path, left: float) -> dict[str, Any]:
    """Run one cell's engine, no longer than `GRACE` after the *left* seconds, and return its record."""
    folder, classes = scratch / cell.name, scratch / "modelinfos"
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    classes.mkdir(exist_ok=True)
    # vLLM imports a model in a process of its own to look at its class; these files change in one step.
    (folder / "cache" / classes.name).symlink_to(classes)
    out, spec = folder / "seen.json", folder / "spec.json"
    spec.write_text(json.dumps(specification(cell, args, scratch, out)), encoding="utf-8")
    log = args.out / "logs" / f"{cell.name}.log"
    own, started = 3 * matrix.seconds(cell, device=args.device) + 120, time.monotonic()
    env = variables(cell, args, scratch)
    status = run_engine("fleet.engine", spec, log, env, min(own, left + GRACE))
    seen = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else None
    tail = log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
    return {"asked": [args.version, args.device, args.levels], "status": status, "seen": seen,
            "seconds": round(time.monotonic() - started, 1), "tail": "" if status == 0 else tail,
            "cut": status is None and left + GRACE < own}  # fmt: skip


def run_all(args: argparse.Namespace, scratch: Path) -> int:
    """Run the cells that are left as far as the budget goes; return how many it did not hold.

    The first engine of a shape compiles kernels for the others, which wait for it.
    """
    started, warm, lock = time.monotonic(), {}, threading.Lock()
    busy = max(1.0, 2 * args.jobs / (os.cpu_count() or 1))  # an engine that boots takes two cores

    def run(cell: Cell) -> bool:
        with lock:
            first = cell.shape not in warm
            compiled = warm.setdefault(cell.shape, threading.Event())
        if not first:
            compiled.wait()
        try:
            left = args.budget - (time.monotonic() - started)
            if matrix.seconds(cell, device=args.device) * busy > left:
                return False
            line = execute(cell, args, scratch, left)
            path_of(cell, args).write_text(json.dumps(line), encoding="utf-8")
        finally:
            compiled.set()
        say(f"{cell.name}: {judge.outcome(line)} after {line['seconds']:.0f} s {judge.reason(line)[:150]}")
        return True

    with engines_end_on_sigterm(), ThreadPoolExecutor(args.jobs) as pool:
        return sum(not ran for ran in pool.map(run, planned(args)))


def print_plan(args: argparse.Namespace) -> None:
    """Print the cells that are left in their order, with the seconds that pass until each is done."""
    total = 0.0
    for cell in planned(args):
        total += matrix.seconds(cell, device=args.device) / args.jobs
        if total > args.budget:
            break
        wanted = matrix.expectation(cell, args.version, device=args.device).outcome
        say(f"{total:7.0f} s  {wanted:7}  {cell.name}")


def report(args: argparse.Namespace) -> int:
    found = rows(args)
    text = judge.table(found, len({*selected(args), *(cell for cell, *_ in found)}))
    (args.out / "matrix.md").write_text(text + "\n", encoding="utf-8")
    say(text)
    ran = [wrong for _, line, *_, wrong in found if judge.outcome(line) != "out of time"]
    return 1 if any(ran) or not ran else 0


def main() -> int:
    args = arguments()
    for folder in ("logs", "cells"):
        (args.out / folder).mkdir(parents=True, exist_ok=True)
    if args.plan:
        print_plan(args)
        return 0
    if not args.report:
        with tempfile.TemporaryDirectory(prefix="serve-fleet-") as folder:
            if late := run_all(args, Path(folder)):
                say(f"{late} cells were left out: the budget is spent")
    return report(args)


if __name__ == "__main__":
    sys.exit(main())
