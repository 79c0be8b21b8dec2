#!/usr/bin/env python3
"""Serve tiny models of the fleet's architectures with every drafter and cache, and compare their answers.

Needs one GPU, torch, numpy and an installed vLLM of 0.24 or 0.33 with its carries; downloads nothing and
imports of this project its tiny models and its start of processes alone::

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

from fleet import judge
from fleet.load import LEVELS
from fleet.matrix import CACHES, Cell, Fleet
from fleet.shapes import checkpoint, layers_of, speculative
from fleet.tensors import kept_checkpoint
from pair.models import MAX_MODEL_LEN, cell_arguments
from pair.sessions import run_cell
from serve_pair import IN_PROCESS, environment, parser_of, say

WITH_EXPERTS = ("hybrid", "moe", "gptoss", "mla")
GRACE = 30.0  # seconds after the budget's end in which a cell may come to its own


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
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


def fleet_of(args: argparse.Namespace) -> Fleet:
    """Return the cells that are asked for."""
    return Fleet(args.version, args.device)


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
        for cell in fleet_of(args).cells()
        if all(part in cell.name.split("-") or part == cell.name for part in args.only)
        and not any(part in cell.name.split("-") for part in args.skip)
    ]


def asked_of(cell: Cell, args: argparse.Namespace) -> dict[str, Any]:
    """Return what the record of a cell is judged by."""
    return {
        "version": args.version,
        "backend": fleet_of(args).backend(cell),
        "device": args.device,
        "prefix": fleet_of(args).caches_prefixes(cell),
        "levels": args.levels,
        "layers": layers_of(cell.shape),
    }


def rows(args: argparse.Namespace) -> list[judge.Row]:
    """Return the report's rows: every cell on record, references included."""
    fleet = fleet_of(args)
    known = {cell: line for cell in fleet.cells() if (line := record(cell, args))}
    seen = {cell: line["seen"] for cell, line in known.items() if judge.outcome(line) == "served"}
    every, found = selected(args), []
    every += [fleet.reference(cell) for cell in every]
    every += [fleet.plain(cell) for cell in every]
    for cell in (cell for cell in dict.fromkeys(every) if cell in known):
        own, base = fleet.reference(cell), fleet.plain(cell)
        right, plain = seen.get(own), seen.get(base) if cell == own != base else None
        wanted = fleet.expectation(cell)
        wrong = judge.faults(cell, known[cell], right, wanted, asked_of(cell, args), plain=plain)
        found.append((cell, known[cell], right, plain, wrong))
    return found


def planned(args: argparse.Namespace) -> list[Cell]:
    """Return the cells that have not passed yet, in their order."""
    done = {
        cell for cell, line, *_, wrong in rows(args) if not wrong and judge.outcome(line) != "out of time"
    }
    return fleet_of(args).ordered(selected(args), done)


def specification(cell: Cell, args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Write a cell's checkpoints; return what its engine's process is told."""
    backend, models = fleet_of(args).backend(cell), scratch / "models"
    engine = cell_arguments(args.device, cell.eager, CACHES[cell.cache]) | {
        "model": str(kept_checkpoint(models / cell.shape, checkpoint(cell.shape))),
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 4096,
        "enable_prefix_caching": fleet_of(args).caches_prefixes(cell),
    }
    if args.device == "cuda":
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
    near = cell == fleet_of(args).reference(cell)
    return {"engine": engine, "levels": args.levels, "near": near}


def variables(cell: Cell, args: argparse.Namespace, scratch: Path) -> dict[str, str]:
    """Return the environment of a cell's process."""
    found = environment(cell.runner, scratch, args.device) | IN_PROCESS
    found["VLLM_CACHE_ROOT"] = str(scratch / cell.name / "cache")  # engines side by side write no common file
    return found


def execute(cell: Cell, args: argparse.Namespace, scratch: Path, left: float) -> dict[str, Any]:
    """Run one cell's engine, no longer than `GRACE` after the *left* seconds, and return its record."""
    folder, classes = scratch / cell.name, scratch / "modelinfos"
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    classes.mkdir(exist_ok=True)
    # vLLM imports a model in a process of its own to look at its class; these files change in one step.
    (folder / "cache" / classes.name).symlink_to(classes)
    log, env = args.out / "logs" / f"{cell.name}.log", variables(cell, args, scratch)
    own, told = 3 * fleet_of(args).seconds(cell) + 120, specification(cell, args, scratch)
    line = run_cell("fleet.engine", told, folder, log, env, min(own, left + GRACE))
    cut = line["status"] is None and left + GRACE < own
    return {"asked": [args.version, args.device, args.levels], **line, "cut": cut}


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
            if fleet_of(args).seconds(cell) * busy > left:
                return False
            line = execute(cell, args, scratch, left)
            path_of(cell, args).write_text(json.dumps(line), encoding="utf-8")
        finally:
            compiled.set()
        say(f"{cell.name}: {judge.outcome(line)} after {line['seconds']:.0f} s {judge.reason(line)[:150]}")
        return True

    with ThreadPoolExecutor(args.jobs) as pool:
        return sum(not ran for ran in pool.map(run, planned(args)))


def print_plan(args: argparse.Namespace) -> None:
    """Print the cells that are left in their order, with the seconds that pass until each is done."""
    total = 0.0
    for cell in planned(args):
        total += fleet_of(args).seconds(cell) / args.jobs
        if total > args.budget:
            break
        wanted = fleet_of(args).expectation(cell).outcome
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
