#!/usr/bin/env python3
"""Serve a tiny target with a DFlash drafter over caches of one and of several formats, full of stale bytes.

Needs a GPU, torch and an installed vLLM 0.24 or 0.33 with the carries nvfp4-kv-triton, kv-zero-mixed,
kv-page-nvfp4 and, on 0.24, draft-kv-dtype; downloads nothing and imports nothing of this project but its
tiny models. Each case is a process and an engine, a few at a time::

    python3 tests/gpu/quantised_draft.py --out /tmp/mixed --quick              # 10 cases, eager
    python3 tests/gpu/quantised_draft.py --out /tmp/mixed                      # all 40
    python3 tests/gpu/quantised_draft.py --out /tmp/fp8 --only fp8 --skip nvfp4

A case's name says what it is: ``v1-eager-nvfp4-draft-bfloat16-windows`` is model runner V1 without CUDA
graphs, NVFP4 for the target's full attention, 16 bits for its sliding windows and for the drafter.

Weights are made up, the same ones in every engine, and large enough that no cache holds only zeros. Before
each level all blocks of the cache are filled with bytes that are NaN in all of its formats. What is checked,
and fails the script:

- each layer stores what it was told to, drafters over fp8 or NVFP4 run on the Triton backend, as they are
  told to, and NVFP4 pages take no more memory than their values;
- no row of the target's or of the drafter's logits is NaN (in V2's graphs the drafter's cannot be seen);
- where layers of different formats share memory, each new block is zero right after it was zeroed, in every
  layer's view, and no other page has changed; elsewhere nothing is zeroed;
- the first draft's logits over an fp8 or NVFP4 cache are those of a 16-bit drafter behind the same target, by
  their cosine, and nearer to them than those for another prompt;
- at each level c: tokens, counters, concurrency and graph replays as `serve_pair.py` demands them;
- the process comes to its end, and its log holds no sign of a GPU fault or a dead engine.

``OUT`` receives ``lines.jsonl``, ``report.json``, ``table.md`` and each case's log. The exit status is 0 when
everything passed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pair.mixes import (
    CASES,
    QUICK,
    Case,
    closeness,
    faults,
    write_pairs,
)
from pair.sessions import engines_end_on_sigterm
from serve_pair import BAD_SIGNS, Run, environment, run_engine, say, say_faults

LEVELS = [1, 2, 3, 5, 8, 16, 17, 31, 33, 47, 64]
QUICK_LEVELS = [1, 3, 17]
BOOT_SECONDS = 300


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; made when missing")
    parser.add_argument("--quick", action="store_true", help="few cases, few levels")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name holds one of these")
    parser.add_argument("--skip", nargs="*", default=[], help="no cases whose name holds one of these")
    parser.add_argument("--levels", nargs="+", type=int, help="concurrencies to serve")
    parser.add_argument("--jobs", type=int, default=10, help="engines at once")
    parser.add_argument("--list", action="store_true", help="say which cases there are, and serve none")
    return parser.parse_args()


def selected(args: argparse.Namespace) -> list[Case]:
    """Return the cases that were asked for."""
    cases = QUICK if args.quick else CASES
    return [
        case
        for case in cases
        if (not args.only or any(part in case.name for part in args.only))
        and not any(part in case.name for part in args.skip)
    ]


def execute(
    case: Case, args: argparse.Namespace, scratch: Path, models: dict[bool, tuple[Path, Path]]
) -> int | None:
    """Serve one case to its end; return the exit status, or None after a time-out."""
    target, drafter = models[case.windows]
    spec = {
        "run": case.name,
        "eager": case.eager,
        "target": str(target),
        "drafter": str(drafter),
        "dtype": case.target,
        "draft": case.draft,
        "windows": case.windows,
        "backend": "TRITON_ATTN",
        "levels": args.levels,
        "max_num_seqs": 65,
        "gpu_memory_utilization": 0.05,
        "lines": str(args.out / "lines.jsonl"),
    }
    file = scratch / f"{case.name}.json"
    file.write_text(json.dumps(spec), encoding="utf-8")
    env = environment(Run(f"{case.runner}-{'eager' if case.eager else 'graphs'}"), scratch) | {
        # Bytecode and what vLLM knows of models are shared. Compiled graphs are not, and all engines would
        # wait a minute or more for the one that compiles FlashInfer's sampler, which no request here needs.
        "VLLM_DISABLE_COMPILE_CACHE": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    started = time.monotonic()
    log = args.out / f"{case.name}.log"
    status = run_engine("pair.mixed_engine", file, log, env, BOOT_SECONDS + 20 * len(args.levels))
    say(f"{case.name}: exit status {status} after {time.monotonic() - started:.0f} s")
    return status


def judge(case: Case, status: int | None, lines: list[dict[str, Any]], args: argparse.Namespace) -> list[str]:
    """Return every fault of one case."""
    own = [line for line in lines if line["run"] == case.name]
    kinds = {
        kind: [line for line in own if line["kind"] == kind] for kind in ("boot", "level", "view", "end")
    }
    found = [] if status == 0 and len(kinds["end"]) == 1 else [f"exit status {status}, or no end"]
    if not (kinds["boot"] and kinds["boot"][0]["canary"]):
        found.append("it did not boot, or did not answer")
    served = {line["c"]: line for line in kinds["level"]}
    for level in args.levels:
        found += [
            f"c={level}: {fault}" for fault in served.get(level, {"faults": ["never served"]})["faults"][:3]
        ]
    views = {line["run"]: line for line in lines if line["kind"] == "view"}
    if case.name in views:
        found += faults(case, views[case.name], views)
    else:
        found.append("it did not say what it saw")
    log = (args.out / f"{case.name}.log").read_text(encoding="utf-8", errors="replace")
    found += [text.strip()[:200] for text in log.splitlines() if BAD_SIGNS.search(text)][:2]
    return found


def table(cases: list[Case], lines: list[dict[str, Any]], found: dict[str, list[str]]) -> str:
    """Return the cases as a Markdown table."""
    views = {line["run"]: line for line in lines if line["kind"] == "view"}
    boots = {line["run"]: line["seconds"] for line in lines if line["kind"] == "boot"}
    rows = [
        "| case | boot s | levels | tok/s at the last | zeroed | closeness of drafts | pages | verdict |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for case in cases:
        view = views.get(case.name, {})
        levels = [line for line in lines if line["run"] == case.name and line["kind"] == "level"]
        other = views.get(case.judges.name) if case.judges else None
        near = f"{closeness(view['drafts']['first'], other['drafts']['first']):.4f}" if view and other else ""
        pages = sorted({(one["mode"], one["block"], one["page"]) for one in view.get("groups", [])})
        zeroed = view.get("zeroed", {}).get("blocks", "")
        rows.append(
            f"| {case.name} | {boots.get(case.name, '')} | {len(levels)} "
            f"| {levels[-1]['tok_s'] if levels else ''} | {zeroed} | {near} "
            f"| {', '.join(f'{mode} {block} tokens {page} B' for mode, block, page in pages)} "
            f"| {'FAIL' if found[case.name] else 'pass'} |"
        )
    return "\n".join(rows)


def main() -> int:
    """Serve the cases, print the table, the faults and the tally."""
    args = arguments()
    args.levels = args.levels or (QUICK_LEVELS if args.quick else LEVELS)
    cases = selected(args)
    if args.list:
        say("\n".join(case.name for case in cases))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    record = args.out / "lines.jsonl"
    record.write_text("", encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="quantised-draft-") as folder:
        scratch = Path(folder)
        models = write_pairs(scratch)
        with engines_end_on_sigterm(), ThreadPoolExecutor(args.jobs) as pool:
            statuses = list(pool.map(lambda case: execute(case, args, scratch, models), cases))
    lines = [json.loads(text) for text in record.read_text(encoding="utf-8").splitlines()]
    found = {
        case.name: judge(case, status, lines, args) for case, status in zip(cases, statuses, strict=True)
    }
    text = table(cases, lines, found)
    (args.out / "table.md").write_text(text + "\n", encoding="utf-8")
    (args.out / "report.json").write_text(json.dumps({"faults": found}, indent=1) + "\n", encoding="utf-8")
    say(text)
    return say_faults(found)


if __name__ == "__main__":
    sys.exit(main())
