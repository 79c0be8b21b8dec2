#!/usr/bin/env python3
"""Time other launches of the NVFP4 reader: rows, tokens of a tile, warps, stages, registers, segments.

What `nvfp4_launch_config` of a patched tree chooses is timed beside them, by turns, as graphs, L2 flushed
before each. A launch that does not compile, does not fit the card or gives another output is left out::

    python3 tests/gpu/nvfp4_launches.py --tree TREE --part compile --share 0/4 &    # fills Triton's cache
    python3 tests/gpu/nvfp4_launches.py --tree TREE --part time --out OUT/launches.jsonl --only "heads of 256"
    python3 tests/gpu/nvfp4_launches.py --tree TREE --part check --launch 16 64 4 4 96
    python3 tests/gpu/nvfp4_launches.py --tree TREE --part speed --launch 16 64 4 4 96 --fa2 FA2 --out OUT

``--only`` is a regular expression for the names of cases. ``check`` and ``speed`` are those of
`nvfp4_split.py` with ``--launch`` in place of what the tree chooses for blocks of as many rows, with heads up
to 128.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from collections.abc import Callable

from nvfp4.layer import BLOCK, Case, Layer, Step, load
from nvfp4.rig import say
from nvfp4.timing import Clock
from nvfp4_split import LIMIT, away, check, share, speed, timed

WIDE, DRAFTS = 256, 16  # heads of a model such as Qwen3.6-27B; the most queries of a request that are drafts


def case(queries: int, context: int, batch: int, size: int = 128) -> Case:
    """Return *batch* requests with *context* tokens and *queries* new ones each, with heads of *size*."""
    heads, kv_heads = {128: (32, 8), 256: (24, 4), 512: (32, 4)}[size]
    lengths = (context + queries,) * batch
    return Case((queries,) * batch, lengths, heads=heads, kv_heads=kv_heads, size=size)


BEST = ((32, 4, 5, 0), (64, 4, 3, 168))  # of decode with heads of 256, tried in other numbers of segments

# Where the reader is slow first.
CASES = [
    *(case(16, context, batch, 256) for context, batch in ((32768, 8), (4096, 64))),
    *(case(1, context, batch, 256) for context, batch in ((4096, 64), (32768, 64), (32768, 8), (32768, 1))),
    *(case(1, context, batch) for context, batch in ((32768, 1), (131072, 1), (32768, 2), (32768, 4))),
    case(16, 32768, 1, 256),
    case(1024, 32768, 1),
    *(case(query, 32768, 8, 512) for query in (1, 16)),
    *(case(1, context, batch) for context, batch in ((32768, 8), (4096, 1), (32768, 64))),
    *(case(16, 32768, batch) for batch in (1, 8)),
]
SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # instead of as many as the code chooses


class Launch(NamedTuple):
    """One launch.

    Attributes:
        rows: rows of queries in a block.
        tile: tokens of a tile.
        warps: warps of a block.
        stages: stages of the pipeline.
        registers: the most of a thread; 0 for as many as ptxas takes.
        segments: parts that a context is split into; 0 for as many as the code chooses.
        halves: whether tiles are read by halves; None for what the code chooses.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    registers: int
    segments: int = 0
    halves: bool | None = None

    @property
    def config(self) -> tuple[int, int, dict[str, int]]:
        """Return rows, tile and options of Triton, as `nvfp4_launch_config` does."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return self.rows, self.tile, options | ({"maxnreg": self.registers} if self.registers else {})


def launches(case: Case, room: int) -> list[Launch]:
    """Return the launches to be tried for *case*, in at most *room* segments: as many as the buffers hold."""
    queries, numbers = max(case.queries), [0, *(number for number in SEGMENTS if number <= room)]
    if case.size > WIDE:
        rows = (16,) if queries == 1 else (16, 32, 64)
        return [Launch(*one) for one in product(rows, (16, 32), (4, 8), (3, 5), (0,))]
    if case.size == WIDE and queries > 1:
        plain = [*product((32,), (32, 64), (8,), (3, 5)), *product((64, 128), (32, 64), (4, 8), (2, 3, 5))]
        return [Launch(*one, 0, 0, halves) for one in plain for halves in (False, True)]
    if case.size == WIDE:
        some = [Launch(16, *one) for one in product((32, 64), (2, 4, 8), (3, 5), (0, 168))]
        parts = [(number, half) for number in numbers for half in (False, True)]
        return some + [Launch(16, *one, *part) for part in parts for one in BEST]
    if queries > DRAFTS:
        return [Launch(*one, 0) for one in product((64, 128), (64, 128), (4, 8), (3, 5))]
    if queries > 1:
        return [Launch(*one) for one in product((32, 64), (32, 64, 128), (4, 8), (3, 5), (0, 168))]
    some = [
        *product((64,), (2, 4), (3, 5), (0, 128, 168)),
        *product((32,), (2, 4), (3, 5), (0,)),
        *product((128,), (4, 8), (3, 5), (0,)),
    ]
    parts = [Launch(16, 64, *one, number) for number in numbers[1:] for one in ((4, 5, 128), (2, 5, 0))]
    return [*(Launch(16, *one) for one in some), *parts]


class Bench:
    """One case: its layer, and the outputs of launches."""

    def __init__(self, reader: Any, kv: Any, case: Case, *, short: bool) -> None:
        blocks = sum(-(-length // BLOCK) for length in case.lengths) + 64
        self.reader, self.case = reader, case
        self.layer = Layer(reader, kv, case, blocks, plain=False, seed=1)
        self.step = Step(case, blocks, 2, lengths=case.queries if short else None)
        self.room = self.layer.room(case)
        self.right = torch.zeros_like(self.step.query)
        self.layer.attend(case, self.step, self.right)

    def run(self, launch: Launch | None) -> Callable[[], torch.Tensor]:
        """Return a function that reads the step by *launch*, or as the tree does."""
        output = torch.zeros_like(self.step.query)

        def plain() -> torch.Tensor:
            self.layer.attend(self.case, self.step, output)
            return output

        if launch is None:
            return plain

        def changed() -> torch.Tensor:
            chosen = {"nvfp4_launch_config": launch.config, "nvfp4_split_options": {}}
            chosen |= {"nvfp4_segments": launch.segments} if launch.segments else {}
            chosen |= {} if launch.halves is None else {"nvfp4_by_halves": launch.halves}
            with ExitStack() as stack:
                for name, value in chosen.items():
                    stack.enter_context(mock.patch.object(self.reader, name, return_value=value))
                return plain()

        return changed

    def works(self, launch: Launch) -> bool:
        """Return whether *launch* compiles, fits and gives the tree's output."""
        try:
            output = self.run(launch)()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - of Triton, ptxas or the driver: each means a launch less
            say(f"{self.case}: {launch}: {str(error).splitlines()[-1][:120]}")
            return False
        return away(output, self.right) < 2 * LIMIT


def measure(reader: Any, kv: Any, cases: list[Case], out: Path) -> None:
    """Time the launches of every case by turns; print the best, and write all to *out*."""
    clock = Clock()
    for case in cases:
        bench = Bench(reader, kv, case, short=False)
        good = [launch for launch in launches(case, bench.room) if bench.works(launch)]
        runs = {"tree": bench.run(None)} | {str(tuple(launch)): bench.run(launch) for launch in good}
        taken = clock.times({name: clock.graph(run) for name, run in runs.items()}, rounds=11, seconds=2.0)
        rows = sorted((time.median, time.low, time.high, name) for name, time in taken.items())
        say(f"{case}: tree {taken['tree'].median}; " + "; ".join(f"{row[0]} {row[3]}" for row in rows[:6]))
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"case": str(case), "us": {row[3]: row[:3] for row in rows}}) + "\n")
        del bench


def replaced(reader: Any, launch: Launch) -> None:
    """Have *reader* take *launch* where it would take another with as many rows, for heads up to 128."""
    own = reader.nvfp4_launch_config

    def chosen(head_size: int, *parts: Any, **named: Any) -> tuple[int, int, dict[str, int]]:
        config: tuple[int, int, dict[str, int]] = own(head_size, *parts, **named)
        return launch.config if config[0] == launch.rows and head_size <= 128 else config

    reader.nvfp4_launch_config = chosen


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True, help="the patched tree, or its three files")
    parser.add_argument("--part", required=True, choices=("compile", "time", "check", "speed"))
    parser.add_argument("--out", type=Path, help="time: file for the times; speed: folder for speed.jsonl")
    parser.add_argument(
        "--launch", type=int, nargs=5, help="rows, tile, warps, stages, registers (0: no limit)"
    )
    parser.add_argument("--fa2", type=Path, help="speed: _vllm_fa2_C.abi3.so of upstream's wheel")
    parser.add_argument("--only", default="", help="compile, time: regular expression for the names of cases")
    parser.add_argument("--share", default="0/1", help="compile I/N: every N-th launch from I on")
    args = parser.parse_args()
    cases = [one for one in CASES if re.search(args.only, str(one))]
    reader, kv = load(args.tree)
    if args.launch:
        replaced(reader, Launch(*args.launch))
    if args.fa2:
        torch.ops.load_library(str(args.fa2))
    if args.part == "check":
        return check(reader, kv, seed=1) > 0
    if args.part == "speed":
        speed(reader, kv, timed(), args.out, library=args.fa2 is not None)
        return 0
    if args.part == "time":
        measure(reader, kv, cases, args.out)
        return 0
    for case in cases:
        bench = Bench(reader, kv, case, short=True)
        for launch in share(launches(case, bench.room), args.share):
            bench.works(launch)
        del bench
    return 0


if __name__ == "__main__":
    sys.exit(main())
