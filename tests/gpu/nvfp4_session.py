#!/usr/bin/env python3
"""Run a session on one GPU for an NVFP4 KV cache in Triton: right bits, memcheck, speed, serving.

Needs one GPU, torch and, for ``serve``, an installed wheel of 0.24 or 0.33 with the carry and this project
on PYTHONPATH; no network. Each stage fits a command of ten minutes on a Hopper card with 16 cores::

    python3 tests/gpu/nvfp4_session.py --out OUT --stage kernels --tree TREE --before OLD --fa2 FA2
    python3 tests/gpu/nvfp4_session.py --out OUT --stage speed --tree TREE --before OLD --fa2 FA2
    python3 tests/gpu/nvfp4_session.py --out OUT --stage serve --version VERSION --budget 560

FA2 is ``_vllm_fa2_C.abi3.so`` of upstream's wheel. ``kernels`` checks and sanitizes the kernels of TREE, and
compiles what ``speed`` times. ``speed`` times TREE, alone on the card, beside FlashAttention 2 and 16 bits in
Triton, and then OLD, such as the patched tree of 0.24.
``serve`` serves tiny models of Qwen, Gemma 4 and gpt-oss with DFlash and n-gram drafts over NVFP4 on model
runner V2, eager and with graphs, and compares their answers. ``OUT`` receives a log of each command. The exit
status is 0 if all commands' are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from serve_pair import parser_of, say

HERE = Path(__file__).resolve().parent
GAPS = "sinks|window|heads of 512"  # what is timed besides `timed`: layers that FlashInfer cannot read
SHARES = 4
LEFT_OUT = "mla eagle3 mtp moe synthetic"
LIMIT = 570  # seconds of a stage


def commands(args: argparse.Namespace) -> list[dict[str, list[str]]]:
    """Return the stage's commands by their names: those of one group at once, group after group."""
    split = [sys.executable, str(HERE / "nvfp4_split.py")]
    trees = {"now": args.tree, "before": args.before}
    timed = {name: [*split, "--tree", str(tree)] for name, tree in trees.items() if tree}
    if args.stage == "serve":
        fleet = [sys.executable, str(HERE / "serve_fleet.py"), "--version", args.version]
        words = f"--jobs 8 --budget {args.budget} --only nvfp4 v2 --skip {LEFT_OUT}"
        return [{"fleet": [*fleet, "--out", str(args.out), *words.split()]}]
    library = ["--fa2", str(args.fa2)] if args.fa2 else []
    if args.stage == "speed":
        found = [
            {f"speed-{name}": [*one, "--part", "speed", "--out", str(args.out / name), *library]}
            for name, one in timed.items()
        ]
        gaps = ["--part", "speed", "--only", GAPS, "--out", str(args.out / "now")]
        return [*found[:1], {"speed-gaps": [*timed["now"], *gaps]}, *found[1:]]
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # Triton's loader tries an attribute that the driver refuses, and goes on: such calls are no findings.
    memcheck = [tool, "--tool", "memcheck", "--report-api-errors", "no"]
    small = [*memcheck, *timed["now"], "--part", "sanitize", "--segments"]
    group = {
        "check": [*timed["now"], "--part", "check"],
        "memcheck-7": [*small, "7"],
        "memcheck-64": [*small, "64"],
        "memcheck-planted": [*small, "64", "--planted"],
    }
    for share in range(SHARES):
        part = ["--share", f"{share}/{SHARES}"]
        group |= {
            f"compile-{name}-{share}": [*one, "--part", "compile", *part] for name, one in timed.items()
        }
        group[f"compile-gaps-{share}"] = [*timed["now"], "--part", "compile", "--only", GAPS, *part]
        if library:
            group[f"fa2-{share}"] = [*timed["now"], "--part", "fa2", *library, *part]
    return [group]


def run(group: dict[str, list[str]], out: Path, began: float) -> int:
    """Run a group's commands at once, print how each ended, and return how many ended wrongly.

    Args:
        group: the commands by their names.
        out: folder of their logs.
        began: `time.monotonic` at the start of the stage, whose limit ends them.
    """
    env = os.environ | {"CUDA_CACHE_MAXSIZE": str(4 << 30), "PYTHONUNBUFFERED": "1"}
    bad, children = 0, {}
    for name, command in group.items():
        with (out / f"{name}.log").open("wb") as log:
            children[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
    for name, child in children.items():
        try:
            status = child.wait(max(1.0, LIMIT - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
        text = (out / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        tally = [line for line in text if "ERROR SUMMARY:" in line]
        clean = bool(tally) and "ERROR SUMMARY: 0 errors" in tally[-1]
        planted = name.endswith("planted")
        wrong = status != 0 or (name.startswith("memcheck") and (not tally or clean == planted))
        bad += wrong
        said = next((line for line in reversed(text) if line.strip()), "")
        verdict = "FAIL" if wrong else "ok"
        say(f"{verdict} {name}: {status}, {time.monotonic() - began:.0f} s: {said[:200]}")
    return bad


def main() -> int:
    """Run one stage."""
    parser = parser_of(__doc__)
    parser.add_argument("--stage", choices=("kernels", "speed", "serve"), required=True)
    parser.add_argument("--tree", type=Path, help="kernels, speed: the patched tree, or its three files")
    parser.add_argument("--before", type=Path, help="kernels, speed: a tree to compare the times with")
    parser.add_argument("--fa2", type=Path, help="kernels, speed: _vllm_fa2_C.abi3.so of upstream's wheel")
    parser.add_argument("--version", help="serve: the installed vLLM's version, or its release")
    parser.add_argument("--budget", type=int, default=560, help="serve: seconds for all cells")
    args = parser.parse_args()
    if args.stage == "serve" and not args.version:
        parser.error("serve needs --version")
    if args.stage != "serve" and not args.tree:
        parser.error(f"{args.stage} needs --tree")
    args.out = args.out.resolve()
    for folder in ("now", "before"):
        (args.out / folder).mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    return 1 if sum(run(group, args.out, began) for group in commands(args)) else 0


if __name__ == "__main__":
    sys.exit(main())
