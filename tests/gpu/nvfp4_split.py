#!/usr/bin/env python3
"""Check contexts that are split over thread blocks, over an NVFP4 cache, on one GPU.

Of vLLM only three files of the patched tree, of 0.24 or 0.33, are run, ``vllm/v1/attention/ops/triton_*.py``;
what they import of the rest has stand-ins here. No wheel, no model, no network::

    python3 tests/gpu/nvfp4_split.py --tree TREE --part check
    compute-sanitizer --tool memcheck --report-api-errors no \
        python3 tests/gpu/nvfp4_split.py --tree TREE --part sanitize --segments 64

Parts: ``check`` compares the cache's bytes with a coder's that looks values up, and what is read with
attention in float64 over the decoded cache. ``sanitize`` reads small cases once for compute-sanitizer, which
reports errors of the API beside those of kernels: Triton's loader tries an attribute that the driver refuses,
and goes on. With ``--planted`` the buffers are too small, and it fails unless memcheck ends a kernel.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from collections.abc import Callable

from nvfp4.layer import Case, Layer, Step, expected, load, segmented, wrong_bytes
from serve_pair import say

LIMIT = 4e-3  # RMS of the error in terms of the output's, bfloat16
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
        layer = Layer(reader, kv, case, case.blocks + 3, seed=seed)
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
        layer = Layer(reader, kv, case, case.blocks + 1, seed=1)
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
        layer = Layer(reader, kv, BESIDE, BESIDE.blocks + 1, seed=1)  # with the tree's own buffers
        layer.attend(BESIDE, step, torch.empty_like(step.query))
        torch.cuda.synchronize()


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True, help="the patched tree, or its three files")
    parser.add_argument("--part", required=True, choices=("check", "sanitize"))
    parser.add_argument("--planted", action="store_true", help="sanitize: with buffers that are too small")
    parser.add_argument("--segments", type=int, default=7, help="sanitize: of every context")
    args = parser.parse_args()
    if args.part == "sanitize":
        os.environ[UNCACHED] = "1"  # torch reads it when it first allocates
    reader, kv = load(args.tree)
    if args.part == "check":
        return check(reader, kv) > 0
    found = ended(partial(sanitize, reader, kv, args.segments, planted=args.planted))
    if found != args.planted:
        say("FAIL: buffers that are too small were not found" if args.planted else "FAIL: a kernel ended")
    return found != args.planted


if __name__ == "__main__":
    sys.exit(main())
