#!/usr/bin/env python3
"""Train a DFlash drafter in place, and measure what real engines accept of its drafts. One GPU, no network.

    python3 tests/gpu/trained_drafter.py train --model MODEL --drafter DRAFTER --seconds 200
    python3 tests/gpu/trained_drafter.py serve --model MODEL --drafter DRAFTER --out OUT --tree stock=FOLDER
    python3 tests/gpu/trained_drafter.py predict --model MODEL --drafter DRAFTER --out OUT
    python3 tests/gpu/trained_drafter.py report --drafter DRAFTER --out OUT

MODEL is a Llama as transformers saves it, such as SmolLM2-135M-Instruct. ``train`` writes two drafters of its
width, ``full`` and ``window``, that learn from the same batches: greedy answers of the target to text out of
Python's installation. ``serve`` runs an engine for each cell (KV formats of target and drafter, windows,
trees) with prompts held out of the training: cold, from the prefix cache, and beside a request near the
longest sequence. A stopped run goes on. ``predict`` computes in torch what would have been accepted of the
drafts for the very answers that the engines gave. ``report`` judges: the exit status is 1 if something is
wrong, or nothing was judged.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pair.sessions import run_cell
from serve_pair import IN_PROCESS, environment, say
from trained.cells import CELLS, REFERENCE, SECONDS, Cell, expected_windows, specification
from trained.judge import faults, outcome, reason, table


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["train", "serve", "predict", "report"])
    parser.add_argument("--drafter", type=Path, required=True, help="folder of the trained drafters")
    parser.add_argument("--model", type=Path, help="folder of the target; not for report")
    parser.add_argument("--out", type=Path, help="folder of the record; not for train")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=200, help="for the training, or for a cell")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER", help="stock, patched")
    parser.add_argument("--only", nargs="+", default=[""], help="cells whose names hold one of these")
    parser.add_argument("--jobs", type=int, default=4, help="engines at once")
    parser.add_argument("--budget", type=float, default=400, help="seconds after which no cell is begun")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--answer", type=int, default=128, help="longest answer, in tokens")
    args = parser.parse_args(given)
    if (args.model is None and args.verb != "report") or (args.out is None and args.verb != "train"):
        parser.error("--model is needed but for report, and --out but for train")
    return args


def train(args: argparse.Namespace) -> int:
    """Train the drafters."""
    from trained.training import Plan, Target, train

    train(Target(args.model, args.device), Plan(seconds=args.seconds), args.drafter)
    return 0


def records(out: Path) -> dict[Cell, dict[str, Any]]:
    """Return the record of each cell that has one."""
    files = {cell: out / "cells" / f"{cell.name}.json" for cell in CELLS}
    return {
        cell: json.loads(file.read_text(encoding="utf-8")) for cell, file in files.items() if file.is_file()
    }


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
    """Return the cells that have not been served yet, by worth."""
    done = {cell for cell, line in records(args.out).items() if outcome(line) == "served"}
    trees = {"patched", *(one.partition("=")[0] for one in args.tree)}
    return [
        cell
        for cell in CELLS
        if cell not in done and cell.tree in trees and any(part in cell.name for part in args.only)
    ]


def variables(cell: Cell, args: argparse.Namespace, scratch: Path) -> dict[str, str]:
    """Return the environment of a cell's process."""
    found = environment("v1", scratch, args.device) | IN_PROCESS
    found["VLLM_CACHE_ROOT"] = str(scratch / cell.name / "cache")
    trees = dict(one.split("=", 1) for one in args.tree)
    if cell.tree in trees:
        found["PYTHONPATH"] = os.pathsep.join([trees[cell.tree], found["PYTHONPATH"]])
    return found


def execute(cell: Cell, args: argparse.Namespace, prompts: list[list[int]], scratch: Path) -> dict[str, Any]:
    """Run one cell's engine to its end, and return its record."""
    folder = scratch / cell.name
    folder.mkdir(parents=True)
    told = specification(cell, args.model, args.drafter, args.device, args.answer, prompts)
    log, env = args.out / "logs" / f"{cell.name}.log", variables(cell, args, scratch)
    return run_cell("trained.engine", told, folder, log, env, args.seconds)


def serve(args: argparse.Namespace) -> int:
    """Run the cells that are left as far as the budget goes."""
    for folder in ("logs", "cells"):
        (args.out / folder).mkdir(parents=True, exist_ok=True)
    prompts, began, lock = asked_of(args), time.monotonic(), threading.Lock()

    def run(cell: Cell) -> bool:
        if time.monotonic() - began + SECONDS > args.budget:
            return False
        line = execute(cell, args, prompts, scratch)
        (args.out / "cells" / f"{cell.name}.json").write_text(json.dumps(line), encoding="utf-8")
        with lock:
            say(f"{cell.name}: {outcome(line)} after {line['seconds']:.0f} s {reason(line)[:150]}")
        return True

    with tempfile.TemporaryDirectory(prefix="trained-drafter-") as folder:
        scratch = Path(folder)
        with ThreadPoolExecutor(args.jobs) as pool:
            ran = list(pool.map(run, planned(args)))
    if not all(ran):
        say(f"{len(ran) - sum(ran)} cells were left out: the budget is spent")
    return 0 if ran and all(ran) else 1


def predict(args: argparse.Namespace) -> int:
    """Compute in torch the steps of the cold answers that engines with trained drafters gave.

    Over a rounded cache they are for the table, where they tell other texts from other drafts.
    """
    from trained.model import load
    from trained.training import Target, predicted

    target, prompts, found = Target(args.model, args.device), asked_of(args), {}
    for cell, line in records(args.out).items():
        if cell.trained and outcome(line) == "served":
            drafter = load(args.drafter / cell.drafter).to(args.device, target.dtype)
            answers = [row["tokens"] for row in line["seen"]["waves"]["cold"]["rows"]]
            found[cell.name] = predicted(target, drafter, prompts, answers)
    (args.out / "foreseen.json").write_text(json.dumps(found), encoding="utf-8")
    return 0


def report(args: argparse.Namespace) -> int:
    lines, file = records(args.out), args.out / "foreseen.json"
    foreseen = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    text = table(lines, foreseen)
    (args.out / "table.md").write_text(text + "\n", encoding="utf-8")
    say(text)
    bad, right = 0, lines.get(REFERENCE)
    for cell, line in lines.items():
        windows = expected_windows(cell, args.drafter)
        for fault in faults(cell, line, right, windows, foreseen.get(cell.name), args.device):
            say(f"FAIL {cell.name}: {fault}")
            bad += 1
    say(f"{len(lines)} cells judged, {bad} faults")
    return 1 if bad or not lines else 0


def main() -> int:
    args = arguments()
    return {"train": train, "serve": serve, "predict": predict, "report": report}[args.verb](args)


if __name__ == "__main__":
    sys.exit(main())
