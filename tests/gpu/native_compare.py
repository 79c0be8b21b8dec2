#!/usr/bin/env python3
"""Compare natively compiled kernels with upstream's on one GPU: outputs, start without PTX, throughput.

Needs a GPU, torch and two installed trees of one vLLM release, the first with upstream's binaries and the
second with those of ``sparkwright wheel --kernels native --arch 9.0a``, in which FlashAttention 2 needs a
carry of its own; downloads nothing::

    python3 tests/gpu/native_compare.py --tree upstream=/opt/stock --tree native=/opt/native --out /tmp/native

Both read a 16-bit cache by FlashAttention 2 (``--flash-attention``), which upstream's wheel has as PTX for a
Hopper card and the native one compiled. The parts, each engine in a process of its own:

- ``start``: each tree starts with an empty cache of the driver's, and again with the one that it left: the
  seconds to the first token and to the last of all answers (prompts and further tokens are computed by
  different units of FlashAttention 2), and the bytes that the driver compiled. Upstream's must be more than
  none, or nothing was shown; the native tree's must be none.
- ``outputs``: greedy tokens of both and their log probabilities: the same up to near ties, near each other.
- ``rates``: `compare_rates.py` on the two trees, alone on the card. The driver's cache is the one that the
  first tree left in ``--caches``, if ``start`` ran with the same folder before.

``--together`` starts both trees at once: their times are then comparable with each other alone. ``OUT``
receives ``report.json``, ``start.md``, the folder ``rates`` and each engine's log. The exit status is 0 when
every check passed and no rate is lower, 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pair.install import Check
from pair.sessions import ended, engines_end_on_sigterm, session

HERE = Path(__file__).resolve().parent
PARTS = ("start", "outputs", "rates")
ROUNDS = ("cold", "warm")
REQUESTS, OUTPUT_TOKENS = 16, 48
NEAR = 0.05  # nats; two compilers round sums differently, and made-up weights have many near ties
BEST = 5  # log probabilities of a place that are kept
CACHE_BYTES = 4 << 30
"""Size of the driver's cache: what does not fit in its own limit would be compiled again."""
Answers = dict[str, list[Any]]
KERNEL = re.compile(rb"\.text\.(_Z\w+)")


@dataclass(frozen=True)
class Start:
    """One start of *tree*, and what the driver has compiled by its end.

    Attributes:
        tree: the tree's name.
        round: whether the driver's cache was empty, ``cold``, or the one that a start left, ``warm``.
        boot_s: seconds to boot.
        first_s: seconds from the start of booting to the first token.
        all_s: the same to the last token of all requests.
        files: files in the driver's cache.
        bytes: their bytes.
        kernels: names in them, as far as they are stored uncompressed.
        attention: versions of FlashAttention that the layers have.
    """

    tree: str
    round: str
    boot_s: float
    first_s: float
    all_s: float
    files: int
    bytes: int
    kernels: tuple[str, ...] = ()
    attention: tuple[int, ...] = ()


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER", help="given twice")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--runner", choices=("v1", "v2"), default="v2")
    parser.add_argument("--flash-attention", type=int, default=2, help="its version")
    parser.add_argument("--seconds", type=int, default=420, help="for one engine")
    parser.add_argument("--caches", type=Path, help="folder for the driver's caches; OUT by default")
    parser.add_argument("--together", action="store_true", help="start both trees at once")
    parser.add_argument("--levels", nargs="+", default=["1", "8", "64"], help="of compare_rates.py")
    parser.add_argument("--rounds", default="6", help="of compare_rates.py")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    return parser.parse_args()


def options(version: int) -> dict[str, Any]:
    """Return the arguments of every engine: FlashAttention of *version*."""
    return {"attention_backend": "FLASH_ATTN", "attention_config": {"flash_attn_version": version}}


def compiled(cache: Path) -> tuple[int, int]:
    """Return how many files the driver's cache of compiled PTX has, and their bytes."""
    files = [file for file in cache.rglob("*") if file.is_file()]
    return len(files), sum(file.stat().st_size for file in files)


def kernels(cache: Path) -> tuple[str, ...]:
    """Return the mangled names of the kernels in the driver's cache; none where it is compressed."""
    found = {
        name for file in cache.rglob("*") if file.is_file() for name in KERNEL.findall(file.read_bytes())
    }
    return tuple(sorted(name.decode("ascii") for name in found))


def attention_versions(layers: dict[str, Any]) -> list[int]:
    """Return the versions of FlashAttention that the engine's *layers* have."""
    found = (
        getattr(getattr(layer, "impl", None), "vllm_flash_attn_version", None) for layer in layers.values()
    )
    return sorted({version for version in found if version is not None})


def engine(spec: dict[str, Any]) -> None:
    """Boot, answer one request, then all of them; write times, tokens and log probabilities."""
    import random

    from pair.arguments import pair_arguments
    from pair.models import VOCABULARY
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    began = time.monotonic()
    found = pair_arguments(spec)
    del found["speculative_config"]
    served = LLM(**found, max_num_seqs=REQUESTS)
    booted = time.monotonic()
    source = random.Random(1)
    prompts = [
        TokensPrompt(prompt_token_ids=[source.randrange(3, VOCABULARY - 1) for _ in range(40 + 90 * n)])
        for n in range(REQUESTS)
    ]

    def ask(count: int, tokens: int) -> list[Any]:
        wanted = SamplingParams(
            max_tokens=tokens, ignore_eos=True, temperature=0.0, logprobs=BEST, detokenize=False
        )
        return served.generate(prompts[:count], wanted, use_tqdm=False)

    ask(1, 1)
    first = time.monotonic()
    answers = [
        {
            "tokens": list(output.outputs[0].token_ids),
            "best": [
                {str(token): one.logprob for token, one in place.items()}
                for place in output.outputs[0].logprobs
            ],
        }
        for output in ask(REQUESTS, OUTPUT_TOKENS)
    ]
    layers = served.llm_engine.vllm_config.compilation_config.static_forward_context
    result = {
        "boot_s": round(booted - began, 2),
        "first_s": round(first - began, 2),
        "all_s": round(time.monotonic() - began, 2),
        "attention": attention_versions(layers),
        "answers": answers,
    }
    Path(spec["result"]).write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # the engine lives in this process; what it does on its way out is not in question


def caches(args: argparse.Namespace, name: str) -> Path:
    """Return the folder of the driver's cache for the tree called *name*."""
    return Path(args.caches or args.out) / f"driver-{name}"


def driver_cache(args: argparse.Namespace, name: str) -> dict[str, str]:
    """Return the variables that give a process the driver's cache of the tree called *name*."""
    return {"CUDA_CACHE_PATH": str(caches(args, name)), "CUDA_CACHE_MAXSIZE": str(CACHE_BYTES)}


def start(
    name: str, tree: str, round_: str, args: argparse.Namespace, scratch: Path
) -> tuple[Start, list[Any]]:
    """Run one engine to its end; return its start and its answers.

    Raises:
        ValueError: it wrote no result.
    """
    cache, result = caches(args, name), scratch / f"{name}-{round_}.json"
    if round_ == ROUNDS[0]:
        shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    spec = {
        "target": str(scratch / "target"),
        "drafter": str(scratch / "drafter"),
        "eager": True,
        "gpu_memory_utilization": 0.1,  # must be free; the cache has its own size below
        "engine": options(args.flash_attention),
        "result": str(result),
    }
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [tree, str(HERE), os.environ.get("PYTHONPATH", "")])),
        **driver_cache(args, name),
        "PAIR_CACHE_GIB": os.environ.get("PAIR_CACHE_GIB", "2"),  # both may boot at once, beside others
        "VLLM_USE_V2_MODEL_RUNNER": "1" if args.runner == "v2" else "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CACHE_ROOT": str(scratch / f"cache-{name}"),
        # Of its own, or the tree that starts later finds what Triton compiled for the earlier one.
        "TRITON_CACHE_DIR": str(scratch / f"triton-{name}"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    words, log = [sys.executable, __file__, "--engine", json.dumps(spec)], args.out / f"{name}-{round_}.log"
    with session(words, log, environment) as child, contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(args.seconds)
    files, size = compiled(cache)
    if not result.exists():
        raise ValueError(
            f"{name}, {round_}: no result within {args.seconds} s, {size} bytes compiled by the driver; "
            f"see {name}-{round_}.log"
        )
    said = json.loads(result.read_text(encoding="utf-8"))
    times = (said["boot_s"], said["first_s"], said["all_s"])
    begun = Start(name, round_, *times, files, size, kernels(cache), tuple(said["attention"]))
    return begun, said["answers"]


def attention_check(version: int, starts: list[Start]) -> Check:
    """Judge whether every start was served by FlashAttention of *version*, and by nothing else."""
    other = [
        f"{one.tree}, {one.round}: {one.attention or 'none'}" for one in starts if one.attention != (version,)
    ]
    return Check(
        f"FlashAttention {version} served",
        bool(starts) and not other,
        "; ".join(other) or f"{len(starts)} starts",
    )


def start_checks(first: str, second: str, starts: list[Start]) -> list[Check]:
    """Judge what the driver compiled: something of the *first* tree's kernels, nothing of the *second*'s."""
    cold = {one.tree: one for one in starts if one.round == ROUNDS[0]}
    if set(cold) != {first, second}:
        return [Check("start", ok=False, detail=f"only {', '.join(sorted(cold)) or 'nothing'} started")]
    one, other = cold[first], cold[second]
    return [
        Check(
            f"the driver compiled kernels of {first}", one.bytes > 0, f"{one.files} files, {one.bytes} bytes"
        ),
        Check(
            f"the driver compiled none of {second}",
            other.bytes == 0,
            f"{other.files} files, {other.bytes} bytes {' '.join(other.kernels[:3])}".rstrip(),
        ),
    ]


def differences(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[str]:
    """Return what is not the same in two trees' answers beyond rounding, in words.

    Up to the first token that differs the log probabilities must be near each other, and there the two tokens
    must be nearly as likely: after it the texts are different ones.
    """
    found = []
    if len(one) != len(other) or not one:
        return [f"{len(one)} and {len(other)} answers"]
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if len(a["tokens"]) != len(b["tokens"]):
            found.append(f"request {number}: {len(a['tokens'])} and {len(b['tokens'])} tokens")
            continue
        for place, (token, twin) in enumerate(zip(a["tokens"], b["tokens"], strict=True)):
            here, there = a["best"][place], b["best"][place]
            nothing = float("-inf")
            apart = abs(here[str(token)] - there.get(str(token), nothing))
            if token != twin:
                apart = max(apart, here[str(token)] - here.get(str(twin), nothing))
            if not apart <= NEAR:
                found.append(f"request {number}, token {place}: {token} and {twin}, {apart:.3f} nats apart")
                break
            if token != twin:
                break
    return found


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> int:
    """Return how many answers have the same tokens."""
    return sum(a["tokens"] == b["tokens"] for a, b in zip(one, other, strict=False))


def rates(args: argparse.Namespace) -> Check:
    """Run `compare_rates.py` on the two trees."""
    command = [sys.executable, str(HERE / "compare_rates.py"), "--out", str(args.out / "rates")]
    command += [word for tree in args.tree for word in ("--tree", tree)]
    command += ["--runs", f"{args.runner}-graphs", "--levels", *args.levels, "--rounds", args.rounds]
    command += ["--boot-seconds", str(args.seconds), "--engine", json.dumps(options(args.flash_attention))]
    status = run(command, driver_cache(args, args.tree[0].split("=", 1)[0]))
    return Check("rates", status == 0, f"exit status {status}; see rates/table.md")


def run(command: list[str], variables: dict[str, str]) -> int:
    """Run a script that starts engines, which end with this one, with *variables*; return its exit status."""
    with engines_end_on_sigterm():
        child = subprocess.Popen(command, env=os.environ | variables, start_new_session=True)
        with ended(child.pid):
            return child.wait()


def table(starts: list[Start]) -> str:
    """Return the starts for people."""
    head = "| tree | driver's cache | boot, s | first token, s | all answers, s | kernels in the cache | MB |"
    rows = [
        f"| {one.tree} | {'empty' if one.round == ROUNDS[0] else 'left by the start before'} | {one.boot_s} "
        f"| {one.first_s} | {one.all_s} | {len(one.kernels)} | {one.bytes / 1e6:.1f} |"
        for one in starts
    ]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


def begin(trees: list[tuple[str, str]], args: argparse.Namespace) -> tuple[list[Check], list[Start], Answers]:
    """Start every tree in every round that is wanted; return failures, starts and each tree's answers.

    A tree that failed with an empty cache is not started again.
    """
    from pair.models import write_models

    starts: list[Start] = []
    answers: Answers = {}
    failures: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="native-") as folder, engines_end_on_sigterm():
        write_models(Path(folder))
        for round_ in ROUNDS if "start" in args.only else ROUNDS[:1]:
            healthy = [tree for tree in trees if round_ == ROUNDS[0] or tree[0] in answers]
            with ThreadPoolExecutor(len(trees) if args.together else 1) as pool:
                under_way = [pool.submit(start, *tree, round_, args, Path(folder)) for tree in healthy]
            for (name, _), one in zip(healthy, under_way, strict=True):
                try:
                    begun, answers[name] = one.result()
                    starts.append(begun)
                except ValueError as error:
                    failures.append(Check(f"{name}, {round_}", ok=False, detail=str(error)))
    return failures, starts, answers


def judge(trees: list[tuple[str, str]], args: argparse.Namespace) -> tuple[list[Check], list[Start]]:
    """Run what was asked for."""
    checks: list[Check] = []
    starts: list[Start] = []
    answers: Answers = {}
    if {"start", "outputs"} & set(args.only):
        checks, starts, answers = begin(trees, args)
        checks.append(attention_check(args.flash_attention, starts))
    names = [name for name, _ in trees]
    if "start" in args.only:
        checks += start_checks(names[0], names[1], starts)
    if "outputs" in args.only:
        pair = [answers.get(name, []) for name in names]
        found = differences(*pair)
        detail = "; ".join(found[:3]) or f"{same(*pair)} of {len(pair[0])} answers have the same tokens"
        checks.append(Check("outputs", not found, detail))
    if "rates" in args.only:
        checks.append(rates(args))
    return checks, starts


def main() -> int:
    """Compare, write the report, print the tally."""
    args = arguments()
    if args.engine:
        engine(json.loads(args.engine))
        return 0
    trees = [tuple(tree.split("=", 1)) for tree in args.tree]
    if len(trees) != 2 or any(len(one) != 2 for one in trees) or args.out is None:
        sys.stderr.write("give --tree NAME=FOLDER twice, and --out\n")
        return 2
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    checks, starts = judge([(name, folder) for name, folder in trees], args)
    (args.out / "start.md").write_text(table(starts) + "\n", encoding="utf-8")
    report = {"checks": [asdict(one) for one in checks], "starts": [asdict(one) for one in starts]}
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(table(starts) + "\n")
    for check in checks:
        sys.stdout.write(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}\n")
    failed = sum(not check.ok for check in checks)
    sys.stdout.write(f"{len(checks) - failed} passed, {failed} failed\n")
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
