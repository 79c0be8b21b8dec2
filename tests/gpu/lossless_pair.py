#!/usr/bin/env python3
"""Does speculation change what a tiny pair answers at temperature 0? Engines with and without it on one GPU.

Needs a GPU, torch and an installed vLLM of 0.24 or 0.33; downloads nothing and imports of this project
its tiny models and its start of processes alone. Each case is a process and an engine, several at a time::

    python3 tests/gpu/lossless_pair.py --out /tmp/lossless                          # V2, 16 bits
    python3 tests/gpu/lossless_pair.py --out /tmp/lossless --only fp8 --draft-attention FLASH_ATTN
    python3 tests/gpu/lossless_pair.py --out /tmp/lossless --only v1-eager-auto --levels 1 8

Weights are made up, the same in every engine. The output head has four tokens, so that a drafter guesses
right now and then. At each level c requests start together; every fourth one reaches the longest sequence of
1,024 tokens. An engine without speculation computes each answer again as one prompt. What fails the script:

- a token of an answer is less probable than the best one by more than rounding explains, or too many are;
- of the drafts of a case, none or all are accepted;
- ``planted``, whose drafts are accepted without being looked at, passes;
- an engine does not come to its end, or its log holds a sign of a GPU fault or of a dead engine.

``OUT`` receives ``lines.jsonl``, ``report.json``, ``table.md`` and each case's log. The exit status is 0 when
everything passed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pair.models import write_models, write_window_drafter
from pair.scoring import CASES, LosslessCase, Score, scored, shortfalls
from pair.sessions import run_engine
from serve_pair import IN_PROCESS, WINDOW, end_checks, environment, parser_of, read_lines, say, say_faults

LEVELS = [1, 2, 3, 8, 17, 33, 64]


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", default=["v2-eager-auto", "v2-graphs-auto"])
    parser.add_argument("--levels", nargs="+", type=int, default=LEVELS)
    parser.add_argument("--jobs", type=int, default=8, help="engines at once")
    parser.add_argument("--seconds", type=int, default=400, help="time for a case")
    parser.add_argument("--attention", help="backend of the target")
    parser.add_argument("--draft-attention", help="backend of the drafter")
    parser.add_argument("--draft-kv", help="KV cache dtype of the drafter")
    return parser.parse_args()


def selected(only: list[str]) -> list[LosslessCase]:
    """Return the cases with one of *only* in their names, and those that judge them."""
    chosen = [case for case in CASES if any(part in case.name for part in only)]
    judges = [case.judge for case in chosen]
    return [case for case in CASES if case in chosen or case in judges]


def execute(
    case: LosslessCase, cases: list[LosslessCase], args: argparse.Namespace, scratch: Path
) -> int | None:
    """Run one engine to its end; return its exit status, or None after a time-out."""
    judged = [one.name for one in cases if one.judge == case]  # itself too: the healthy twin
    spec = {
        "run": case.name,
        "eager": case.eager,
        "kv": case.kv,
        "drafter_kind": case.drafter,
        "target": str(scratch / "target"),
        "drafter": str(scratch / ("window" if case.drafter == "window" else "drafter")),
        "attention": args.attention,
        "draft_attention": args.draft_attention,
        "draft_kv": args.draft_kv,
        "gpu_memory_utilization": 0.05,
        "levels": args.levels,
        "score": judged if case.drafter == "none" else [],
        "wait": args.seconds,
        "folder": str(scratch),
        "lines": str(args.out / "lines.jsonl"),
    }
    env = environment(case.runner, scratch) | {
        **IN_PROCESS,
        "PAIR_CACHE_GIB": os.environ.get("PAIR_CACHE_GIB", "4"),  # engines boot side by side
        "VLLM_DISABLE_COMPILE_CACHE": "1",
    }
    started = time.monotonic()
    log = args.out / f"{case.name}.log"
    try:
        status = run_engine("pair.lossless_engine", spec, log, env, args.seconds)
    finally:
        (scratch / f"{case.name}.ended").touch()  # others wait for it
    say(f"{case.name}: exit status {status} after {time.monotonic() - started:.0f} s")
    return status


def scores(case: LosslessCase, lines: list[dict[str, Any]]) -> dict[int, Score]:
    """Return the case's scores by level."""
    found = {}
    for line in lines:
        if line["kind"] == "score" and line["of"] == case.name:
            found[line["c"]] = scored(line["gaps"], line["same"])
    return found


def judge(
    case: LosslessCase, status: int | None, lines: list[dict[str, Any]], args: argparse.Namespace
) -> list[str]:
    """Return everything that is wrong with one case, a line each."""
    own = [line for line in lines if line["run"] == case.name]
    ended = any(line["kind"] == "end" for line in own)
    ends = end_checks(args.out / f"{case.name}.log", status, ended=ended)
    found = [f"{check.name}: {check.detail}" for check in ends if not check.ok]
    seen, wrong = scores(case, lines), []
    for level in args.levels:
        drafts = [line for line in own if line["kind"] == "level" and line["c"] == level]
        if level not in seen or not drafts:
            found.append(f"c={level}: never scored")
            continue
        share = drafts[0]["accepted"] / drafts[0]["drafts"] if drafts[0]["drafts"] else None
        wrong += [f"c={level}: {fault}" for fault in shortfalls(case, seen[level], share)]
    if case.drafter == "planted":
        found += [] if wrong or not seen else ["the planted fault was not found"]
    else:
        found += wrong
    return found


def table(cases: list[LosslessCase], lines: list[dict[str, Any]], found: dict[str, list[str]]) -> str:
    rows = [
        "| case | c | drafted | accepted | scored | not the best | worst, nats | same as without | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for case in cases:
        seen = scores(case, lines)
        verdict = "FAIL" if found[case.name] else "found" if case.drafter == "planted" else "pass"
        for line in lines:
            if line["kind"] != "level" or line["run"] != case.name or line["c"] not in seen:
                continue
            one = seen[line["c"]]
            rows.append(
                f"| {case.name} | {line['c']} | {line['drafts']} | {line['accepted']} | {one.tokens} "
                f"| {one.below} | {one.worst:.4f} | {one.same} of {one.requests} | {verdict} |"
            )
    return "\n".join(rows)


def main() -> int:
    args = arguments()
    cases = selected(args.only)
    args.out.mkdir(parents=True, exist_ok=True)
    record = args.out / "lines.jsonl"
    record.write_text("", encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="lossless-pair-") as folder:
        scratch = Path(folder)
        _, drafter = write_models(scratch)
        write_window_drafter(drafter, "window", WINDOW)
        with ThreadPoolExecutor(args.jobs) as pool:
            statuses = list(pool.map(lambda case: execute(case, cases, args, scratch), cases))
    lines = read_lines(args.out)
    found = {
        case.name: judge(case, status, lines, args) for case, status in zip(cases, statuses, strict=True)
    }
    text = table(cases, lines, found)
    (args.out / "table.md").write_text(text + "\n", encoding="utf-8")
    totals = {
        case.name: {str(level): asdict(one) for level, one in scores(case, lines).items()} for case in cases
    }
    (args.out / "report.json").write_text(json.dumps({"faults": found, "scores": totals}, indent=1) + "\n")
    say(text)
    return say_faults(found)


if __name__ == "__main__":
    sys.exit(main())
