#!/usr/bin/env python3
"""Is one vLLM slower than another? Two installed trees serve the same tiny DFlash pair by turns on one GPU.

Both engines stay loaded, each in one process, and are measured round by round, one idle while the other
works, in the order A B B A, so that clocks and temperature touch both alike. A round is c requests that
start together and give the same number of tokens each; its rate is output tokens over seconds. Synthetic
acceptance makes the steps equal::

    python3 tests/gpu/compare_rates.py --tree stock=/opt/stock --tree patched=/opt/patched --out /tmp/rates

For each run and c: both medians, and the ratio of the second tree's rate to the first's as the median over
pairs of neighbouring rounds, with a 95 % bootstrap interval. The exit status is 1 when an interval lies
wholly below ``--least`` or a worker failed, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pair.sessions import ended, engines_end_on_sigterm, stopped

HERE = Path(__file__).resolve().parent
LEVELS = [1, 3, 8, 17, 33, 64]
RUNS = [f"{runner}-{mode}" for runner in ("v1", "v2") for mode in ("graphs", "eager")]
OUTPUT_TOKENS = 769  # one token of the prefill, then 256 steps of three; less is over before it can be timed
PROMPT_TOKENS = 96


@dataclass(frozen=True)
class Ratio:
    """The second tree's rate beside the first's at one level; rates in output tokens a second."""

    run: str
    c: int
    first: float
    second: float
    ratio: float
    low: float
    high: float
    pairs: int


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER", help="given twice")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=["v1-graphs", "v2-graphs"])
    parser.add_argument("--levels", nargs="+", type=int, default=LEVELS)
    parser.add_argument("--rounds", type=int, default=10, help="of each tree at each level; even")
    parser.add_argument("--tokens", type=int, default=OUTPUT_TOKENS, help="of output for each request")
    parser.add_argument("--least", type=float, default=0.97, help="the ratio that the second must reach")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.3)
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="JSON: further arguments of the engines"
    )
    parser.add_argument("--boot-seconds", type=int, default=300)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def work(spec: dict[str, Any]) -> None:
    """Boot one engine, then answer each c on the standard input with the seconds that it took."""
    from pair.arguments import pair_arguments
    from pair.models import VOCABULARY
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever vLLM prints goes to the log
    engine = LLM(
        **pair_arguments(spec), max_num_seqs=65, max_num_batched_tokens=4096, enable_prefix_caching=False
    )
    wanted = SamplingParams(max_tokens=spec["tokens"], ignore_eos=True, temperature=0.0, detokenize=False)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        c, seed = json.loads(line)
        source = random.Random(seed)
        prompts = [
            TokensPrompt(prompt_token_ids=[source.randrange(3, VOCABULARY - 1) for _ in range(PROMPT_TOKENS)])
            for _ in range(c)
        ]
        start = time.perf_counter()
        outputs = engine.generate(prompts, wanted, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        answers.write(json.dumps({"seconds": seconds, "tokens": tokens}) + "\n")


class Worker:
    """A worker's process, its questions and answers."""

    def __init__(self, name: str, tree: str, run: str, args: argparse.Namespace, scratch: Path) -> None:
        runner, mode = run.split("-")
        self.name = name
        self.tokens = args.tokens
        self.log: IO[bytes] = (args.out / f"{run}-{name}.log").open("wb")
        spec = {
            "eager": mode == "eager",
            "tokens": args.tokens,
            "target": str(scratch / "target"),
            "drafter": str(scratch / "drafter"),
            "gpu_memory_utilization": args.gpu_memory_utilization,
            "engine": args.engine,
        }
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [tree, str(HERE), os.environ.get("PYTHONPATH", "")])),
            "VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "v2" else "0",
            "PAIR_CACHE_GIB": os.environ.get("PAIR_CACHE_GIB", "2"),  # both boot at once
            # Models this small wait for the CPU. A process between the questions and the engine wakes up now
            # in good time and now late, and the same engine's rates were two thirds of each other.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # All requests are greedy. Left on, model runner V2 imports FlashInfer, which may be missing.
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_CACHE_ROOT": str(scratch / f"cache-{name}"),
            "PYTHONPYCACHEPREFIX": str(scratch / f"bytecode-{name}"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            text=True,
            start_new_session=True,
        )

    def ready(self, seconds: float) -> bool:
        """Wait *seconds* for the boot; False when the process ended instead, or did not boot in time."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], seconds)
        return bool(readable) and bool(self.process.stdout.readline())

    def rate(self, c: int, seed: int) -> float:
        """Return the output tokens a second of one round.

        Raises:
            ValueError: the worker ended, or gave another number of tokens than was asked for.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([c, seed]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline() or "{}")
        if answer.get("tokens") != c * self.tokens:
            raise ValueError(f"{self.name}: {answer or 'the engine ended'} at c = {c}")
        return float(answer["tokens"] / answer["seconds"])

    def end(self) -> None:
        """Close the questions, and the process with them; what is left of it `ended` kills."""
        if self.process.stdin:
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        if self.process.stdout:
            self.process.stdout.close()
        self.log.close()


def summary(run: str, c: int, first: list[float], second: list[float]) -> Ratio:
    """Return the paired ratio of two lists of rates, with its bootstrap interval."""
    ratios = [b / a for a, b in zip(first, second, strict=True)]
    source = random.Random(c)
    medians = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(2000))
    return Ratio(
        run,
        c,
        statistics.median(first),
        statistics.median(second),
        statistics.median(ratios),
        medians[50],
        medians[1949],
        len(ratios),
    )


def compare(run: str, trees: list[tuple[str, str]], args: argparse.Namespace, scratch: Path) -> list[Ratio]:
    """Boot both trees, measure by turns.

    Raises:
        ValueError: an engine did not boot or ended.
    """
    workers: list[Worker] = []
    found = []
    with contextlib.ExitStack() as stack:
        for name, tree in trees:
            workers.append(Worker(name, tree, run, args, scratch))
            stack.callback(workers[-1].process.wait)  # its memory is free for the next run
            stack.enter_context(ended(workers[-1].process.pid))
            stack.callback(workers[-1].end)
        for worker in workers:
            if not worker.ready(args.boot_seconds):
                raise ValueError(f"{worker.name} did not boot; see {run}-{worker.name}.log")
        for c in args.levels:
            rates: dict[str, list[float]] = {worker.name: [] for worker in workers}
            for worker in workers:
                worker.rate(c, seed=0)  # kernels of this size are compiled at their first use
            for number in range(args.rounds):
                for worker in workers if number % 2 == 0 else reversed(workers):
                    rates[worker.name].append(worker.rate(c, seed=1 + number))
            found.append(summary(run, c, *rates.values()))
            with (args.out / "lines.jsonl").open("a") as lines:
                lines.write(json.dumps(asdict(found[-1]) | {"rates": rates}) + "\n")
            sys.stdout.write(
                f"{run} c={c}: {found[-1].ratio:.3f} [{found[-1].low:.3f}, {found[-1].high:.3f}]\n"
            )
            sys.stdout.flush()
    return found


def main() -> int:
    """Compare run by run; write the table."""
    args = arguments()
    if args.worker:
        work(json.loads(args.worker))
        return 0
    trees = [tuple(tree.split("=", 1)) for tree in args.tree]
    if len(trees) != 2 or args.out is None:
        sys.stderr.write("give --tree NAME=FOLDER twice, and --out\n")
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    found, failed = [], 0
    from pair.models import write_models

    with engines_end_on_sigterm(), tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        for run in args.runs:
            try:
                found += compare(run, trees, args, Path(folder))
            except ValueError as error:
                if stopped():
                    break  # a killed engine is no outcome
                failed += 1
                sys.stdout.write(f"{run}: FAILED: {error}\n")
    slower = [one for one in found if one.high < args.least]
    rows = [
        f"| {one.run} | {one.c} | {one.first:,.0f} | {one.second:,.0f} | {one.ratio:.3f} "
        f"| {one.low:.3f} to {one.high:.3f} |"
        for one in found
    ]
    head = (
        f"| run | c | {trees[0][0]}, tok/s | {trees[1][0]}, tok/s | ratio | 95 % |\n|---|---|---|---|---|---|"
    )
    (args.out / "table.md").write_text("\n".join([head, *rows, ""]))
    sys.stdout.write(
        f"{head}\n" + "\n".join(rows) + f"\n{len(found)} compared, {len(slower)} slower, {failed} failed\n"
    )
    return 1 if slower or failed or not found else 0


if __name__ == "__main__":
    sys.exit(main())
