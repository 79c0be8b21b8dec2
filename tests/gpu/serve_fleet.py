#!/usr/bin/env python3
"""Serve tiny models of the fleet's architectures with every drafter and cache, and compare their answers.

Needs one GPU (``--cards 2``: two), torch, numpy and an installed vLLM of 0.24 or 0.33
with its carries; downloads nothing and imports nothing of this project but its tiny models::

    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.24.0 --plan             # no GPU
    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.24.0 --budget 560 --fork --jobs 9
    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.24.0 --only hybrid nvfp4
    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.24.0 --report           # no GPU
    python3 tests/gpu/serve_fleet.py --out /tmp/fleet --version 0.32.0 --device cpu --only dense ngram

Each cell is an engine in a process of its own with a time limit: a shape (gated delta nets with full
attention, experts, Gemma 4, gpt-oss, latent attention, an image before text, NVFP4 weights in two forms), a
drafter, a KV cache, a model runner, eager or with CUDA graphs. The checkpoints are made up and small. What
fails a cell:

- it does not boot, dies, hangs, or is refused where it must serve; or is served where it must be refused;
- runner, drafter, attention backend, format of the caches, graphs or sinks are not those asked for;
- a token of a greedy answer is not the one of the format's reference, an eager engine with the same cache and
  no drafter, and no near tie of it; the same for one prompt cold and from the prefix cache, which has to hold
  some of it. How far a reference is from the one of 16 bits is reported, and fails only where it is gross;
- counters are not exactly what synthetic acceptance predicts; or its blindly accepted drafts look right.

A cell that nothing on record promises to serve may be refused with an error before it serves: that is noted.
``OUT`` receives ``matrix.jsonl``, a line a run, ``matrix.md`` and logs. A cell that ran is not run again with
the same wheel and levels (``--retry``: only if it passed). One that was ended with the budget is out of time:
neither passed nor failed, and run again. The exit status is 0 if all that ran to an end passed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet import judge, matrix
from fleet.drafters import speculative
from fleet.load import LEVELS
from fleet.matrix import CACHES, Cell
from fleet.processes import Forks, Interpreters
from fleet.report import table
from fleet.shapes import MAX_MODEL_LEN, checkpoint, layers_of
from fleet.tensors import kept_checkpoint
from fleet.turns import Turns
from pair.sessions import engines_end_on_sigterm
from serve_pair import Run, environment, on_cpu, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleet.report import Row

WITH_EXPERTS = ("hybrid", "moe", "gptoss", "mla")
MADE = {
    "code": {"cudagraph_mode": "NONE"},
    "graphs": {"mode": 0, "cudagraph_mode": "FULL"},
}
"""Configurations of cells with CUDA graphs that have one of the two things that tell them from eager ones."""
RULES = 4  # part of a record's key: raised when what engines are asked changes
TAIL = 6000  # characters of a log that are kept
GRACE = 30.0  # seconds after the budget's end in which a cell may come to its own


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; made when missing")
    parser.add_argument("--version", required=True, help="the installed vLLM's version, or its release")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--cards", type=int, choices=[1, 2], default=1)
    parser.add_argument("--only", nargs="*", default=[], help="only cells whose names hold all of these")
    parser.add_argument("--skip", nargs="*", default=[], help="no cells whose names hold one of these")
    parser.add_argument("--first", nargs="*", default=[], help="names of cells that come before all others")
    parser.add_argument(
        "--made",
        choices=["both", *MADE],
        default="both",
        help="what cells with graphs have: compiled code, CUDA graphs, or both",
    )
    parser.add_argument("--levels", nargs="+", type=int, default=list(LEVELS))
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="seconds for all cells, from the start"
    )
    parser.add_argument("--jobs", type=int, default=1, help="engines at once")
    parser.add_argument("--seconds", type=int, default=0, help="time for a cell; by what is expected if 0")
    parser.add_argument("--fork", action="store_true", help="import vLLM once, and fork the engines")
    parser.add_argument("--retry", action="store_true", help="run cells that failed once more")
    parser.add_argument("--plan", action="store_true", help="print the cells in order; start nothing")
    parser.add_argument("--report", action="store_true", help="judge what is on record; start nothing")
    return parser.parse_args(words)


def _made(cell: Cell, args: argparse.Namespace) -> str:
    """Return what a cell has of compiled code and CUDA graphs: ``none``, ``code``, ``graphs`` or ``both``."""
    return "none" if cell.eager else str(args.made)


def key(cell: Cell, args: argparse.Namespace) -> str:
    """Return the digest of all that decides what a cell's engine is asked."""
    parts = [RULES, asdict(cell), args.version, args.device, args.levels]
    parts += [args.made] if _made(cell, args) in MADE else []
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def records(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the last record of each cell, by its key; a line that was cut off counts for nothing."""
    found: dict[str, dict[str, Any]] = {}
    path = args.out / "matrix.jsonl"
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            line = json.loads(text)
            found[line["key"]] = line
        except (ValueError, KeyError, TypeError):
            continue
    return found


def selected(args: argparse.Namespace) -> list[Cell]:
    """Return the cells of ``--first``, and those named with all of ``--only`` and none of ``--skip``."""
    return [
        cell
        for cell in matrix.cells(args.version, device=args.device, cards=args.cards)
        if cell.name in args.first
        or (
            all(part in cell.name.split("-") or part == cell.name for part in args.only)
            and not any(part in cell.name.split("-") for part in args.skip)
        )
    ]


def first_cells(args: argparse.Namespace) -> list[Cell]:
    """Return the cells that ``--first`` names, in its order.

    Raises:
        SystemExit: there is no cell of such a name.
    """
    known = {cell.name: cell for cell in matrix.cells(args.version, device=args.device, cards=args.cards)}
    if missing := [name for name in args.first if name not in known]:
        raise SystemExit(f"there is no cell named {', '.join(missing)}")
    return [known[name] for name in args.first]


def asked_of(cell: Cell, args: argparse.Namespace) -> dict[str, Any]:
    """Return what the record of a cell is judged by."""
    return {
        "version": args.version,
        "backend": matrix.backend(cell, args.version, device=args.device),
        "drafter": matrix.of_drafter(cell, args.version, device=args.device),
        "device": args.device,
        "prefix": matrix.caches_prefixes(cell, device=args.device),
        "levels": args.levels,
        "layers": layers_of(cell.shape),
        "made": _made(cell, args),
    }


def judged(cell: Cell, args: argparse.Namespace, known: dict[str, dict[str, Any]]) -> Row:
    """Return a row of the report: the cell, its record, its references' answers, and its faults."""

    def answered(one: Cell) -> dict[str, Any] | None:
        line = known.get(key(one, args))
        return line["seen"] if line is not None and judge.outcome(line) == "served" else None

    line, own = known[key(cell, args)], matrix.reference(cell, args.version, device=args.device)
    right, base = answered(own), matrix.plain(cell, args.version, device=args.device)
    plain = answered(base) if cell == own != base else None
    wanted = matrix.expectation(cell, args.version, device=args.device)
    found = judge.faults(cell, line, right, wanted, asked_of(cell, args), plain=plain)
    return cell, line, right, plain, found


def rows(args: argparse.Namespace) -> list[Row]:
    """Return the report's rows: every cell on record, references included."""
    known, every = records(args), selected(args)
    every += [matrix.reference(cell, args.version, device=args.device) for cell in every]
    every += [matrix.plain(cell, args.version, device=args.device) for cell in every]
    return [judged(cell, args, known) for cell in dict.fromkeys(every) if key(cell, args) in known]


def planned(args: argparse.Namespace) -> list[tuple[Cell, float]]:
    """Return the cells that are left to run and their values, the most worth a second first."""
    done = {
        cell: judge.outcome(line) == "served"
        for cell, line, *_, found in rows(args)
        if judge.outcome(line) != "out of time" and not (found and args.retry)
    }
    return matrix.ordered(selected(args), done, args.version, device=args.device, first=first_cells(args))


def specification(cell: Cell, args: argparse.Namespace, scratch: Path, out: Path) -> dict[str, Any]:
    """Write a cell's checkpoints; return what its engine's process is told."""
    backend = matrix.backend(cell, args.version, device=args.device)
    models, images = scratch / "models", cell.shape == "image"
    engine: dict[str, Any] = {
        "model": str(kept_checkpoint(models / cell.shape, checkpoint(cell.shape))),
        "skip_tokenizer_init": not images,
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
    if (made := _made(cell, args)) in MADE:
        engine["compilation_config"] = MADE[made]
    if images:
        # With the cache 0.24 processes a text apart from its images, which transformers 5.23 refuses.
        engine |= {"limit_mm_per_prompt": {"image": 1}, "mm_processor_cache_gb": 0}
    engine |= {"attention_backend": backend} if backend else {}
    if cell.cards > 1:
        engine |= {"tensor_parallel_size": cell.cards, "distributed_executor_backend": "mp"}
    drafting = speculative(
        cell.shape, cell.drafter, models, synthetic=cell.synthetic,
        asked=matrix.of_drafter(cell, args.version, device=args.device),
    )  # fmt: skip
    if drafting:
        engine["speculative_config"] = drafting
    near = cell == matrix.reference(cell, args.version, device=args.device)
    return {"engine": engine, "levels": args.levels, "near": near, "images": images, "out": str(out)}


def variables(cell: Cell, args: argparse.Namespace, scratch: Path) -> dict[str, str]:
    """Return the environment of a cell's process."""
    found = environment(Run(f"{cell.runner}-{'eager' if cell.eager else 'graphs'}"), scratch) | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled for a minute, and no request here needs it
        "NCCL_NVLS_ENABLE": "0",  # multicast needs a daemon that lent machines may lack
        "VLLM_CACHE_ROOT": str(scratch / cell.name / "cache"),  # engines side by side write no common file
    }
    return on_cpu(found) if args.device == "cpu" else found


def execute(
    cell: Cell, args: argparse.Namespace, scratch: Path, engines: Forks | Interpreters, left: float
) -> dict[str, Any]:
    """Run one cell's engine, no longer than `GRACE` after the *left* seconds, and return its record."""
    folder, classes = scratch / cell.name, scratch / "modelinfos"
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    classes.mkdir(exist_ok=True)
    # vLLM imports a model in a process of its own to look at its class; these files change in one step.
    (folder / "cache" / classes.name).symlink_to(classes)
    out, spec = folder / "seen.json", folder / "spec.json"
    spec.write_text(json.dumps(specification(cell, args, scratch, out)), encoding="utf-8")
    log = args.out / "logs" / f"{cell.name}.log"
    own = args.seconds or 3 * matrix.seconds(cell, device=args.device) + 120
    started = time.monotonic()
    status = engines.run(spec, log, variables(cell, args, scratch), min(own, left + GRACE))
    seen = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else None
    tail = log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
    took = round(time.monotonic() - started, 1)
    return {"key": key(cell, args), "cell": cell.name, "status": status, "seconds": took, "seen": seen,
            "cut": status is None and left + GRACE < own, "tail": "" if status == 0 else tail}  # fmt: skip


@dataclass
class Session:
    """A run over the plan: what is left of the budget, and the record that all engines append to."""

    args: argparse.Namespace
    scratch: Path
    engines: Forks | Interpreters
    started: float
    lock: threading.Lock

    def run(self, cell: Cell) -> bool:
        """Run a cell if the budget holds it, and append its record; return whether it ran."""
        left = self.args.budget - (time.monotonic() - self.started)
        busy = max(1.0, 2 * self.args.jobs / (os.cpu_count() or 1))  # an engine that boots takes two cores
        if matrix.seconds(cell, device=self.args.device) * busy > left:
            return False
        line = execute(cell, self.args, self.scratch, self.engines, left)
        with self.lock, (self.args.out / "matrix.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        say(f"{cell.name}: {judge.outcome(line)} after {line['seconds']:.0f} s {judge.reason(line)[:150]}")
        return True


def starter(args: argparse.Namespace, scratch: Path) -> Forks | Interpreters:
    """Return what starts the engines' processes; say so where ``--fork`` cannot be followed."""
    if not args.fork:
        return Interpreters()
    try:
        return Forks(variables(Cell("dense"), args, scratch), args.device, args.out / "logs" / "forks.log")
    except RuntimeError as error:
        say(f"{error}; each engine gets an interpreter of its own")
        return Interpreters()


def print_plan(args: argparse.Namespace) -> None:
    """Print the cells that are left in their order, with the seconds that pass until each is done."""
    total = 0.0
    for cell, value in planned(args):
        took = matrix.seconds(cell, device=args.device) / args.jobs
        if total + took > args.budget:
            break
        total += took
        wanted = matrix.expectation(cell, args.version, device=args.device).outcome
        say(f"{total:7.0f} s  value {value:5.1f}  {wanted:7}  {cell.name}")


def report(args: argparse.Namespace) -> int:
    """Write and print the matrix; return the exit status."""
    found = rows(args)
    every = {*selected(args), *(cell for cell, *_ in found)}
    text = table(found, len(every), args.device)
    (args.out / "matrix.md").write_text(text + "\n", encoding="utf-8")
    say(text)
    bad = [cell for cell, line, *_, wrong in found if wrong and not judge.lacking(line, args.device)]
    ran = [cell for cell, line, *_ in found if judge.outcome(line) != "out of time"]
    return 1 if bad or not ran else 0


def main() -> int:
    """Run the cells that are left, as far as the budget goes, and report."""
    args = arguments()
    (args.out / "logs").mkdir(parents=True, exist_ok=True)
    if args.plan:
        print_plan(args)
        return 0
    if args.report:
        return report(args)
    with tempfile.TemporaryDirectory(prefix="serve-fleet-") as folder:
        scratch, started = Path(folder), time.monotonic()
        session = Session(args, scratch, starter(args, scratch), started, threading.Lock())
        turns = Turns(cell for cell, _ in planned(args))
        with engines_end_on_sigterm(), ThreadPoolExecutor(args.jobs) as pool:
            threads = [pool.submit(turns.work, session.run) for _ in range(args.jobs)]
            ran = [one for thread in threads for one in thread.result()]
    if not all(ran):
        say(f"{len(ran) - sum(ran)} cells were left out: the budget is spent")
    return report(args)


if __name__ == "__main__":
    sys.exit(main())
