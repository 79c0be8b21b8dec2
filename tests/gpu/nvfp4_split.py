#!/usr/bin/env python3
"""Check and time contexts that are split over thread blocks, over an NVFP4 cache, on one GPU.

Of vLLM only three files of the patched tree, of 0.24 or 0.33, are run, ``vllm/v1/attention/ops/triton_*.py``;
what they import of the rest has stand-ins here. No wheel, no model, no network::

    python3 tests/gpu/nvfp4_split.py --tree TREE --part check
    python3 tests/gpu/nvfp4_split.py --tree TREE --part speed --fa2 _vllm_fa2_C.abi3.so --out OUT
    compute-sanitizer --tool racecheck python3 tests/gpu/nvfp4_split.py --tree TREE --part sanitize

Parts: ``check`` compares the cache's bytes with a coder's that looks values up, and what is read with
attention in float64 over the decoded cache. ``sanitize`` reads small cases once for compute-sanitizer; with
``--planted`` the buffers are too small, and it fails unless memcheck ends a kernel. ``compile`` fills
Triton's cache of kernels for ``speed``, so that several processes can share that work (``--share I/N``).
``fa2`` has the driver compile FlashAttention 2's PTX. ``speed`` times by turns, as graphs, L2 flushed before
each: NVFP4, and over 16 bits upstream's Triton kernel and FlashAttention 2 of its wheel; with
``--only`` those of `timed` and `FURTHER` that a regular expression is found in, such as
``"sinks|window|heads of 512"``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from collections.abc import Callable

from nvfp4.layer import BLOCK, Case, Layer, Step, expected, load, segmented, wrong_bytes
from nvfp4.timing import Clock
from serve_pair import say

LIMIT = 4e-3  # RMS of the error in terms of the output's, bfloat16
FA2_HEADS = (128, 256)  # the sizes that it is timed with: the driver compiles each for minutes
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"  # set: an allocation for each tensor


# Prompts of a drafter with heads of 128 beside a target's of 512, in whose buffers it splits them.
BESIDE = Case((125,) * 8, (125,) * 8, heads=8, kv_heads=4, builder=512)
MIXED = ((16, 1, 7, 3), (1500, 970, 33, 4096))
CHECKED = (
    Case(*MIXED),
    Case((16,), (4096,)),
    Case((1, 1), (4097, 65)),
    Case((4, 32), (2049, 129)),
    Case((16, 2), (65, 129)),  # one token in the last tile
    Case((16, 16), (20, 300)),  # shorter than the segments
    Case((4, 16), (1500, 1300), window=100),
    Case((16, 4), (1000, 370), window=100, causal=False),
    Case((3, 16), (1000, 700), causal=False),
    Case((32, 5), (1000, 1300), sinks=True, softcap=5.0),
    Case((1, 1), (1000, 1300), sinks=True, window=200),
    Case((5, 9, 1), (700, 400, 300), size=64, heads=64, kv_heads=8),
    Case((5, 9, 1), (700, 400, 300), size=96),
    Case((16, 1, 7), (1500, 970, 33), size=256, heads=24, kv_heads=4),
    Case((4, 16), (700, 400), size=512, heads=16, kv_heads=4),
    Case((5, 1), (700, 400), heads=14, kv_heads=2),  # seven queries a KV head
    Case((5, 1), (700, 400), heads=8, kv_heads=8),
    Case(*MIXED, dtype=torch.float16),
    Case((1, 1), (4097, 700), heads=14, kv_heads=2, sinks=True, softcap=5.0),  # by two warps in 64 segments
    Case((1, 1, 1), (2000, 97, 1), dtype=torch.float16),
    Case((5, 9), (700, 400), heads=8, kv_heads=2, dtype=torch.float32),
    Case((200, 16), (2000, 3000)),  # a chunk of a prefill beside drafts
    BESIDE,
)
SEGMENTS = (1, 2, 3, 7, 33, 64)


def check(reader: Any, kv: Any) -> int:
    """Compare every case, with every number of segments, with float64; returns the number of faults."""
    faults = total = 0
    for seed, case in enumerate(CHECKED, 1):
        layer = Layer(reader, kv, case, case.blocks + 3, plain=False, seed=seed)
        step = Step(case, case.blocks + 3, seed)
        wanted = expected(layer, case, step)
        if bad := wrong_bytes(layer):
            faults += 1
            say(f"FAIL {case}: {bad} bytes of the cache are not the coder's")
        limit = {torch.float16: 2e-3, torch.float32: 2e-3}.get(case.dtype, LIMIT)
        found = {}
        for segments in (None, *SEGMENTS):
            output = torch.full_like(step.query, torch.nan)
            again = torch.full_like(step.query, torch.nan)
            with segmented(layer, segments):
                layer.attend(case, step, output)
                layer.attend(case, step, again)
            error = float((output.double() - wanted).norm() / wanted.norm())
            found[segments] = error
            total += 1
            if not error < limit or not torch.equal(output, again):
                faults += 1
                say(f"FAIL {case}, {segments} segments: {error:.1e}, equal {torch.equal(output, again)}")
        say(
            f"{case}, {case.queries}, {case.lengths}: " + " ".join(f"{e:.1e}" for e in found.values()),
        )
    say(f"{total - faults} passed, {faults} failed")
    return faults


def ended(run: Callable[[], None]) -> bool:
    """Return whether *run* fails with an error of CUDA's, as it does once memcheck has ended a kernel."""
    try:
        run()
    except RuntimeError as error:
        if "CUDA" not in str(error):
            raise
        say(str(error))
        return True
    return False


def sanitize(reader: Any, kv: Any, segments: int, *, planted: bool) -> None:
    """Read small cases once, each tensor an allocation of its own; *planted* reads with buffers too small.

    Raises:
        RuntimeError: tensors lie in blocks of torch's allocator, which memcheck does not see the ends of.
    """
    for case in (
        Case((16, 1, 7), (300, 97, 33)),
        Case((4, 4), (150, 37), window=50, causal=False),
        Case((1, 1), (300, 65)),
    ):
        layer = Layer(reader, kv, case, case.blocks + 1, plain=False, seed=1)
        step = Step(case, case.blocks + 1, 1)
        output = torch.full_like(step.query, torch.nan)
        size = case.heads * sum(case.queries) * segments
        count = size - 1 if planted else size
        layer.buffers = tuple(torch.empty(count * width, device="cuda") for width in (case.size, 1, 1))
        if torch.cuda.memory_reserved():
            raise RuntimeError(f"{UNCACHED} was set too late: tensors share allocations")
        with mock.patch.object(reader, "nvfp4_segments", return_value=segments):
            layer.attend(case, step, output)
        torch.cuda.synchronize()
        say(f"{case.queries}, {case.lengths}: finite {bool(output.isfinite().all())}")
    if not planted:
        step = Step(BESIDE, BESIDE.blocks + 1, 1)
        layer = Layer(
            reader, kv, BESIDE, BESIDE.blocks + 1, plain=False, seed=1
        )  # with the tree's own buffers
        layer.attend(BESIDE, step, torch.empty_like(step.query))
        torch.cuda.synchronize()


def timed() -> list[Case]:
    """Return what is timed: one layer of Qwen3-8B's heads, and of Qwen3.6-27B's."""
    steps = [
        (query, context, batch) for query in (1, 16, 4) for context in (4096, 32768) for batch in (1, 8, 64)
    ]
    plain = [Case((q,) * batch, (context + q,) * batch) for q, context, batch in [*steps, (1024, 32768, 1)]]
    return plain + [
        Case((q,) * batch, (context + q,) * batch, heads=24, kv_heads=4, size=256)
        for q, context, batch in steps
    ]


GAPS: tuple[dict[str, Any], ...] = (
    {"heads": 64, "kv_heads": 8, "size": 64, "sinks": True},
    {"heads": 64, "kv_heads": 8, "size": 64, "sinks": True, "window": 128},
    {"heads": 32, "kv_heads": 16, "size": 256, "window": 1024},
)
FURTHER = (  # timed only where asked for
    *(
        Case((query,) * batch, (32768 + query,) * batch, heads=32, kv_heads=4, size=512)
        for query in (1, 16)
        for batch in (1, 8)
    ),
    Case((1024,), (33792,), heads=24, kv_heads=4, size=256),
    *(Case((query,) * 64, (4096 + query,) * 64, heads=32, kv_heads=4, size=512) for query in (1, 16)),
    # What FlashInfer cannot read: gpt-oss' full layers and windows, and those of Gemma 4.
    *(
        Case((query,) * batch, (32768 + query,) * batch, **layer)
        for layer in GAPS
        for query in (1, 16)
        for batch in (1, 8, 64)
    ),
)


def selected(only: str | None) -> list[Case]:
    """Return the cases of `timed`, or those of all whose names the regular expression *only* is found in.

    Raises:
        ValueError: it is found in none.
    """
    if only is None:
        return timed()
    found = [case for case in (*timed(), *FURTHER) if re.search(only, str(case))]
    if not found:
        raise ValueError(f"no case has {only!r} in its name")
    return found


def fa2(layer: Layer, case: Case, step: Step, output: torch.Tensor) -> None:
    """Read 16 bits by FlashAttention 2, as vLLM's FLASH_ATTN backend does."""
    assert layer.plain is not None
    key, value = layer.plain.unbind(1)
    no, whole = False, (-1, -1)
    torch.ops._vllm_fa2_C.varlen_fwd(
        step.query, key, value, output, step.starts, torch.zeros_like(step.starts), step.lengths, None,
        step.table, None, max(case.queries), max(case.lengths), 0.0, case.size**-0.5, no, case.causal,
        *whole, 0.0, no, 0, None,
    )  # fmt: skip


def runs_of(
    layer: Layer, case: Case, step: Step, *, library: bool
) -> dict[str, tuple[Callable[[], None], torch.Tensor]]:
    """Return each way to read *step*, and its output."""
    outputs = {name: torch.zeros_like(step.query) for name in ("split", "16 bits", "FA2")}
    runs: dict[str, Callable[[], None]] = {
        "split": lambda: layer.attend(case, step, outputs["split"]),
        "16 bits": lambda: layer.attend(case, step, outputs["16 bits"], nvfp4=False),
    }
    if library and case.size in FA2_HEADS and not case.window:
        runs["FA2"] = lambda: fa2(layer, case, step, outputs["FA2"])
    return {name: (run, outputs[name]) for name, run in runs.items()}


def speed(reader: Any, kv: Any, cases: list[Case], out: Path | None, *, library: bool) -> None:
    """Time every case by turns and print a row for each."""
    clock = Clock()
    most = max(cases, key=lambda case: sum(case.lengths))
    blocks = sum(-(-length // BLOCK) for length in most.lengths) + 64
    layers: dict[int, Layer] = {}
    for case in cases:
        if case.size not in layers:
            layers = {case.size: Layer(reader, kv, case, blocks, plain=True, seed=1)}
        layer = layers[case.size]
        step = Step(case, blocks, 2)
        runs = runs_of(layer, case, step, library=library)
        graphs = {name: clock.graph(run) for name, (run, _) in runs.items()}
        row = clock.times(graphs, rounds=21, seconds=1.0)
        near = {name: away(output, runs["16 bits"][1]) for name, (_, output) in runs.items()}
        say(
            f"{case}: " + ", ".join(f"{name} {value[0]}" for name, value in row.items()) + f"; away {near}",
        )
        if out is not None:
            with (out / "speed.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"case": str(case), "us": row, "away": near}) + "\n")


def away(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """RMS of the difference in terms of that of *wanted*."""
    return round(float((found.float() - wanted.float()).norm() / wanted.float().norm()), 4)


def share(cases: list[Case], text: str) -> list[Case]:
    """Return every N-th of *cases*, from I on, of ``I/N``."""
    first, count = map(int, text.split("/"))
    return cases[first::count]


def compile_only(reader: Any, kv: Any, cases: list[Case]) -> None:
    """Launch what `speed` launches, over short contexts."""
    for case in cases:
        case = replace(case, lengths=case.queries)  # noqa: PLW2901 - its shapes are those of the long one
        layer = Layer(reader, kv, case, case.blocks, plain=True, seed=1)
        step = Step(case, case.blocks, 1)
        for name, (run, _) in runs_of(layer, case, step, library=False).items():
            run()
            torch.cuda.synchronize()
            say(f"{case}, {name}")
        del layer


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True, help="the patched tree, or its three files")
    parser.add_argument("--part", required=True, choices=("check", "sanitize", "compile", "fa2", "speed"))
    parser.add_argument("--fa2", type=Path, help="_vllm_fa2_C.abi3.so of upstream's wheel")
    parser.add_argument("--out", type=Path, help="folder for speed.jsonl")
    parser.add_argument("--share", default="0/1", help="I/N: every N-th case from I on")
    parser.add_argument("--only", help="compile, speed: regular expression for the names of cases")
    parser.add_argument("--planted", action="store_true", help="sanitize: with buffers that are too small")
    parser.add_argument("--segments", type=int, default=7, help="sanitize: of every context")
    args = parser.parse_args()
    if args.part == "sanitize":
        os.environ[UNCACHED] = "1"  # torch reads it when it first allocates
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    reader, kv = load(args.tree)
    if args.fa2:
        torch.ops.load_library(str(args.fa2))
    if args.part == "check":
        return check(reader, kv) > 0
    if args.part == "sanitize":
        found = ended(partial(sanitize, reader, kv, args.segments, planted=args.planted))
        if found != args.planted:
            say("FAIL: buffers that are too small were not found" if args.planted else "FAIL: a kernel ended")
        return found != args.planted
    if args.part == "compile":
        compile_only(reader, kv, share(selected(args.only), args.share))
    elif args.part == "fa2":
        sizes = [Case((1,), (64,)), Case((1,), (64,), heads=24, kv_heads=4, size=256)]
        for case in share([replace(one, queries=(q,)) for one in sizes for q in (16, 1)], args.share):
            layer = Layer(reader, kv, case, 8, plain=True, seed=1)
            step = Step(case, 8, 1)
            fa2(layer, case, step, torch.zeros_like(step.query))
            torch.cuda.synchronize()
    else:
        speed(reader, kv, selected(args.only), args.out, library=args.fa2 is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
