#!/usr/bin/env python3
"""Check and time contexts that are split over thread blocks, over an NVFP4 cache, on one GPU.

Of vLLM only three files of the patched tree are run, ``vllm/v1/attention/ops/triton_*.py``; what they import
of the rest has stand-ins here. No wheel, no model, no network::

    python3 tests/gpu/nvfp4_split.py --tree TREE --part check
    python3 tests/gpu/nvfp4_split.py --tree TREE --part speed --fa2 _vllm_fa2_C.abi3.so --out OUT
    compute-sanitizer --tool racecheck python3 tests/gpu/nvfp4_split.py --tree TREE --part sanitize

Parts: ``check`` compares with attention in float64 over the decoded cache. ``sanitize`` reads small cases
once for compute-sanitizer; with ``--planted`` the buffers are too small, and it fails unless memcheck ends a
kernel. ``compile`` fills Triton's cache of
kernels for ``speed``, so that several processes can share that work (``--share I/N``). ``fa2`` has the
driver compile FlashAttention 2's PTX. ``speed`` times by turns, as graphs, L2 flushed before each: split,
unsplit, and over 16 bits upstream's Triton kernel and FlashAttention 2 of its wheel; with ``--only`` those of
`timed` and `FURTHER` that a regular expression is found in, such as ``"heads of 512"``.
"""

from __future__ import annotations

import argparse
import enum
import json
import logging
import os
import re
import sys
import types
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from nvfp4.rig import say
from nvfp4.timing import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK = 16
CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
LIMIT = 4e-3  # RMS of the error in terms of the output's, bfloat16
FA2_HEADS = (128, 256)  # the sizes that it is timed with: the driver compiles each for minutes
SCALES = (0.37, 0.02)  # the layer's, of K and of V
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"  # set: an allocation for each tensor


class KVQuantMode(enum.IntEnum):
    """vLLM's numbers of two of its modes."""

    NONE = 0
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    NVFP4 = 4

    @property
    def is_nvfp4(self) -> bool:
        """Return whether the cache is packed."""
        return self == KVQuantMode.NVFP4


class Platform:
    """The part of vLLM's platform that the kernels ask for."""

    def __init__(self) -> None:
        self.capability = torch.cuda.get_device_capability()

    def is_cuda(self) -> bool:
        """Return true."""
        return True

    def fp8_dtype(self) -> torch.dtype:
        """Return E4M3."""
        return torch.float8_e4m3fn

    def is_device_capability_family(self, family: int) -> bool:
        """Return whether the card's major capability is that of *family*."""
        return self.capability[0] == family // 10

    def num_compute_units(self, device: int = 0) -> int:
        """Return the number of multiprocessors."""
        return torch.cuda.get_device_properties(device).multi_processor_count


def load(tree: Path) -> tuple[Any, Any]:
    """Import the reader of *tree* and its NVFP4 module, with stand-ins for the rest of vLLM."""
    import triton
    import triton.language as tl

    def module(name: str, **names: Any) -> None:
        made = types.ModuleType(name)
        vars(made).update(names)
        made.__path__ = [str(tree.joinpath(*name.split(".")))]
        sys.modules[name] = made

    module("vllm")
    module("vllm.envs", VLLM_BATCH_INVARIANT=False)
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]  # type: ignore[attr-defined]
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=Platform())
    module("vllm.triton_utils", tl=tl, triton=triton)
    module("vllm.utils")
    module("vllm.utils.torch_utils", nvfp4_kv_cache_full_dim=lambda head: head // 2 + head // 16)
    for name in ("vllm.v1", "vllm.v1.attention", "vllm.v1.attention.ops"):
        module(name)
    module("vllm.v1.kv_cache_interface", KVQuantMode=KVQuantMode)
    from vllm.v1.attention.ops import triton_nvfp4_kv as kv
    from vllm.v1.attention.ops import triton_unified_attention as reader

    return reader, kv


@dataclass(frozen=True)
class Case:
    """Requests with *lengths* tokens in all, the last *queries* of them new; one layer of heads."""

    queries: tuple[int, ...]
    lengths: tuple[int, ...]
    heads: int = 32
    kv_heads: int = 8
    size: int = 128
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    causal: bool = True
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        count, query, length = len(self.queries), max(self.queries), max(self.lengths)
        kind = "decode" if query == 1 else f"drafts of {query}"
        return f"{kind}, {length // 1024}k x {count}, {self.heads}/{self.kv_heads} heads of {self.size}"


class Layer:
    """A cache in NVFP4 and one in 16 bits with the same tokens, and the buffers of one layer."""

    def __init__(self, reader: Any, kv: Any, case: Case, blocks: int, *, plain: bool, seed: int) -> None:
        self.reader, self.kv, self.blocks = reader, kv, blocks
        shape = (blocks, 2, BLOCK, case.kv_heads)
        self.packed = torch.full(
            (*shape, case.size * 9 // 16), 0x7F, dtype=torch.uint8, device="cuda"
        )  # NaN as scales
        self.plain = torch.zeros(*shape, case.size, dtype=case.dtype, device="cuda") if plain else None
        self.scales = torch.tensor(SCALES, device="cuda")
        source = torch.Generator(device="cuda").manual_seed(seed)
        some = min(blocks, 256)
        size = (some * BLOCK, case.kv_heads, case.size)
        key, value = (torch.randn(size, generator=source, device="cuda").to(case.dtype) for _ in range(2))
        slots = torch.arange(some * BLOCK, device="cuda")
        kv.nvfp4_reshape_and_cache(key, value, self.packed, slots, *self.scales)
        for begin in range(some, blocks, some):
            self.packed[begin : begin + some] = self.packed[: min(some, blocks - begin)]
        if self.plain is not None:
            pages = torch.stack([key, value]).view(2, some, BLOCK, *size[1:]).transpose(0, 1)
            for begin in range(0, blocks, some):
                self.plain[begin : begin + some] = pages[: min(some, blocks - begin)]
        self.buffers = kv.nvfp4_segment_buffers(case.heads, case.size, case.dtype, torch.device("cuda"))
        self.sinks = torch.linspace(-1, 1, case.heads, device="cuda") if case.sinks else None

    def attend(
        self, case: Case, step: Step, output: torch.Tensor, *, nvfp4: bool = True, split: bool = True
    ) -> None:
        """Read *step* of *case* by vLLM's wrapper of the kernel."""
        if nvfp4:
            key, value = self.kv.nvfp4_code_views(self.packed)
        else:
            assert self.plain is not None
            key, value = self.plain.unbind(1)
        buffers = self.buffers if split else (None, None, None)
        few = 128 // case.kv_heads  # requests that upstream splits the decode of
        self.reader.unified_attention(
            step.query, key, value, output,
            cu_seqlens_q=step.starts, max_seqlen_q=max(case.queries),
            seqused_k=step.lengths, max_seqlen_k=max(case.lengths),
            softmax_scale=case.size**-0.5, causal=case.causal,
            window_size=(case.window - 1, 0 if case.causal else case.window - 1),
            block_table=step.table, softcap=case.softcap, q_descale=None,
            k_descale=self.scales[0], v_descale=self.scales[1],
            seq_threshold_3D=few, num_par_softmax_segments=16,
            softmax_segm_output=buffers[0], softmax_segm_max=buffers[1], softmax_segm_expsum=buffers[2],
            sinks=self.sinks, kv_quant_mode=KVQuantMode.NVFP4 if nvfp4 else KVQuantMode.NONE,
        )  # fmt: skip


class Step:
    """Queries, lengths and block table of one step."""

    def __init__(self, case: Case, blocks: int, seed: int, *, lengths: tuple[int, ...] | None = None) -> None:
        source = torch.Generator(device="cuda").manual_seed(seed)
        rows = sum(case.queries)
        query = torch.randn(rows, case.heads, case.size, generator=source, device="cuda")
        self.query = query.to(case.dtype)
        self.starts = torch.tensor([0, *case.queries], device="cuda").cumsum(0).int()
        self.lengths = torch.tensor(lengths or case.lengths, dtype=torch.int32, device="cuda")
        need = [-(-length // BLOCK) for length in case.lengths]
        width = -(-max(need) // 16) * 16
        order = torch.randperm(blocks, generator=source, device="cuda").int()
        self.table = torch.zeros(len(need), width, dtype=torch.int32, device="cuda")
        taken = 0
        for row, count in zip(self.table, need, strict=True):
            row[:count] = order[taken : taken + count]
            taken += count


def decoded(layer: Layer, case: Case, row: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values (tokens x heads x values, float64) of the request with the blocks *row*."""
    pages = layer.packed[row[: -(-length // BLOCK)].long()]
    codes_bytes = BLOCK * case.kv_heads * case.size // 2
    found = []
    table = torch.tensor([*CODES, *(-code for code in CODES)], dtype=torch.float64, device="cuda")
    for side in (0, 1):
        flat = pages[:, side].flatten(1)
        codes = flat[:, :codes_bytes].reshape(-1, case.kv_heads, case.size // 2)
        scales = flat[:, codes_bytes:].reshape(-1, case.kv_heads, case.size // 16)
        values = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], -1).flatten(-2)
        scale = scales.contiguous().view(torch.float8_e4m3fn).double().repeat_interleave(16, -1)
        found.append((values * scale * float(layer.scales[side]))[:length])
    return found[0], found[1]


def expected(layer: Layer, case: Case, step: Step) -> torch.Tensor:
    """Attention in float64 over the decoded cache."""
    parts = []
    group = case.heads // case.kv_heads
    for row, query, length in zip(step.table, step.query.split(case.queries), case.lengths, strict=True):
        key, value = (x.repeat_interleave(group, 1) for x in decoded(layer, case, row, length))
        scores = torch.einsum("qhd,khd->hqk", query.double(), key) * case.size**-0.5
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        at = torch.arange(length, device="cuda")
        distance = at[length - len(query) :][:, None] - at
        seen = distance >= 0 if case.causal else torch.ones_like(distance, dtype=torch.bool)
        if case.window:
            seen &= distance.abs() < case.window
        scores = scores.masked_fill(~seen, -torch.inf)
        if layer.sinks is not None:
            scores = torch.cat([scores, layer.sinks.double()[:, None, None].expand(-1, len(query), 1)], -1)
        parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], value))
    return torch.cat(parts)


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
)
SEGMENTS = (1, 2, 3, 7, 33, 64)


@contextmanager
def segmented(layer: Layer, segments: int | None) -> Iterator[None]:
    """Have contexts split into *segments*; None leaves the number to the code under test."""
    if segments is None:
        yield
        return
    big = [torch.full((1 << 16, *buffer.shape[1:]), torch.nan, device="cuda") for buffer in layer.buffers]
    with (
        mock.patch.object(layer.reader, "nvfp4_segments", return_value=segments),
        mock.patch.object(layer, "buffers", big),
    ):
        yield


def check(reader: Any, kv: Any, seed: int) -> int:
    """Compare every case, with every number of segments, with float64; returns the number of faults."""
    faults = total = 0
    for index, case in enumerate(CHECKED):
        blocks = sum(-(-length // BLOCK) for length in case.lengths) + 3
        layer = Layer(reader, kv, case, blocks, plain=False, seed=seed + index)
        step = Step(case, blocks, seed + index)
        wanted = expected(layer, case, step)
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
        blocks = sum(-(-length // BLOCK) for length in case.lengths) + 1
        layer = Layer(reader, kv, case, blocks, plain=False, seed=1)
        step = Step(case, blocks, 1)
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


FURTHER = (  # timed only where asked for
    *(Case((1,), (length + 1,)) for length in (65536, 131072)),
    *(Case((1,) * batch, (32769,) * batch) for batch in (2, 4)),
    *(
        Case((query,) * batch, (32768 + query,) * batch, heads=32, kv_heads=4, size=512)
        for query in (1, 16)
        for batch in (1, 8)
    ),
    Case((1024,), (33792,), heads=24, kv_heads=4, size=256),
    *(Case((query,) * 64, (4096 + query,) * 64, heads=32, kv_heads=4, size=512) for query in (1, 16)),
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
    outputs = {name: torch.zeros_like(step.query) for name in ("split", "unsplit", "16 bits", "FA2")}
    runs: dict[str, Callable[[], None]] = {
        "split": lambda: layer.attend(case, step, outputs["split"]),
        "unsplit": lambda: unsplit(layer, case, step, outputs["unsplit"]),
        "16 bits": lambda: layer.attend(case, step, outputs["16 bits"], nvfp4=False),
    }
    if library and case.size in FA2_HEADS:
        runs["FA2"] = lambda: fa2(layer, case, step, outputs["FA2"])
    return {name: (run, outputs[name]) for name, run in runs.items()}


def unsplit(layer: Layer, case: Case, step: Step, output: torch.Tensor) -> None:
    """Read as before contexts were split: decode of few requests in 16 segments, all else in one."""
    segments = 16 if max(case.queries) == 1 and len(case.queries) <= 128 // case.kv_heads else 1
    with mock.patch.object(layer.reader, "nvfp4_segments", return_value=segments):
        layer.attend(case, step, output)


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
        taken = clock.times(graphs, rounds=21, seconds=1.0)
        near = {name: away(output, runs["16 bits"][1]) for name, (_, output) in runs.items()}
        row = {name: [t.median, t.low, t.high] for name, t in taken.items()}
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
        blocks = sum(-(-length // BLOCK) for length in case.lengths) + 64
        layer = Layer(reader, kv, case, blocks, plain=True, seed=1)
        step = Step(case, blocks, 1, lengths=case.queries)
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
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.part == "sanitize":
        os.environ[UNCACHED] = "1"  # torch reads it when it first allocates
    reader, kv = load(args.tree)
    if args.fa2:
        torch.ops.load_library(str(args.fa2))
    if args.part == "check":
        return check(reader, kv, args.seed) > 0
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
