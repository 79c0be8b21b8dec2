"""Work of one step of attention: its thread blocks, what each executes, and the bytes that memory gives.

Instructions come from compiled code (`nvfp4.sass`), as `scripts/nvfp4_compile.py --out` writes them; the
shapes of a launch from the same report, and the number of segments from the tree's own function.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from nvfp4.floor import Work

__all__ = ["Step", "find", "value", "work"]

SHAPE = re.compile(r"(\w+)=(\w+)")
MAIN = "kernel_unified_attention"
WIDTH = {"nvfp4": 9 / 16, "fp8": 1.0, "auto": 2.0}  # bytes of a cached value
DRAFTS = {1: "decode", 4: "drafts of 4", 16: "drafts of 16"}


@dataclass(frozen=True)
class Step:
    """*requests* with *context* tokens and *queries* new ones each, over a *cache* with these heads."""

    requests: int
    context: int
    queries: int
    heads: int = 32
    kv_heads: int = 8
    size: int = 128
    cache: str = "nvfp4"

    def __str__(self) -> str:
        return (
            f"{DRAFTS[self.queries]}, {self.context // 1024}k x {self.requests}, "
            f"{self.heads}/{self.kv_heads} heads of {self.size}"
        )

    @property
    def length(self) -> int:
        """Return the tokens of a request after the step."""
        return self.context + self.queries

    def blocks(self, rows: int) -> int:
        """Return the thread blocks of one segment, of *rows* rows of queries each."""
        queries = rows // (self.heads // self.kv_heads)
        return self.requests * ceil(self.queries / queries) * self.kv_heads


def value(kernel: Mapping[str, Any], name: str) -> int:
    """Return one of the block shapes that a *kernel* of the report was compiled with.

    Raises:
        LookupError: it has no shape of that name.
    """
    values = dict(SHAPE.findall(kernel["constants"]))
    if name not in values:
        raise LookupError(f"{kernel['launch']} was compiled with no {name}: {kernel['constants']}")
    return int(values[name])


def find(kernels: Sequence[Mapping[str, Any]], arch: int, step: Step, *, split: bool) -> Mapping[str, Any]:
    """Return the report of the reader that *step* launches on *arch*.

    Raises:
        LookupError: it was not compiled.
    """
    label = f"{DRAFTS[step.queries]}{', split' if split else ''}, heads of {step.size}"
    for kernel in kernels:
        if (kernel["arch"], kernel["cache"], kernel["launch"], kernel["kernel"]) == (
            arch, step.cache, label, MAIN,
        ):  # fmt: skip
            return kernel
    raise LookupError(f"no kernel of sm_{arch} over {step.cache} was compiled for {label}")


def work(step: Step, kernel: Mapping[str, Any], segments: int) -> Work:
    """Return the work of *step* with the compiled *kernel*, its context in *segments*.

    Of memory the cache is counted once, and queries and outputs; what segments leave stays in the L2 cache.
    The loop is counted as often as the longest segment runs it.
    """
    tile, warps = value(kernel, "TILE_SIZE"), kernel["warps"]
    tiles = ceil(ceil(step.length / tile) / segments)
    instructions, counts = kernel["instructions"], Counter[str]()
    for pipe, number in instructions["outside"].items():
        counts[pipe] += number * warps
    for pipe, number in instructions["loop"].items():
        counts[pipe] += number * warps * tiles
    values = step.requests * step.length * step.kv_heads * step.size * 2
    rows = step.requests * step.queries * step.heads * step.size
    return Work(
        bytes=values * WIDTH[step.cache] + 2 * rows * 2,
        per_block=dict(counts),
        blocks=step.blocks(value(kernel, "BLOCK_M")) * segments,
        resident=kernel["resident"] // warps,
        shared={},
        kernels=2 if segments > 1 else 1,
    )
