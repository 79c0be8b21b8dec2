"""Contexts that are split over thread blocks: the sums of their parts, in Triton's interpreter.

Every case is read with a given number of segments. Faults are planted in a copy of the tree's modules, one at
a time, and the same cases have to find them. Imported once the tree under test is known to have the reader.
"""

from __future__ import annotations

import importlib.util
import tempfile
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import torch
from attending import Shape, attention_error, fill, limit, read
from pages import ROWS
from vllm.v1.attention.backends import triton_attn
from vllm.v1.attention.ops import triton_nvfp4_kv as kv
from vllm.v1.attention.ops import triton_unified_attention as reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

# Segments, and what is read with them. Tiles have 32 tokens here.
MIXED = Shape(heads=8, queries=(16, 1, 7), lengths=(150, 97, 33))
CASES = (
    (
        2,
        Shape(queries=(16, 2), lengths=(33, 65)),
    ),  # one token in the last tile, which most queries do not see
    (2, Shape(queries=(16, 16), lengths=(33, 48), cold=True)),
    (3, Shape(head_size=96, queries=(1, 1), lengths=(100, 40))),  # of padded heads
    (1, Shape(head_size=96, queries=(16, 2), lengths=(33, 65))),
    (3, MIXED),
    (5, MIXED),  # as many as there are tiles
    (64, MIXED),  # more than there are tiles
    (7, Shape(queries=(4, 16), lengths=(150, 130), window=8)),  # all but one or two are empty
    (3, Shape(queries=(4, 4), lengths=(150, 37), window=8, causal=False)),
    (3, Shape(queries=(3, 16), lengths=(100, 70), causal=False, layout="HND")),
    (4, Shape(queries=(32, 5), lengths=(100, 130), sinks=True, softcap=5.0)),
    (4, Shape(queries=(1, 1), lengths=(100, 130), sinks=True, window=20)),
    (3, Shape(head_size=96, queries=(5, 9), lengths=(70, 40), alibi=True, block_size=32, layout="HND")),
    (3, Shape(head_size=256, heads=2, kv_heads=2, queries=(4, 1), lengths=(70, 40))),
    (3, Shape(head_size=512, heads=2, kv_heads=1, queries=(4, 1), lengths=(70, 40), dtype=torch.float16)),
    (3, Shape(head_size=256, heads=2, kv_heads=2, queries=(1, 1), lengths=(70, 40), dtype=torch.float16)),
    (1, Shape(head_size=128, heads=8, kv_heads=1, queries=(1, 1), lengths=(70, 40), window=20)),
)
# A graph that was captured with a token a request, and is replayed with other queries, as model runner V2 of
# 0.24.0 does with `cudagraph_mode` FULL: no grid may rest on the longest query.
REPLAYED = tuple((n, Shape(heads=8, queries=(9, 1, 6), lengths=(40, 33, 21), longest=1)) for n in (1, 3))
FOR_FAULTS = (*CASES[:4], REPLAYED[0])
# Read as on a Hopper card, in blocks of 128 rows of which 96 are queries.
TALL = tuple(
    (n, Shape(head_size=256, heads=6, kv_heads=1, queries=(16,), lengths=(40,), dtype=torch.float16))
    for n in (1, 2)
)


class Fault(NamedTuple):
    """One line of *module*, and what it is planted as; functions of the module's copy replace *names*."""

    module: ModuleType
    line: str
    planted: str


BATCHES = (
    (1, 1),
    (1, 16),
    (3, 5),
    (8, 16),
    (64, 1),
    (64, 16),
    (1, 4000),
    (300, 1),
)  # requests, queries of each
MANY = 4000
SHORT, LONG = 256, 300  # windows: what is not split, and what is
TILES_OF_LONG = 11  # that such a window can touch
# Multiprocessors and the family of a card; heads of Q and of K, and their size; queries, a window; and by
# requests the segments. Those of Hopper were the fastest, or nearly, of all from 1 to 64 on an H100.
CHOSEN: tuple[tuple[tuple[int, int], tuple[int, int, int], int, int, dict[int, int]], ...] = (
    ((132, 90), (24, 4, 256), 1, 0, {1: 64, 8: 12, 32: 3, 64: 3, 96: 2}),
    ((132, 90), (24, 4, 256), 4, 0, {8: 4, 64: 2}),
    ((132, 90), (64, 8, 64), 1, 0, {1: 64, 8: 10, 32: 5}),
    ((132, 90), (64, 8, 64), 16, 0, {1: 24, 8: 3, 64: 1}),
    ((132, 90), (64, 8, 64), 1, 128, {1: 1, 64: 1}),
    ((132, 90), (32, 8, 128), 1, 0, {1: 64, 8: 8, 64: 2}),
    ((132, 90), (32, 16, 256), 1, 1024, {8: 4, 64: 2}),
    ((132, 90), (32, 4, 512), 1, 0, {8: 8, 64: 2}),
    ((48, 120), (24, 4, 256), 1, 0, {1: 24, 8: 3, 64: 1}),
    ((48, 120), (64, 8, 64), 1, 0, {8: 5}),
    ((48, 120), (64, 8, 64), 4, 0, {4: 6}),
)

GRID = """        BLOCK_Q = BLOCK_M // num_queries_per_kv
        total_num_q_blocks = q.shape[0] // BLOCK_Q + num_seqs"""
EDGE = "loop_hi = tl.minimum(loop_lo + tiles_per_segment, loop_hi)"
FAULTS = (
    Fault(kv, "output = tl.sum(output * factor[:, None], axis=0)", "output = tl.sum(output, axis=0)"),
    Fault(kv, "total = tl.sum(expsum * factor)", "total = tl.sum(expsum)"),
    # Upstream's own step leaves a row that saw no key -inf from 0.33.0 on, and made it 0 before.
    *(() if ROWS else (Fault(kv, 'M = tl.where(L > 0.0, M, float("-inf"))', "M += 0.0"),)),
    Fault(reader, EDGE, EDGE.replace("tiles_per_segment", "tiles_per_segment - 1")),
    Fault(reader, EDGE, EDGE.replace("tiles_per_segment", "tiles_per_segment + 1")),
    Fault(
        reader,
        "tiles_per_segment = cdiv_fn(loop_hi - loop_lo, tl.num_programs(2))",
        "tiles_per_segment = (loop_hi - loop_lo) // tl.num_programs(2)",
    ),
    Fault(
        reader,
        "query_abs_pos = context_len + query_pos[:, None]",
        "query_abs_pos = context_len + query_pos[:, None] + 1",
    ),
    Fault(reader, GRID, GRID.replace("q.shape[0] // BLOCK_Q +", "triton.cdiv(max_seqlen_q, BLOCK_Q) *")),
    # Columns of Q, and of outputs with and without a split, in an order that is not that of a tile by halves.
    Fault(reader, "Q = nvfp4_halved(Q)", "Q = nvfp4_interleaved(Q)"),
    Fault(reader, "acc = nvfp4_interleaved(acc)", "acc += 0.0"),
    Fault(kv, "acc = nvfp4_interleaved(acc)", "acc += 0.0"),
    # Launches that were slower, or not measured.
    Fault(kv, "return split or block_m > 16 or", "return block_m > 0 or"),
    Fault(kv, "return head_size_padded == 256 and", "return head_size_padded > 128 and"),
    # Maxima and sums of the builder's heads alone.
    Fault(kv, "output.numel() // GROUP_SIZE)", "output.numel() // head_size)"),
)
# Heads of a builder, as a target's are, and of a layer, as its drafter's are.
LARGER = ((512, 256), (512, 128), (256, 128), (256, 64))
# Heads, rows of a block, split; and whether tiles are read by halves.
BY_HALVES = (
    ((128, 16, False), True),
    ((128, 64, False), True),
    ((96, 16, True), True),
    ((256, 16, True), True),
    ((256, 32, False), True),
    ((256, 16, False), False),
    ((512, 16, False), False),
)
# The card, heads, their type, queries, by six heads each; rows of a block, warps and stages.
BLOCKS = (
    ((90, 256, torch.bfloat16, 16), (128, 8, 3)),
    ((90, 192, torch.float16, 8), (64, 4, 5)),
    ((90, 256, torch.bfloat16, 4), (32, 8, 5)),
    ((90, 256, torch.bfloat16, 1), (16, 4, 5)),
    ((90, 256, torch.float32, 16), (16, 4, 3)),
    ((90, 512, torch.bfloat16, 16), (32, 8, 5)),
    ((90, 128, torch.bfloat16, 16), (64, 4, 5)),
    ((120, 256, torch.bfloat16, 16), (32, 8, 5)),
)
USED = {
    kv: (
        (reader, "reduce_nvfp4_segments"),
        (reader, "store_nvfp4_segment"),
        (reader, "nvfp4_by_halves"),
        (reader, "nvfp4_launch_config"),
        (triton_attn, "nvfp4_segment_buffers"),
    ),
    reader: ((triton_attn, "unified_attention"),),
}


@contextmanager
def segmented(segments: int, where: ModuleType = reader) -> Iterator[None]:
    """Have every context split into *segments*."""
    with mock.patch.object(where, "nvfp4_segments", return_value=segments):
        yield


def error(segments: int, shape: Shape, where: ModuleType = reader) -> float:
    """Distance of the output from attention in float64, in terms of its size."""
    with segmented(segments, where):
        return attention_error(shape._replace(segmented=True))


def wrong() -> list[str]:
    """Cases that are not read as attention in float64 gives them."""
    errors = {(segments, shape): error(segments, shape) for segments, shape in (*CASES, *REPLAYED)}
    with mock.patch.object(kv, "_on_hopper", return_value=True):
        errors |= {(segments, shape): error(segments, shape) for segments, shape in TALL}
    return [
        f"{n} segments, {shape}: error {e:.1e}" for (n, shape), e in errors.items() if not e < limit(shape)
    ]


def missed() -> list[str]:
    """Planted faults that no case finds."""
    found = []
    for fault in FAULTS:
        with planted(fault) as where:
            seen = odd_halves() or odd_blocks() or overrun()
            seen = seen or any(not error(n, shape, where) < limit(shape) for n, shape in FOR_FAULTS)
        if not seen:
            found.append(fault.planted)
    return found


def strayed() -> list[str]:
    """Outputs that differ between two runs, and rows of a graph's padding that were written.

    A captured graph has more tokens and requests than a replay: the last requests are empty then, and the
    last rows are no request's.
    """
    scene = fill(MIXED._replace(segmented=True))
    query = torch.randn(sum(MIXED.queries), MIXED.heads, MIXED.head_size)
    with segmented(3):
        first, second = read(scene, query), read(scene, query)
        padded = scene.shape._replace(queries=(*MIXED.queries, 0, 0), lengths=(*MIXED.lengths, 0, 0))
        scene.shape, scene.table = padded, torch.cat([scene.table, scene.table[:2]])
        longer = read(scene, torch.cat([query, query[:5]]))
    found = {
        "two runs differ": not first.equal(second),
        "empty requests change others": not longer[: len(query)].equal(first),
        "rows of no request are written": not longer[len(query) :].isnan().all(),
    }
    return [name for name, bad in found.items() if bad]


def odd() -> list[str]:
    """Numbers of segments, orders of columns, blocks and numbers of warps that are not those to be chosen."""
    import replay

    return (
        odd_numbers()
        + odd_choices()
        + odd_cache()
        + overrun()
        + odd_halves()
        + odd_blocks()
        + replay.odd_warps()
    )


def odd_numbers() -> list[str]:
    """Numbers of segments, for cards of 48 and 132 multiprocessors, that do not fit the buffers or the batch.

    The context of a few drafts has to be split, that of many queries must not be.
    """
    found = []
    for size, dtype in (
        (64, torch.bfloat16),
        (128, torch.bfloat16),
        (256, torch.float32),
        (512, torch.float16),
    ):
        for units in (48, 132):
            with mock.patch.object(kv, "current_platform", _Card(units)):
                output, maxima, sums = kv.nvfp4_segment_buffers(32, size, dtype, torch.device("meta"))
            rows = output.numel() // size
            if not rows <= maxima.numel() == sums.numel():
                found.append(f"buffers of {rows}, {maxima.numel()} and {sums.numel()} rows")
            for requests, queries in BATCHES:
                blocks, taken = requests * -(-queries // 4) * 8, requests * queries * 32
                whole, short, windowed = (
                    kv.nvfp4_segments(rows, taken, blocks, 16, size, dtype, window)
                    for window in (0, SHORT, LONG)
                )
                room = min(max(1, rows // taken), kv.MAX_SEGMENTS)
                least = 2 if blocks <= units and room > 1 else 1
                most = room if queries < MANY else 1
                if not least <= whole <= most or short != 1 or windowed > TILES_OF_LONG:
                    batch = f"{requests} x {queries}, heads of {size}, {units} multiprocessors"
                    found.append(f"{whole}, {short} and {windowed} in a window, for {batch}")
    return found


def odd_choices() -> list[str]:
    """Batches that are split otherwise than as it was fastest, or as a card's multiprocessors hold blocks."""
    found = []
    for (units, family), (heads, kv_heads, size), queries, window, wanted in CHOSEN:
        with mock.patch.object(kv, "current_platform", _Card(units, family)):
            buffers = kv.nvfp4_segment_buffers(heads, size, torch.bfloat16, torch.device("meta"))
            for requests, segments in wanted.items():
                ratio = heads // kv_heads
                rows, *_ = kv.nvfp4_launch_config(
                    size, torch.bfloat16, ratio, queries, 16, has_window=window > 0
                )
                blocks = requests * -(-queries // (rows // ratio)) * kv_heads
                taken = requests * queries * heads
                kv.nvfp4_segments.cache_clear()
                chosen = kv.nvfp4_segments(
                    buffers[0].numel() // size, taken, blocks, rows, size, torch.bfloat16, window
                )
                if chosen != segments:
                    batch = f"{requests} x {queries}, {heads}/{kv_heads} heads of {size}, window {window}"
                    found.append(f"{chosen} for {segments}: {batch}, {units} multiprocessors")
    return found


def odd_cache() -> list[str]:
    """A batch of no tokens that is split, numbers that are kept for ever or not at all, and sums that vary.

    Host memory is the card's where both share it, and batches have ever new shapes.
    """
    found = []
    if kv.nvfp4_segments(1024, 0, 0, 16, 128, torch.bfloat16, 0) != 1:
        found.append("a batch of no tokens is split")
    for taken in (*range(1, 5000), 1, 2):
        kv.nvfp4_segments(1024, taken, 1 + taken // 8, 16, 128, torch.bfloat16, 0)
    seen = kv.nvfp4_segments.cache_info()
    if seen.currsize >= 5000:
        found.append(f"numbers of {seen.currsize} shapes are kept")
    for taken in range(4990, 5000):
        kv.nvfp4_segments(1024, taken, 1 + taken // 8, 16, 128, torch.bfloat16, 0)
    if kv.nvfp4_segments.cache_info().hits < seen.hits + 10:
        found.append("numbers of shapes that come again are computed again")
    scene = fill(MIXED._replace(segmented=True))
    query = torch.randn(sum(MIXED.queries), MIXED.heads, MIXED.head_size)
    with mock.patch.object(reader, "is_batch_invariant", new=True), segmented(3):
        invariant = read(scene, query)
    with segmented(1):
        whole = read(scene, query)
    if not invariant.equal(whole):
        found.append("a context is split where sums must not depend on the batch")
    return found


def overrun() -> list[str]:
    """Batches of a layer that take more than the buffers of a builder for larger heads has."""
    found, buffers = [], triton_attn.nvfp4_segment_buffers
    for (builder, size), (units, family) in product(LARGER, ((48, 120), (132, 90))):
        card = _Card(units, family)
        with (
            mock.patch.dict(buffers.__globals__, current_platform=card),
            mock.patch.object(kv, "current_platform", card),
        ):
            output, maxima, _ = buffers(8, builder, torch.bfloat16, torch.device("meta"))
            for requests, queries in (*BATCHES, (8, 125)):
                rows = kv.nvfp4_launch_config(size, torch.bfloat16, 2, queries, 16, has_window=False)[0]
                taken = requests * queries * 8
                blocks = requests * -(-queries * 2 // rows) * 4
                kv.nvfp4_segments.cache_clear()
                segments = kv.nvfp4_segments(
                    output.numel() // size, taken, blocks, rows, size, torch.bfloat16, 0
                )
                if segments > 1 and (
                    taken * segments > maxima.numel() or taken * segments * size > output.numel()
                ):
                    found.append(f"{requests} x {queries}, heads of {size} in buffers for {builder}")
    return found


def odd_halves() -> list[str]:
    """Launches that read tiles by halves where it was measured to be slower, or do not where it is faster."""
    chosen = reader.nvfp4_by_halves
    return [f"{launch}: not {wanted}" for launch, wanted in BY_HALVES if chosen(*launch) != wanted]


def odd_blocks() -> list[str]:
    """Blocks of other rows, warps or stages than those that were timed."""
    chosen, found = reader.nvfp4_launch_config, []
    for (family, size, dtype, queries), wanted in BLOCKS:
        with mock.patch.dict(chosen.__globals__, current_platform=_Card(132, family)):
            rows, _, options = chosen(size, dtype, 6, queries, 16, has_window=False)
        if (rows, options["num_warps"], options["num_stages"]) != wanted:
            found.append(f"{rows} rows, {options} for {queries} queries with heads of {size} on {family}")
    return found


class _Card:
    """Stand in for vLLM's platform: a CUDA card of *units* multiprocessors; *family* 90 is Hopper."""

    def __init__(self, units: int, family: int = 120) -> None:
        self.units, self.family = units, family

    def is_cuda(self) -> bool:
        return True

    def is_device_capability_family(self, family: int) -> bool:
        return family == self.family

    def num_compute_units(self) -> int:
        return self.units


@contextmanager
def planted(fault: Fault) -> Iterator[ModuleType]:
    """Read with a copy of the module that has the fault; yields the module that chooses the segments.

    Raises:
        RuntimeError: the tree does not have the line once.
    """
    source = Path(str(fault.module.__file__)).read_text(encoding="utf-8")
    if source.count(fault.line) != 1:
        raise RuntimeError(f"{fault.line!r} is not one line of {fault.module.__name__}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "planted.py")
        file.write_text(source.replace(fault.line, fault.planted), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("planted", file)
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{file} is no module")
        copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
        patches = [mock.patch.object(user, name, getattr(copy, name)) for user, name in USED[fault.module]]
        for patch in patches:
            patch.start()
        try:
            yield copy if fault.module is reader else reader
        finally:
            for patch in patches:
                patch.stop()
