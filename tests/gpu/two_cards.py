#!/usr/bin/env python3
"""Serve a tiny Qwen3 with a DFlash drafter on two cards of one host, with tensor parallelism of two.

Not run yet. Needs two GPUs that reach each other through NCCL, torch and an installed vLLM wheel of 0.24 or
0.33 with its carries; downloads nothing and imports nothing of this project but its tiny models::

    python3 tests/gpu/two_cards.py --version 0.33.0+spark.4.1a2b3c4d --out /tmp/two --carries NAME…
    python3 tests/gpu/two_cards.py --version 0.33.0+spark.4.1a2b3c4d --out /tmp/two --only v2 --skip nvfp4
    python3 tests/gpu/two_cards.py --version 0.33.0+spark.4.1a2b3c4d --out /tmp/two --plan    # no GPU

Each case is an engine on both cards: a model runner (v1, v2), a KV cache (16 bits, NVFP4), a drafter without
windows or with them, eager or with CUDA graphs. 0.24's V2 takes no drafter with windows, and is not asked to.
What is checked, and fails the script, beside all that `serve_pair.py` checks on one card:

- two workers booted, on two different cards, with the same runner, drafter, sampler, attention and graphs;
- each level gives exactly the tokens and counters that the synthetic acceptance predicts, as on one card.

A case that passed is not run again with the same wheel, levels and ``--out``: after an interruption, the same
command goes on. ``OUT`` receives ``cases/NAME.json``, ``lines.jsonl``, ``report.json``, ``table.txt`` and
each case's log. The exit status is 0 when every case passed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pair.install import Check
from pair.models import write_models, write_window_drafter
from serve_pair import Run, environment, run_checks, run_engine, say, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pair.install import Installed

CARDS = 2
LEVELS = [1, 2, 3, 8, 17, 33, 64]
WINDOW = 64
CACHES = {"bf16": "auto", "nvfp4": "nvfp4"}
ALIKE = ("runner", "drafter", "rejection_sampler", "attention", "cudagraph_mode", "capture_sizes", "captured")
RULES = 1  # part of a result's key: raised when what is checked changes


@dataclass(frozen=True)
class Case:
    """One engine on two cards."""

    runner: str
    cache: str
    windows: bool
    eager: bool

    @property
    def name(self) -> str:
        """Such as ``v1-nvfp4-windows-graphs``: runner first and mode last, as `serve_pair` reads them."""
        drafter, mode = "windows" if self.windows else "plain", "eager" if self.eager else "graphs"
        return f"{self.runner}-{self.cache}-{drafter}-{mode}"


def cases(version: str, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Case]:
    """Return the cases of a wheel of *version* with all of *only* and none of *skip* in their names."""
    every = [
        Case(runner, cache, windows, eager)
        for runner, cache, windows, eager in product(("v1", "v2"), CACHES, (False, True), (True, False))
    ]
    return [
        case
        for case in every
        if not (version.startswith("0.24.") and case.runner == "v2" and case.windows)
        and all(part in case.name for part in only)
        and not any(part in case.name for part in skip)
    ]


def specification(
    case: Case, args: argparse.Namespace, scratch: Path, installed: dict[str, list[str]]
) -> dict[str, Any]:
    """Return what the engine's process is told."""
    # Both kinds of cache by the same kernels: others do not read NVFP4 everywhere.
    attention = {"attention_backend": "TRITON_ATTN"}
    return {
        "run": case.name,
        "eager": case.eager,
        "target": str(scratch / "target"),
        "drafter": str(scratch / ("windows" if case.windows else "drafter")),
        "levels": args.levels,
        "max_num_seqs": args.max_num_seqs,
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "engine": {
            "tensor_parallel_size": CARDS,
            "distributed_executor_backend": "mp",
            "kv_cache_dtype": CACHES[case.cache],
            **attention,
        },
        "speculative": attention,
        **installed,
        "lines": str(args.out / "lines.jsonl"),
    }


def key(case: Case, args: argparse.Namespace, digest: str) -> str:
    """Return the digest of all that decides the result of *case*."""
    parts = [RULES, asdict(case), args.version, sorted(args.carries), args.levels, args.max_num_seqs, digest]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def passed(path: Path, wanted: str) -> bool:
    """Tell if the record at *path* is of a case that passed with that key."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return bool(record["key"] == wanted and all(check["ok"] for check in record["checks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def card_checks(boot: dict[str, Any]) -> list[Check]:
    """Judge that two cards booted alike."""
    views = [boot["view"], *boot["others"]]
    cards = [view["card"] for view in views]
    differing = [name for name in ALIKE if any(view[name] != views[0][name] for view in views)]
    return [
        Check("cards", len(views) == CARDS and len(set(cards)) == CARDS, f"{len(views)}: {', '.join(cards)}"),
        Check("alike", not differing, ", ".join(differing) or "both booted the same"),
    ]


def judge(case: Case, status: int | None, args: argparse.Namespace, installed: Installed) -> list[Check]:
    """Judge one case by the lines and the log that it left."""
    texts = (args.out / "lines.jsonl").read_text(encoding="utf-8").splitlines()
    boots = [line for line in map(json.loads, texts) if line["run"] == case.name and line["kind"] == "boot"]
    found = [check for boot in boots for check in card_checks(boot)]
    return [
        Check("booted", len(boots) == 1, f"{len(boots)} times"),
        *found,
        *run_checks(Run(case.name), status, args, installed),
    ]


def execute(
    case: Case, args: argparse.Namespace, scratch: Path, installed: dict[str, list[str]]
) -> int | None:
    """Run one engine to its end; return its exit status, or None after a time-out."""
    file = scratch / f"{case.name}.json"
    file.write_text(json.dumps(specification(case, args, scratch, installed)), encoding="utf-8")
    variables = environment(Run(case.name), scratch) | {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled for a minute, and no request here needs it
        "NCCL_NVLS_ENABLE": "0",  # multicast needs a daemon that lent machines may lack
    }
    seconds = args.boot_seconds + 20 * len(args.levels)
    started = time.monotonic()
    log = args.out / f"{case.name}.log"
    status = run_engine("pair.engine", file, log, variables, seconds)
    say(f"{case.name}: exit status {status} after {time.monotonic() - started:.0f} s")
    return status


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; made when missing")
    parser.add_argument("--version", required=True, help="the wheel's version, local part included")
    parser.add_argument("--carries", nargs="*", default=[], help="names of the carries that the wheel holds")
    parser.add_argument("--pruned", nargs="*", default=[], help="path prefixes left out at installation")
    parser.add_argument("--only", nargs="*", default=[], help="only cases whose names hold all of these")
    parser.add_argument("--skip", nargs="*", default=[], help="no cases whose names hold one of these")
    parser.add_argument("--levels", nargs="+", type=int, default=LEVELS)
    parser.add_argument("--max-num-seqs", type=int, default=65)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.3)
    parser.add_argument("--boot-seconds", type=int, default=420)
    parser.add_argument("--plan", action="store_true", help="print the cases and what is done; start nothing")
    return parser.parse_args(words)


def drop_lines(path: Path, name: str) -> None:
    """Remove the lines of an earlier attempt at a case."""
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if json.loads(line)["run"] != name]
    part = path.with_suffix(".part")
    part.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    part.replace(path)


def plan(args: argparse.Namespace, digest: str = "") -> list[tuple[Case, bool]]:
    """Return the cases, each with whether it passed before; any wheel's results count without *digest*."""
    found = []
    for case in cases(args.version, args.only, args.skip):
        path = args.out / "cases" / f"{case.name}.json"
        if digest:
            found.append((case, passed(path, key(case, args, digest))))
            continue
        try:
            of_any = str(json.loads(path.read_text(encoding="utf-8"))["wheel"])
        except (OSError, ValueError, KeyError, TypeError):
            of_any = ""
        found.append((case, bool(of_any) and passed(path, key(case, args, of_any))))
    return found


def run_all(args: argparse.Namespace) -> dict[str, list[Check]]:
    """Run every case that has not passed yet; return the checks of each by its name."""
    from pair import install

    installed = install.find()
    found = {"install": install.inspect(installed, args.version, args.carries, args.pruned)}
    digest = hashlib.sha256((installed.info / "RECORD").read_bytes()).hexdigest()
    names = {
        "carried": sorted(install.carried_files(installed)),
        "native": sorted(install.native_binaries(installed)),
    }
    lines = args.out / "lines.jsonl"
    lines.touch()
    (args.out / "cases").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="two-cards-") as folder:
        scratch = Path(folder)
        _, drafter = write_models(scratch)
        write_window_drafter(drafter, "windows", WINDOW)
        for case, done in plan(args, digest):
            path = args.out / "cases" / f"{case.name}.json"
            if not done:
                drop_lines(lines, case.name)
                checks = judge(case, execute(case, args, scratch, names), args, installed)
                record = {
                    "key": key(case, args, digest),
                    "wheel": digest,
                    "checks": list(map(asdict, checks)),
                }
                path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            found[case.name] = [
                Check(**one) for one in json.loads(path.read_text(encoding="utf-8"))["checks"]
            ]
    return found


def main() -> int:
    """Run the cases, print the table and the tally."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.plan:
        for case, done in plan(args):
            say(f"{'done' if done else 'to do'}  {case.name}")
        return 0
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").count(",") + 1 < CARDS:
        say("two cards are needed: CUDA_VISIBLE_DEVICES names fewer")
        return 1
    found = run_all(args)
    text = table([json.loads(line) for line in (args.out / "lines.jsonl").read_text().splitlines()])
    (args.out / "table.txt").write_text(text + "\n", encoding="utf-8")
    report = {
        "version": args.version,
        "checks": {name: list(map(asdict, some)) for name, some in found.items()},
    }
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    say(text)
    for name, some in found.items():
        for check in some:
            if not check.ok:
                say(f"FAIL {name}: {check.name}: {check.detail}")
    failed = sum(not all(check.ok for check in some) for some in found.values())
    say(f"{len(found) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
