#!/usr/bin/env python3
"""Prove an NVFP4 KV cache on vLLM's Triton backend on one GPU: bits, attention, speed, serving, quality.

Runs with an installed wheel of vLLM 0.24 or 0.33 that has the carry, or its tree, on `PYTHONPATH`; no
network. With ``--series 0.33`` only `serve` and `quality`: the other parts make 0.24's caches, and refuse.
What they check is checked there by `nvfp4_split.py`::

    python3 tests/gpu/nvfp4_kv.py --out /tmp/nvfp4
    python3 tests/gpu/nvfp4_kv.py --out /tmp/nvfp4 --only pack,attention
    python3 tests/gpu/nvfp4_kv.py --out /tmp/nvfp4 --only sanitize      # under compute-sanitizer
    python3 tests/gpu/nvfp4_kv.py --out /tmp/nvfp4 --device cpu         # Triton's interpreter, small shapes

Parts, each in processes of its own:

- ``pack``: the kernel that writes, against a coder written from the format's definition, bit for bit, in
  memory that was filled with garbage before; fresh data each run, the seed is printed;
- ``attention``: the backend's forward over NVFP4, FP8 and 16-bit caches, against float64;
- ``speed``: decode, drafts, prefill and the pack kernel over all three caches in turn, with their floors;
- ``flashinfer``: decode, drafts and prefill over the same tokens by FlashInfer 0.7.2's NVFP4 kernels and ours
  in turn; run only if asked for, since FlashInfer must be there and compiles first;
- ``serve``: a tiny Qwen3, both model runners, with and without DFlash; tokens that a pool holds;
- ``quality``: a model trained in place, its predictions over all three caches;
- ``sanitize``: pack and read once each under ``compute-sanitizer --tool memcheck``, and a planted error.

Checks fail the script; goals (``met`` or ``missed``) do not. ``OUT`` receives ``lines.jsonl``, ``tables.md``,
charts (SVG) and the logs of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from nvfp4 import report
from nvfp4.record import Recorder, read
from nvfp4.serve import processes

HERE = Path(__file__).resolve().parent
PARTS = ("pack", "attention", "speed", "serve", "quality", "sanitize", "flashinfer")
# Parts of a stage run together; `speed` and `flashinfer` must have the card for themselves.
OF_RELEASE = {"0.24": PARTS, "0.33": ("serve", "quality")}  # parts that a series' releases can run
STAGES = (("pack", "attention"), ("speed",), ("serve", "quality"), ("sanitize",), ("flashinfer",))
DEFAULT = PARTS[:-2]
SANITIZER_ERROR = 99


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def names(text: str) -> list[str]:
    """Return names of parts, separated by commas."""
    chosen = [name for name in text.split(",") if name]
    if unknown := set(chosen) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no part is called {', '.join(sorted(unknown))}")
    return chosen


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; made when missing")
    parser.add_argument("--only", type=names, help=f"parts, separated by commas, of {', '.join(PARTS)}")
    parser.add_argument(
        "--series", choices=sorted(OF_RELEASE), default="0.24", help="of the installed release"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="new by default")
    parser.add_argument("--workers", type=int, default=12, help="processes that share the cases of attention")
    parser.add_argument("--runs", nargs="*", default=[], help="engines of the part serve; all by default")
    parser.add_argument("--cases", default="", help="only cases of pack, attention and speed with this")
    parser.add_argument("--speed-seconds", type=float, default=40, help="a context; none is begun later")
    parser.add_argument("--train-seconds", type=float, default=45)
    parser.add_argument("--part-seconds", type=float, default=420, help="limit for each process")
    args = parser.parse_args()
    if left := set(args.only or []) - set(OF_RELEASE[args.series]):
        parser.error(f"{', '.join(sorted(left))} cannot run on {args.series}")
    return args


def specifications(part: str, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return what the processes of *part* are told, by their names."""
    common = {
        "part": part,
        "device": args.device,
        "series": args.series,
        "seed": args.seed,
        "lines": str(args.out / "lines.jsonl"),
        "out": str(args.out),
        "seconds": args.speed_seconds,
        "train_seconds": args.train_seconds,
        "runs": args.runs,
        "cases": args.cases,
    }
    if part == "attention":
        of = 1 if args.device == "cpu" else args.workers
        return {f"attention-{worker}": {**common, "worker": worker, "of": of} for worker in range(of)}
    if part == "speed":
        from nvfp4.speed import PROCESSES  # imports torch

        return {f"speed-{name}": {**common, "process": name} for name in PROCESSES}
    if part == "flashinfer":
        from nvfp4.flashinfer import PROCESSES as SHAPES

        return {f"flashinfer-{name}": {**common, "process": name} for name in SHAPES}
    if part == "sanitize":
        return {"sanitize-planted": {**common, "planted": True}, "sanitize": common}
    return {part: common}


def command(name: str, spec: dict[str, Any], args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts a process, and its environment."""
    file = args.out / f"{name}.json"
    file.write_text(json.dumps(spec), encoding="utf-8")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if args.device == "cpu":
        env["TRITON_INTERPRET"] = "1"
    started = [sys.executable, "-m", "nvfp4.part", str(file)]
    if spec["part"] == "sanitize" and args.device == "cuda":
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # each tensor is an allocation that memcheck knows
        started = [tool, "--tool", "memcheck", "--error-exitcode", str(SANITIZER_ERROR), *started]
    return started, env


def stage(parts: list[str], args: argparse.Namespace) -> None:
    """Run *parts* together, and note how their processes ended."""
    specs = {name: spec for part in parts for name, spec in specifications(part, args).items()}
    commands = {name: command(name, spec, args) for name, spec in specs.items()}
    runner = Recorder(args.out / "lines.jsonl", "runner")
    if "sanitize" in parts and args.device == "cuda":
        tool = Path(commands["sanitize"][0][0])
        if not tool.exists():
            runner.check("compute-sanitizer", ok=False, detail=f"not run: there is no {tool}")
            return
    at_once = 1 if {"speed", "flashinfer"} & set(parts) else len(commands)
    for name, status in processes(commands, args.out, at_once, args.part_seconds).items():
        planted = name == "sanitize-planted" and args.device == "cuda"
        wanted = SANITIZER_ERROR if planted else 0
        if name.startswith("sanitize") and args.device == "cuda":
            log = (args.out / f"{name}.log").read_text(encoding="utf-8", errors="replace")
            summary = next((line.strip() for line in log.splitlines() if "ERROR SUMMARY" in line), "")
            errors = len(summary) > 0 and "SUMMARY: 0 errors" not in summary
            runner.check(f"{name}: memcheck", summary and errors == planted, summary or "it gave no summary")
        runner.check(
            f"{name}: exit status",
            status == wanted,
            f"{status}{reason(args.out / f'{name}.log', status, wanted)}",
        )


def reason(log: Path, status: int, wanted: int) -> str:
    """Return the last line of a log that says something, where a process ended otherwise than it should."""
    if status == wanted:
        return ""
    if status == -1:
        return ", took too long"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return f", {next((line.strip()[:300] for line in reversed(lines) if line.strip()), 'log is empty')}"


def drawings(lines: list[dict[str, Any]]) -> dict[str, str]:
    """Charts, or none where they cannot be drawn: the figures are what counts."""
    try:
        return report.charts(lines)
    except Exception as error:  # noqa: BLE001 - said, and not worth losing the tally
        say(f"no charts: {error!r}")
        return {}


def main() -> int:
    """Run what was asked for, write and print tables and the tally."""
    args = arguments()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "lines.jsonl"
    file.unlink(missing_ok=True)
    default = ["pack", "attention"] if args.device == "cpu" else list(DEFAULT)
    chosen = args.only or [part for part in default if part in OF_RELEASE[args.series]]
    Recorder(file, "runner").write("fact", name="seed", value=args.seed)
    say(f"seed {args.seed}; parts {', '.join(chosen)}")
    for together in STAGES:
        if parts := [part for part in together if part in chosen]:
            began = time.monotonic()
            stage(parts, args)
            say(f"{', '.join(parts)}: {time.monotonic() - began:.0f} s")
    lines = read(file)
    tables = report.tables(lines)
    (args.out / "tables.md").write_text(tables + "\n", encoding="utf-8")
    for name, drawing in drawings(lines).items():
        (args.out / f"{name}.svg").write_text(drawing, encoding="utf-8")
    say(tables)
    checks = [line for line in lines if line["kind"] == "check"]
    for line in checks:
        if not line["ok"]:
            say(f"FAIL {line['part']}: {line['name']}: {line['detail']}")
    for line in (line for line in lines if line["kind"] == "goal"):
        say(f"goal {'met   ' if line['met'] else 'missed'} {line['name']}: {line['detail']}")
    failed = sum(not line["ok"] for line in checks)
    say(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
