#!/usr/bin/env python3
"""Train a DFlash drafter in place, and measure what real engines accept of its drafts. One GPU, no network.

    python3 tests/gpu/trained_drafter.py train --model MODEL --out DRAFTER --seconds 200
    python3 tests/gpu/trained_drafter.py serve --model MODEL --drafter DRAFTER --out OUT --tree stock=FOLDER
    python3 tests/gpu/trained_drafter.py predict --model MODEL --drafter DRAFTER --out OUT
    python3 tests/gpu/trained_drafter.py report --out OUT

``train`` writes two drafters of the target's width, ``full`` and ``window``, that learn from the same
batches: greedy answers of the target to text out of Python's installation. It stops after its seconds, and
goes on where it was stopped. ``serve`` runs an engine for each cell (KV formats of target and drafter,
windows, trees) with prompts held out of the training: at one, 8 and 32 requests at once, cold, from the
prefix cache, and beside a request near the longest sequence. Its record is a line for each cell: a stopped
run goes on. ``predict`` computes in torch what would have been accepted of the drafts for the very answers
that the engines gave. ``report`` judges: the exit status is 1 if something is wrong, or nothing was judged.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pair.sessions import engines_end_on_sigterm
from serve_pair import Run, environment, on_cpu, run_engine, say
from trained.cells import CELLS, SECONDS, Cell, Setting, expected_windows, reference, specification
from trained.judge import answer_table, faults, outcome, reason, table

__all__ = ["arguments", "main"]

PROMPTS, ANSWER = 32, 128
LEVELS = [32, 8, 1]
TAIL = 6000


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help="train the drafters")
    train.add_argument("--out", type=Path, required=True, help="folder of the drafters")
    train.add_argument("--seconds", type=float, default=200, help="for answers and training together")
    train.add_argument("--share", type=float, default=0.3, help="of the seconds, for answers")
    train.add_argument("--steps", type=float, default=math.inf, help="after which training ends")
    train.add_argument("--layers", type=int, default=4, help="of a drafter")
    train.add_argument("--window", type=int, default=256, help="places that the windowed layers see")
    train.add_argument("--answer", type=int, default=160, help="longest answer, in tokens")
    train.add_argument("--batch", type=int, default=16, help="texts of a step")
    train.add_argument("--anchors", type=int, default=48, help="blocks of a text in a step")
    train.add_argument("--together", type=int, default=1 << 18, help="tokens that are answered at once")
    train.add_argument("--judged", type=int, default=PROMPTS, help="held-out prompts to measure it on")
    serve = verbs.add_parser("serve", help="run the engines")
    serve.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER", help="stock, patched")
    serve.add_argument(
        "--only", nargs="+", default=[], help="cells whose names hold one of these, in their order"
    )
    serve.add_argument("--jobs", type=int, default=4, help="engines at once")
    serve.add_argument("--budget", type=float, default=400, help="seconds after which no cell is begun")
    serve.add_argument("--seconds", type=float, default=200, help="time for a cell")
    serve.add_argument("--levels", nargs="+", type=int, default=LEVELS, help="requests at once")
    serve.add_argument("--prompts", type=int, default=PROMPTS)
    serve.add_argument("--answer", type=int, default=ANSWER, help="longest answer, in tokens")
    serve.add_argument("--retry", action="store_true", help="run cells again that did not come to their end")
    predict = verbs.add_parser("predict", help="compute what would have been accepted")
    report = verbs.add_parser("report", help="judge what is on record")
    report.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    report.add_argument("--chart", type=Path, metavar="FILE", help="draw both trees' tokens a step (SVG)")
    for verb in (serve, predict, report):
        verb.add_argument("--out", type=Path, required=True, help="folder of the record")
        verb.add_argument("--drafter", type=Path, required=True, help="folder of the trained drafters")
    for verb in (train, serve, predict):
        verb.add_argument("--model", type=Path, required=True, help="folder of the target")
        verb.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return parser.parse_args(given)


def train(args: argparse.Namespace) -> int:
    """Train, measure acceptance on held-out prompts in torch, and write ``training.json``."""
    from trained import texts, walk
    from trained.model import load
    from trained.training import Plan, Target, greedy, train

    args.out.mkdir(parents=True, exist_ok=True)
    target = Target(args.model, args.device)
    plan = Plan(
        seconds=args.seconds, windows=(None, args.window), layers=args.layers, answer=args.answer,
        together=args.together, batch=args.batch, anchors=args.anchors, share=args.share,
        steps=args.steps,
    )  # fmt: skip
    told = train(target, plan, args.out)
    prompts = texts.asked(target.tokenizer, args.judged)
    answers = greedy(target, prompts, ANSWER)
    for name in ("full", "window"):
        steps = walk.predicted(target, load(args.out / name).to(args.device, target.dtype), prompts, answers)
        told[name] = {
            "by_place": [round(one, 3) for one in walk.by_place(steps)],
            "tokens_a_step": round(walk.tokens_a_step(steps), 3),
            "steps": steps,
        }
        say(f"{name}: {told[name]['tokens_a_step']} tokens a step, {told[name]['by_place']}")
    (args.out / "training.json").write_text(json.dumps(told) + "\n", encoding="utf-8")
    return 0


def records(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return the lines of a record by their cells; later lines count."""
    file = out / name
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {line["cell"]: line for line in map(json.loads, lines)}


def append(out: Path, name: str, line: dict[str, Any]) -> None:
    """Write a line to the end of a record."""
    with (out / name).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def asked_of(args: argparse.Namespace) -> list[list[int]]:
    """Return the prompts of the record; make them if it has none."""
    file = args.out / "prompts.json"
    if not file.exists():
        from trained.texts import asked
        from transformers import AutoTokenizer

        file.write_text(json.dumps(asked(AutoTokenizer.from_pretrained(args.model), args.prompts)))
    found: list[list[int]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def planned(args: argparse.Namespace) -> list[Cell]:
    """Return the cells that are left to run, by worth, or in the order of ``--only``."""
    done = {
        name
        for name, line in records(args.out, "cells.jsonl").items()
        if not args.retry or outcome(line) == "served"
    }
    trees = {"patched", *(one.split("=", 1)[0] for one in args.tree)}
    found = [cell for part in args.only or [""] for cell in CELLS if part in cell.name and cell.tree in trees]
    return [cell for cell in dict.fromkeys(found) if cell.name not in done]


def variables(cell: Cell, args: argparse.Namespace, scratch: Path) -> dict[str, str]:
    """Return the environment of a cell's process."""
    found = environment(Run("v1-eager" if cell.eager else "v1-graphs"), scratch) | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled for a minute, and no request here needs it
        "VLLM_CACHE_ROOT": str(scratch / cell.name / "cache"),
    }
    trees = dict(one.split("=", 1) for one in args.tree)
    if cell.tree in trees:
        found["PYTHONPATH"] = os.pathsep.join([trees[cell.tree], found["PYTHONPATH"]])
    return on_cpu(found) if args.device == "cpu" else found


def execute(cell: Cell, args: argparse.Namespace, setting: Setting, scratch: Path) -> dict[str, Any]:
    """Run one cell's engine to its end, and return its record."""
    folder = scratch / cell.name
    folder.mkdir(parents=True)
    out, spec = folder / "seen.json", folder / "spec.json"
    spec.write_text(json.dumps(specification(cell, setting, out)), encoding="utf-8")
    log = args.out / "logs" / f"{cell.name}.log"
    started = time.monotonic()
    status = run_engine("trained.engine", spec, log, variables(cell, args, scratch), args.seconds)
    seen = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else None
    tail = log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
    took = round(time.monotonic() - started, 1)
    tail = "" if status == 0 else tail
    return {"cell": cell.name, "status": status, "seconds": took, "seen": seen, "tail": tail}


def serve(args: argparse.Namespace) -> int:
    """Run the cells that are left as far as the budget goes."""
    (args.out / "logs").mkdir(parents=True, exist_ok=True)
    levels = sorted(args.levels, reverse=True)
    setting = Setting(args.model, args.drafter, args.device, levels, args.answer, asked_of(args))
    began, lock = time.monotonic(), threading.Lock()

    def run(cell: Cell) -> bool:
        if time.monotonic() - began + SECONDS > args.budget:
            return False
        line = execute(cell, args, setting, scratch)
        with lock:
            append(args.out, "cells.jsonl", line)
        say(f"{cell.name}: {outcome(line)} after {line['seconds']:.0f} s {reason(line)[:150]}")
        return True

    with tempfile.TemporaryDirectory(prefix="trained-drafter-") as folder:
        scratch = Path(folder)
        with engines_end_on_sigterm(), ThreadPoolExecutor(args.jobs) as pool:
            ran = list(pool.map(run, planned(args)))
    if not all(ran):
        say(f"{len(ran) - sum(ran)} cells were left out: the budget is spent")
    return 0 if ran and all(ran) else 1


def predict(args: argparse.Namespace) -> int:
    """Compute in torch, in 16 bits, the steps of the answers that engines with trained drafters gave.

    Over a rounded cache they are for the table, where they tell other texts from other drafts.
    """
    from trained import walk
    from trained.model import load
    from trained.training import Target

    target, prompts = Target(args.model, args.device), asked_of(args)
    known = records(args.out, "foreseen.jsonl")
    lines = records(args.out, "cells.jsonl")
    for cell in CELLS:
        line = lines.get(cell.name)
        if line is None or cell.name in known or not cell.trained or outcome(line) != "served":
            continue
        drafter = load(args.drafter / cell.drafter).to(args.device, target.dtype)
        found = {
            name: walk.predicted(target, drafter, prompts, [row["tokens"] for row in wave["rows"]])
            for name, wave in line["seen"]["waves"].items()
            if name.endswith("cold")
        }
        append(args.out, "foreseen.jsonl", {"cell": cell.name, "waves": found})
    return 0


def report(args: argparse.Namespace) -> int:
    """Print the tables and every fault; return the exit status."""
    lines, known = records(args.out, "cells.jsonl"), records(args.out, "foreseen.jsonl")
    found = [cell for cell in CELLS if cell.name in lines]
    foreseen = {cell: known.get(cell.name, {}).get("waves", {}) for cell in found}
    text = table([(cell, lines[cell.name], foreseen[cell]) for cell in found])
    whole = {cell for cell in found if outcome(lines[cell.name]) == "served"}
    beside = [
        (cell, lines[cell.name], lines[reference(cell).name])
        for cell in found
        if {cell, reference(cell)} <= whole
    ]
    text += "\n\n" + answer_table(beside)
    (args.out / "table.md").write_text(text + "\n", encoding="utf-8")
    say(text)
    if args.chart:
        from trained.chart import draw

        args.chart.write_text(draw(lines, {cell.name: steps for cell, steps in foreseen.items()}))
    file = args.out / "prompts.json"
    prompts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    bad = 0
    for cell in found:
        windows = expected_windows(cell, args.drafter)
        right = lines.get(reference(cell).name)
        wrong = faults(cell, lines[cell.name], right, windows, foreseen[cell], prompts, args.device)
        for fault in wrong:
            say(f"FAIL {cell.name}: {fault}")
        bad += len(wrong)
    say(f"{len(found)} cells judged, {bad} faults")
    return 1 if bad or not found else 0


def main() -> int:
    """Do what was asked."""
    args = arguments()
    return {"train": train, "serve": serve, "predict": predict, "report": report}[args.verb](args)


if __name__ == "__main__":
    sys.exit(main())
