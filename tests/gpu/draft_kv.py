#!/usr/bin/env python3
"""Does the prefix cache hold a drafter's keys and values, block by block? On both model runners.

Serves a tiny Qwen3 with a DFlash drafter whose weights depend on all that came before a token, and then
compares every block that the prefix cache would serve with the same tokens computed alone, in one prefill,
with an empty cache: the drafter's layers, and as a control the target's. It needs a GPU, torch and an
installed vLLM wheel of 0.24 or 0.33, and downloads nothing::

    python3 tests/gpu/draft_kv.py --version 0.24.0 --out /tmp/stock
    python3 tests/gpu/draft_kv.py --version 0.24.0+spark.12.1a2b3c4d --out /tmp/patched \
        --carries tie-weights … dflash-context-mask dflash-context-store …

Cases, each in an engine that keeps running (`pair.draft_engine`):

- ``alone``: one request after another;
- ``shared``: a dozen at once with a common prefix, rejected drafts in every step, and their next turns;
- ``crowded``: chunked prefills, evictions and preemptions;
- ``at-the-end``: prompts that are computed in the step of a request near ``max_model_len``, and come again;
- ``planted``: ``shared`` again while one context row in ``--plant`` is not stored: this must be found.

What fails the script: another runner or drafter than asked for; a case that did not do what it is there
for; a target's block that differs; a drafter's block that differs where none may; a planted fault that is
not found.
``at-the-end`` on V1 must find blocks without context unless the carry ``dflash-context-store`` is named.

``OUT`` receives ``lines.jsonl``, ``report.json``, ``table.txt`` and a log for each run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from pair import install
from pair.install import Check
from pair.models import write_models
from pair.sessions import run_engine
from serve_pair import IN_PROCESS, RUNNERS, conclude, end_checks, environment, parser_of, read_lines, same

CASES = ["alone", "shared", "crowded", "at-the-end", "planted"]
RUNS = ["v1-eager", "v2-eager", "v1-graphs", "v2-graphs"]
STORE_CARRY = "dflash-context-store"


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--version", help="the wheel's version, local part included; else it is not checked")
    parser.add_argument("--carries", nargs="*", default=[], help="names of the carries that the wheel holds")
    parser.add_argument("--pruned", nargs="*", default=[], help="path prefixes left out at installation")
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=RUNS[:2])
    parser.add_argument("--only", nargs="*", choices=CASES, default=CASES, help="these cases")
    parser.add_argument("--plant", type=int, default=5, help="one context row in so many is not stored")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.5)
    parser.add_argument("--seconds", type=int, default=300, help="time for a run")
    return parser.parse_args()


def execute(run: str, args: argparse.Namespace, scratch: Path) -> int | None:
    """Run one engine to its end; return its exit status, or None after a time-out."""
    spec = {
        "run": run,
        "eager": run.endswith("-eager"),
        "target": str(scratch / "target"),
        "drafter": str(scratch / "drafter"),
        "cases": args.only,
        "plant": args.plant,
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "lines": str(args.out / "lines.jsonl"),
    }
    env = environment(run.partition("-")[0], scratch) | IN_PROCESS
    return run_engine("pair.draft_engine", spec, args.out / f"{run}.log", env, args.seconds)


def case_checks(line: dict[str, Any], carries: list[str]) -> list[Check]:
    """Judge one case: that it was what it is there for, and what it found."""
    name = line["case"]
    if line["fault"]:
        return [Check(name, ok=False, detail=line["fault"])]
    draft, target, restored = line["draft"], line["target"], line["restored"]
    was = {
        "alone": not line["cached_tokens"] and line["drafted"] > 0,
        "shared": line["cached_tokens"] > 0 and restored["positions"] > 0 and line["drafted"] > 0,
        "crowded": line["preempted"] > 0 and line["drafted"] > 0,
        "at-the-end": line["cached_tokens"] > 0 and restored["positions"] > 0,
        "planted": line["cached_tokens"] > 0,
    }[name]
    did = (
        f"{line['cached_tokens']} tokens restored, {line['preempted']} preemptions, {line['drafted']} drafted"
    )
    wrong = _bad(draft)
    harmed = name == "planted" or (
        name == "at-the-end" and line["run"].startswith("v1") and STORE_CARRY not in carries
    )
    hits = f"{_bad(restored)} of {restored['positions']} restored ones"
    found = f"{wrong} of {draft['positions']} positions wrong, {hits}"
    return [
        Check(f"{name}: took place", was, did),
        Check(
            f"{name}: target's blocks",
            target["positions"] > 0 and not _bad(target),
            f"{_bad(target)} of {target['positions']} positions wrong, others within {target['worst']:.3f}",
        ),
        Check(
            f"{name}: drafter's blocks are {'harmed' if harmed else 'right'}",
            draft["positions"] > 0 and bool(wrong) == harmed,
            f"{found}; others within {draft['worst']:.3f}",
        ),
    ]


def _bad(verdict: dict[str, Any]) -> int:
    return int(verdict["never_written"] + verdict["wrong"])


def run_checks(run: str, status: int | None, args: argparse.Namespace) -> list[Check]:
    """Judge one run by its lines and its log."""
    lines = [line for line in read_lines(args.out) if line["run"] == run]
    runner, drafter, _ = RUNNERS[run.partition("-")[0]]
    checks = []
    for line in (line for line in lines if line["kind"] == "boot"):
        checks += [same("model runner", line["runner"], runner), same("drafter", line["drafter"], drafter)]
    cases = {line["case"]: line for line in lines if line["kind"] == "case"}
    for name in args.only:
        line = cases.get(name, {"run": run, "case": name, "fault": "never served"})
        checks += case_checks(line, args.carries)
    ended = any(line["kind"] == "end" for line in lines)
    return checks + end_checks(args.out / f"{run}.log", status, ended=ended)


def table(lines: list[dict[str, Any]]) -> str:
    heads = "run case requests restored-tokens preempted drafted positions never-written wrong"
    columns = f"{heads} worst-of-the-rest restored-wrong target-wrong".split()
    rows = ["| " + " | ".join(columns) + " |", "|---|---|" + "--:|" * 10]
    for line in (line for line in lines if line["kind"] == "case"):
        start = f"| {line['run']} | {line['case']} |"
        if line["fault"]:
            rows.append(f"{start} {line['fault'][:80]} |" + " |" * 9)
            continue
        draft, restored = line["draft"], line["restored"]
        rows.append(
            f"{start} {line['requests']} | {line['cached_tokens']} "
            f"| {line['preempted']} | {line['drafted']} | {draft['positions']} | {draft['never_written']} "
            f"| {draft['wrong']} | {draft['worst']:.3f} | {_bad(restored)} of {restored['positions']} "
            f"| {_bad(line['target'])} |"
        )
    return "\n".join(rows)


def judge(args: argparse.Namespace) -> dict[str, list[Check]]:
    """Check the installation and run every engine; the checks by run."""
    checks: dict[str, list[Check]] = {}
    if args.version:
        installed = install.find()
        checks["install"] = install.inspect(installed, args.version, args.carries, args.pruned)
    with tempfile.TemporaryDirectory(prefix="draft-kv-") as folder:
        scratch = Path(folder)
        write_models(scratch)
        for run in args.runs:
            checks[run] = run_checks(run, execute(run, args, scratch), args)
    return checks


def main() -> int:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "lines.jsonl").unlink(missing_ok=True)
    checks = judge(args)
    return conclude(args.out, table(read_lines(args.out)), checks)


if __name__ == "__main__":
    sys.exit(main())
