"""FlashInfer's reading of an NVFP4 KV cache beside that of the Triton backend, timed in turn in one process.

Both caches hold the same tokens in the layout that vLLM gives each: vLLM 0.33 lays a page out as K codes,
K scales, V codes, V scales, and lets FlashInfer's fa2 kernels read it on families 80, 90 and 120. On
capabilities 12.0 and 12.1 FlashInfer 0.7.2 plans NVFP4 without splitting a request's cache over thread
blocks; ``unsplit`` is that plan on this card. XQA, which vLLM 0.33 takes for decode on family 120 alone, has
no NVFP4 kernel for other cards and is not measured.

FlashInfer must be importable, and compiles its kernels when they are first used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nvfp4.record import Recorder
from nvfp4.rig import GUARD, Batch, Layer, Shape, prepare, slots_of
from nvfp4.speed import NEAR, PATTERN, Case, distance
from nvfp4.timing import Clock

__all__ = ["PROCESSES", "run"]

SHAPES = {
    "128": Shape(32, 8, 128, 16),  # Qwen3-8B's and Llama-3-8B's
    "256": Shape(24, 4, 256, 16),  # full attention of Qwen3.6-27B
}
CONTEXTS = (4096, 32768)
BATCHES = (1, 8, 64)
DRAFTS = (4, 8, 16)
PREFILL = 1024
PROCESSES = tuple(SHAPES)
WORKSPACE = 512 << 20


@dataclass
class PagedCache:
    """FlashInfer's cache of *blocks* pages, as vLLM 0.33 lays it out (NHD).

    Attributes:
        codes: K and V, blocks x slots x heads x head / 2, uint8.
        scales: K and V, blocks x slots x heads x head / 16, E4M3.
    """

    shape: Shape
    blocks: int

    def __post_init__(self) -> None:
        """Allocate the pages and take the four views."""
        shape = self.shape
        slots = shape.block * shape.kv_heads
        codes, scales = shape.head // 2, shape.head // 16
        side = slots * (codes + scales)
        self.raw = torch.zeros(self.blocks, 2 * side, dtype=torch.uint8, device="cuda")

        def view(offset: int, width: int) -> torch.Tensor:
            size = (self.blocks, shape.block, shape.kv_heads, width)
            stride = (2 * side, shape.kv_heads * width, width, 1)
            return self.raw.as_strided(size, stride, offset)

        self.codes = (view(0, codes), view(side, codes))
        parts = (view(slots * codes, scales), view(side + slots * codes, scales))
        self.scales = tuple(part.view(torch.float8_e4m3fn) for part in parts)
        self.scale = torch.ones((), device="cuda")

    def write(self, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Quantise keys and values (tokens x heads x values) into their slots, by FlashInfer's kernel."""
        from flashinfer.page import nvfp4_quantize_append_paged_kv_cache_with_slot_mapping as append

        append(key, value, slots, self.codes, self.scales, self.scale, self.scale, kv_layout="NHD")


def fill(layers: dict[str, Layer], pages: PagedCache, seed: int) -> None:
    """Write `PATTERN` blocks of the same random tokens into every cache, and repeat them."""
    shape, blocks = pages.shape, pages.blocks
    count = min(PATTERN, blocks)
    tokens = count * shape.block
    source = torch.Generator(device="cuda").manual_seed(seed)
    size = (tokens, shape.kv_heads, shape.head)
    key, value = (torch.randn(size, generator=source, device="cuda").bfloat16() for _ in range(2))
    slots = slots_of(torch.arange(count, device="cuda"), shape.block, 0, tokens)
    pages.write(key, value, slots)
    raws = [pages.raw]
    for layer in layers.values():
        layer.write(key, value, slots)
        raws.append(layer.raw[GUARD:-GUARD].view(layer.blocks, layer.page_bytes))
    for raw in raws:
        for begin in range(count, blocks, count):
            raw[begin : begin + count] = raw[: min(count, blocks - begin)]


def planned(
    case: Case, table: torch.Tensor, pages: PagedCache, workspace: torch.Tensor, *, split: bool
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return FlashInfer's reading of *case*: a function of queries (tokens x heads x values) and output.

    Decode takes the decode wrapper on tensor cores, drafts and prefill the prefill wrapper, as in vLLM 0.33.
    """
    import flashinfer

    shape = pages.shape
    need = -(-(case.context + case.queries) // shape.block)
    last = (case.context + case.queries - 1) % shape.block + 1
    starts = torch.arange(case.batch + 1, dtype=torch.int32) * need
    indices = table[:, :need].reshape(-1).contiguous()
    ends = torch.full((case.batch,), last, dtype=torch.int32)
    common: dict[str, Any] = {
        "num_qo_heads": shape.q_heads, "num_kv_heads": shape.kv_heads, "page_size": shape.block,
        "sm_scale": shape.head**-0.5, "q_data_type": torch.bfloat16, "kv_data_type": torch.uint8,
        "o_data_type": torch.bfloat16, "disable_split_kv": not split,
    }  # fmt: skip
    if case.queries == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=True, backend="fa2"
        )
        wrapper.plan(starts, indices, ends, head_dim=shape.head, **common)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
        rows = torch.arange(case.batch + 1, dtype=torch.int32) * case.queries
        wrapper.plan(rows, starts, indices, ends, head_dim_qk=shape.head, causal=True, **common)

    def read(query: torch.Tensor, output: torch.Tensor) -> None:
        wrapper.run(
            query, pages.codes, q_scale=1.0, k_scale=1.0, v_scale=1.0, out=output, kv_cache_sf=pages.scales
        )

    return read


def compare(case: Case, layers: dict[str, Layer], pages: PagedCache, clock: Clock, record: Recorder) -> None:
    """Time one case over the 16-bit cache, ours and FlashInfer's, and check that all are near."""
    shape = pages.shape
    source = torch.Generator(device="cuda").manual_seed(case.context + case.batch)
    need = -(-(case.context + case.queries) // shape.block)
    order = torch.randperm(pages.blocks, generator=source, device="cuda")[: case.batch * need]
    table = torch.zeros(case.batch, -(-need // 8) * 8, dtype=torch.int32, device="cuda")
    table[:, :need] = order.view(case.batch, need)
    size = (case.batch * case.queries, shape.q_heads, shape.head)
    query = torch.randn(size, generator=source, device="cuda").bfloat16()
    batch = Batch((case.context,) * case.batch, (case.queries,) * case.batch)
    reads: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {}
    for name, layer in layers.items():
        metadata = layer.metadata(batch, table)
        reads[name] = lambda q, out, layer=layer, metadata=metadata: layer.attend(q, metadata, out)
    for name, split in (("flashinfer", True), ("unsplit", False)):
        workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device="cuda")
        reads[name] = planned(case, table, pages, workspace, split=split)
    outputs = {name: torch.zeros_like(query) for name in reads}
    runs = {
        name: clock.graph(lambda read=read, output=outputs[name]: read(query, output))
        for name, read in reads.items()
    }
    for output in outputs.values():
        output.zero_()
    taken = clock.times(runs, rounds=21, seconds=1.5)
    ours = taken["nvfp4"].median
    for name, times in taken.items():
        record.write(
            "flashinfer",
            case=str(case), shape=str(shape), context=case.context, batch=case.batch, queries=case.queries,
            cache=name, us=[times.median, times.low, times.high], to_ours=round(times.median / ours, 3),
        )  # fmt: skip
    for name, output in outputs.items():
        away = distance(output, outputs["auto"])
        record.check(f"near to 16 bits: {case}, {name}, {shape}", away <= NEAR, f"{away:.3f} of its RMS")


def cases() -> list[Case]:
    """Return the cases, those that use the least memory first."""
    found = [Case(context, batch) for context in CONTEXTS for batch in BATCHES]
    found += [
        Case(context, batch, queries) for context in CONTEXTS for batch in BATCHES for queries in DRAFTS
    ]
    found += [Case(context, 1, PREFILL) for context in CONTEXTS]
    return sorted(found, key=lambda case: case.tokens)


def run(spec: dict[str, Any], record: Recorder) -> None:
    """Compare every case of one shape that fits in memory and time."""
    prepare(spec["device"])
    if spec["device"] == "cpu":
        record.write("fact", name="flashinfer", value="needs a card")
        return
    import flashinfer

    record.write("fact", name="flashinfer", value=flashinfer.__version__)
    record.write("fact", name="device", value=torch.cuda.get_device_name())
    until, clock = time.monotonic() + spec["seconds"], Clock()
    shape = SHAPES[spec["process"]]
    some = [case for case in cases() if spec["cases"] in str(case)]
    blocks = max(case.batch * -(-(case.context + case.queries) // shape.block) for case in some) + 64
    names = ("auto", "nvfp4")
    layers = {name: Layer(name, shape, blocks, torch.device("cuda")) for name in names}
    pages = PagedCache(shape, blocks)
    fill(layers, pages, spec["seed"])
    for case in some:
        if time.monotonic() > until:
            record.write("fact", name=f"left out: {case}", value="time is up")
        else:
            record.case(f"{case}, {shape}", lambda case=case: compare(case, layers, pages, clock, record))
