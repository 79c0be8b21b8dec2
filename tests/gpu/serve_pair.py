#!/usr/bin/env python3
"""Serve a tiny Qwen3 with a DFlash drafter on one GPU or two, at many concurrencies, on both model runners.

Proves that an installed vLLM wheel of 0.24 or 0.33 boots and serves: it needs a GPU, torch and that wheel,
downloads nothing and imports of this project its tiny models and its start of processes alone. Each run is a
process and an engine::

    python3 tests/gpu/serve_pair.py --version 0.24.0+spark.12.1a2b3c4d --out /tmp/proof \
        --carries tie-weights uma-clamp dflash-query-buffers cudagraph-align gdn-gate-align
    python3 tests/gpu/serve_pair.py --version 0.24.0 --out /tmp/stock --runs v1-graphs   # upstream's wheel
    python3 tests/gpu/serve_pair.py --version 0.24.0+spark.12.5e6f7a8b --out /tmp/native \
        --carries tie-weights native-sm121a --native _C_stable_libtorch _moe_C_stable_libtorch
    python3 tests/gpu/serve_pair.py --version 0.24.0 --out /tmp/stock --runs             # the files alone
    python3 tests/gpu/serve_pair.py --version 0.33.0+spark.4.c950f766 --out /tmp/two --cards 2 --cache nvfp4

What is checked, and fails the script:

- the installed files are the wheel's, by its ``RECORD``; its carries are those named; the engine's process
  imports exactly these files, and `vllm.__version__` is the wheel's;
- the binaries that are not upstream's are those named, and the engine's process has exactly these files
  mapped (what they compute is compared by ``sparkwright verify compare UPSTREAM.whl NATIVE.whl``);
- the model runner, drafter and rejection sampler that ran are those asked for, and CUDA graphs are captured
  and replayed, or, eager, never;
- at each level c: every request gives exactly the tokens asked for, ended by length; c requests ran at once;
  vLLM's counters rose by exactly what the synthetic acceptance (two of three drafted tokens) predicts; the
  engine serves one more request afterwards;
- the process comes to its end, and its log holds no sign of a GPU fault or a dead engine;
- with ``--cards 2``: two workers booted alike, on two different cards of this host. Custom all-reduce, which
  two hosts never use, is off: with it 0.24.0 fails while graphs are captured, stock and patched.

``OUT`` receives ``lines.jsonl`` (one line a boot, level and end), ``report.json``, ``table.txt`` and each
run's log. The exit status is 0 when everything passed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pair import install
from pair.install import Check
from pair.models import write_models, write_window_drafter
from pair.sessions import run_engine

HERE = Path(__file__).resolve().parent
LEVELS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 25, 31, 32, 33, 47, 63, 64, 65]
QUERY_LEN = 4  # rows of a request in a decode step: one sampled token and three drafted ones
RUNNERS = {
    "v1": (
        "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
        "vllm.v1.spec_decode.dflash.DFlashProposer",
        "vllm.v1.sample.rejection_sampler.RejectionSampler",
    ),
    "v2": (
        "vllm.v1.worker.gpu.model_runner.GPUModelRunner",
        "vllm.v1.worker.gpu.spec_decode.dflash.speculator.DFlashSpeculator",
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler.RejectionSampler",
    ),
}
RUNS = [f"{runner}-{mode}" for runner in RUNNERS for mode in ("eager", "graphs")]
WINDOW = 64
ALIKE = ("runner", "drafter", "rejection_sampler", "attention", "cudagraph_mode", "capture_sizes", "captured")
BAD_SIGNS = re.compile(
    r"illegal memory access|device-side assert|CUDA error|out of memory"
    r"|EngineDeadError|EngineCore encountered|block_table must have shape|batch_size must be equal",
    re.IGNORECASE,
)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def parser_of(told: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script that says *told* of itself, with its folder for results."""
    parser = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; made when missing")
    return parser


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--version", required=True, help="the wheel's version, local part included")
    parser.add_argument("--carries", nargs="*", default=[], help="names of the carries that the wheel holds")
    parser.add_argument("--pruned", nargs="*", default=[], help="path prefixes left out at installation")
    parser.add_argument("--left-out", nargs="*", default=[], help="carries that the wheel names as left out")
    parser.add_argument("--native", nargs="*", default=[], help="extensions, without suffix, of our own")
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=RUNS)
    parser.add_argument("--levels", nargs="+", type=int, default=LEVELS)
    parser.add_argument("--max-num-seqs", type=int, default=65, help="65 are no capture size's worth")
    parser.add_argument("--cards", type=int, choices=[1, 2], default=1, help="tensor parallelism")
    parser.add_argument("--cache", default="auto", help="dtype of the KV cache, such as nvfp4")
    parser.add_argument("--windows", action="store_true", help="a drafter with sliding windows")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.5)
    parser.add_argument("--boot-seconds", type=int, default=420, help="time for a boot, without levels")
    return parser.parse_args()


def environment(runner: str, scratch: Path, device: str = "cuda") -> dict[str, str]:
    """Return the engine's environment: offline, one model runner, no stale bytecode or compiled graph.

    On a CPU the installation's bytecode is kept: a minute's work.
    """
    path = [str(HERE), os.environ.get("PYTHONPATH", "")]
    bytecode = {"PYTHONPYCACHEPREFIX": str(scratch / "bytecode")}
    cpu = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return {
        **os.environ,
        **(cpu if device == "cpu" else bytecode),
        "VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "v2" else "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # compiled for a minute, and no request here needs it
        "VLLM_ALLREDUCE_USE_FLASHINFER": "0",  # likewise, on two cards
        "NCCL_NVLS_ENABLE": "0",  # multicast needs a daemon that lent machines may lack
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(scratch / "vllm-cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONUNBUFFERED": "1",
    }


IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""More for an engine whose core runs in the process that drives it."""


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return what an engine is asked for beside the pair: its cache, and two cards."""
    engine: dict[str, Any] = {"kv_cache_dtype": args.cache}
    attention = {"attention_backend": "TRITON_ATTN"} if args.cache != "auto" else {}
    if args.cards > 1:
        engine |= {"tensor_parallel_size": args.cards, "distributed_executor_backend": "mp"}
        engine["disable_custom_all_reduce"] = True
        engine["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}  # FlashInfer's again
    return {"engine": engine | attention, "speculative": attention}


def execute(run: str, args: argparse.Namespace, scratch: Path, installed: install.Installed) -> int | None:
    """Run one engine to its end; return its exit status, or None after a time-out."""
    spec = {
        "run": run,
        "eager": run.endswith("-eager"),
        "target": str(scratch / "target"),
        "drafter": str(scratch / ("windows" if args.windows else "drafter")),
        **engine_options(args),
        "levels": args.levels,
        "max_num_seqs": args.max_num_seqs,
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "carried": sorted(install.carried_files(installed)),
        "native": sorted(install.native_binaries(installed)),
        "lines": str(args.out / "lines.jsonl"),
    }
    seconds = args.boot_seconds + 20 * len(args.levels)
    env = environment(run.partition("-")[0], scratch)
    status = run_engine("pair.engine", spec, args.out / f"{run}.log", env, seconds)
    say(f"{run}: exit status {status}")
    return status


def same(name: str, seen: str, wanted: str) -> Check:
    """Check that *seen* is what is *wanted*."""
    return Check(name, seen == wanted, seen)


def boot_checks(
    run: str, line: dict[str, Any], args: argparse.Namespace, installed: install.Installed
) -> list[Check]:
    """Judge what booted."""
    view, modules = line["view"], line["modules"]
    eager = run.endswith("-eager")
    runner, drafter, sampler = RUNNERS[run.partition("-")[0]]
    sizes, captured, estimate = view["capture_sizes"], view["captured"], view["graph_memory_estimate"]
    expected = {
        path: [str(installed.root / path), digest]
        for path, digest in install.carried_files(installed).items()
    }
    checks = [
        same("model runner", view["runner"], runner),
        same("drafter", view["drafter"], drafter),
        same("rejection sampler", view["rejection_sampler"], sampler),
        same("vllm.__version__", view["vllm"], args.version),
        same("imported from", view["vllm_file"], str(installed.root / "vllm/__init__.py")),
        Check("carried files imported", modules == expected, f"{len(modules)} of {len(expected)}"),
        _mapped_check(line["binaries"], installed),
        Check("graphs captured", not captured if eager else bool(sizes and captured), f"{captured} graphs"),
        Check("graph memory estimate", (estimate or 0) >= 0, str(estimate)),
        Check("first request", line["canary"], f"booted in {line['seconds']} s"),
    ]
    checks += card_checks(line, args.cards)
    if run.startswith("v1") and "dflash-query-buffers" in args.carries:
        full = args.max_num_seqs * QUERY_LEN
        padded = min((size for size in sizes if size >= full and not eager), default=full)
        rows = view["drafter_rows"]
        enough = len(rows) == 2 and min(rows.values()) >= padded
        said = f"{rows}; a full batch of {full} is padded to {padded}"
        checks.append(Check("drafter's rows", enough, said))
    return checks


def card_checks(boot: dict[str, Any], count: int) -> list[Check]:
    """Judge that so many cards booted alike."""
    views = [boot["view"], *boot["others"]]
    cards = [view["card"] for view in views]
    differing = [name for name in ALIKE if any(view[name] != views[0][name] for view in views)]
    return [
        Check("cards", len(views) == len(set(cards)) == count, f"{len(views)}: {', '.join(cards)}"),
        Check("alike", not differing, ", ".join(differing) or "all booted the same"),
    ]


def _mapped_check(binaries: dict[str, Any], installed: install.Installed) -> Check:
    """Check that the engine's process maps each of our binaries from the installed file alone."""
    files = {path: seen["files"] for path, seen in binaries.items()}
    expected = {
        path: [[str(installed.root / path), digest]]
        for path, digest in install.native_binaries(installed).items()
    }
    served = sorted(Path(path).name.partition(".")[0] for path, seen in binaries.items() if seen["before"])
    detail = f"{len(files)} of {len(expected)}; loaded by vLLM itself: {', '.join(served) or 'none'}"
    return Check("native binaries mapped", files == expected and bool(served) == bool(expected), detail)


def run_checks(
    run: str, status: int | None, args: argparse.Namespace, installed: install.Installed
) -> list[Check]:
    """Judge one run by the lines and the log that it left."""
    lines = [line for line in read_lines(args.out) if line["run"] == run]
    by_kind = {kind: [line for line in lines if line["kind"] == kind] for kind in ("boot", "level", "end")}
    checks = [check for line in by_kind["boot"] for check in boot_checks(run, line, args, installed)]
    levels = {line["c"]: line for line in by_kind["level"]}
    for level in args.levels:
        line = levels.get(level, {"faults": ["never served"]})
        said = "; ".join(line["faults"][:8]) or "as predicted"
        checks.append(Check(f"c={level}", not line["faults"], said))
    ended = len(by_kind["boot"]) == len(by_kind["end"]) == 1 and not by_kind["end"][0]["errored"]
    return checks + end_checks(args.out / f"{run}.log", status, ended=ended)


def end_checks(log: Path, status: int | None, *, ended: bool) -> list[Check]:
    """Judge how a run ended, by its log, its exit status, and whether it said itself that it *ended*."""
    text = log.read_text(encoding="utf-8", errors="replace")
    bad = [line.strip()[:200] for line in text.splitlines() if BAD_SIGNS.search(line)]
    return [
        Check("log", not bad, bad[0] if bad else "no sign of a fault"),
        Check("came to its end", ended and status == 0, f"exit status {status}"),
    ]


def conclude(out: Path, text: str, checks: Mapping[str, Sequence[Check]]) -> int:
    """Write the table *text* and the checks of each run to *out*, and print them; return the exit status."""
    (out / "table.txt").write_text(text + "\n", encoding="utf-8")
    report = {run: [asdict(one) for one in some] for run, some in checks.items()}
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    say(text)
    for name, some in checks.items():
        for check in some:
            say(f"{'ok  ' if check.ok else 'FAIL'} {name}: {check.name}: {check.detail}")
    failed = sum(not check.ok for some in checks.values() for check in some)
    say(f"{sum(map(len, checks.values())) - failed} passed, {failed} failed")
    return 1 if failed else 0


def read_lines(out: Path) -> list[dict[str, Any]]:
    """Return what all engines wrote."""
    file = out / "lines.jsonl"
    texts = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in texts]


def table(lines: list[dict[str, Any]]) -> str:
    """Return the levels of all runs, as text. A level whose decode rows are a capture size is on the grid."""
    sizes = {line["run"]: line["view"]["capture_sizes"] for line in lines if line["kind"] == "boot"}
    head = f"{'run':10} {'c':>3} {'grid':>4} {'requests':>8} {'tokens':>7} {'seconds':>8} {'tok/s':>9}"
    rows = [head + f" {'accepted':>8} {'peak':>5} {'sizes':>5} {'replays':>8}  verdict"]
    for line in (line for line in lines if line["kind"] == "level"):
        on = QUERY_LEN * line["c"] in sizes[line["run"]]
        grid = "-" if line["run"].endswith("eager") else "on" if on else "off"
        verdict = "FAIL" if line["faults"] else "pass"
        rows.append(
            f"{line['run']:10} {line['c']:>3} {grid:>4} {line['requests']:>8} {line['tokens']:>7} "
            f"{line['seconds']:>8.3f} {line['tok_s']:>9.1f} {line['acceptance_length']:>8.4f} "
            f"{line['peak']:>5} {line['sizes']:>5} {line['replays']:>8}  {verdict}"
        )
    return "\n".join(rows)


def main() -> int:
    """Check the installation, run every engine, print the table and the tally."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "lines.jsonl").unlink(missing_ok=True)
    installed = install.find()
    checks = {
        "install": install.inspect(
            installed, args.version, args.carries, args.pruned, left_out=args.left_out, native=args.native
        )
    }
    with tempfile.TemporaryDirectory(prefix="serve-pair-") as folder:
        scratch = Path(folder)
        _, drafter = write_models(scratch)
        write_window_drafter(drafter, "windows", WINDOW)
        for run in args.runs:
            status = execute(run, args, scratch, installed)
            checks[run] = run_checks(run, status, args, installed)
    return conclude(args.out, table(read_lines(args.out)), checks)


if __name__ == "__main__":
    sys.exit(main())
