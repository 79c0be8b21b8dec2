"""Decode, drafts, prefill and the pack kernel, timed over NVFP4, FP8 and 16-bit caches in one run.

All three caches hold the same tokens at once and are read in turn. Before each figure stands its floor: the
bytes of the KV cache that must be read at the bandwidth that a copy reached here, and the operations. FP8 is
read with FP8 queries, as vLLM serves it. A figure counts only if what the last replay wrote is what the step
wrote before it was timed, and near to what is read from the 16-bit cache.

Each context is timed in a process of its own: an illegal access ends that process alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from nvfp4.record import Recorder
from nvfp4.rig import GUARD, Batch, Layer, Shape, prepare, slots_of
from nvfp4.timing import Clock, Times, copy_bandwidth

__all__ = ["PROCESSES", "run"]

CACHES = ("auto", "fp8", "nvfp4")
SHAPE = Shape(32, 8, 128, 16)  # Qwen3-8B's, Llama-3-8B's
CONTEXTS = (4096, 32768, 16384, 131072)  # the goals' first, should time run out
BATCHES = (1, 8, 64)
PROCESSES = ("packing", *(str(context) for context in CONTEXTS))  # one after the other
NEAR = 0.5  # of the RMS of the 16-bit cache's output; outputs of other tokens are 1.4 away
PATTERN = 256  # blocks that are filled with real tokens and repeated over the cache
SPACE = 6 << 30  # bytes that are left free
TENSOR_FLOPS = 989e12  # H100's and H200's dense bf16, by NVIDIA's data sheet
UNPACK = 2.5  # instructions a value: ten for four codes, PTX as written
LANES = 132 * 128 * 1.98e9  # of 32-bit operations a second on the whole card


@dataclass(frozen=True)
class Case:
    """*batch* requests, each with *context* tokens in the cache and *queries* new ones."""

    context: int
    batch: int
    queries: int = 1

    def __str__(self) -> str:
        kind = {1: "decode", 4: "drafts of 4", 16: "drafts of 16"}.get(
            self.queries, f"prefill of {self.queries}"
        )
        return f"{kind}, {self.context // 1024}k x {self.batch}"

    @property
    def tokens(self) -> int:
        """Tokens in the cache, the new ones included."""
        return self.batch * (self.context + self.queries)


def cases(context: int) -> list[Case]:
    """Return what is timed with *context* tokens in the cache, smaller batches first."""
    found = [Case(context, batch) for batch in BATCHES]
    if context == 32768:
        found += [Case(context, 8, 4), Case(context, 8, 16), Case(context, 1, 1024)]
    return found


def room(free: int, some: list[Case]) -> int:
    """Return the tokens that all three caches hold in *free* bytes, at most those that *some* need."""
    values = 2 * SHAPE.kv_heads * SHAPE.head
    token = values * 2 + values + values * 9 // 16
    needed = max(case.tokens + 64 * SHAPE.block for case in some)
    return min(needed, (free - SPACE) // token)


def fill(layer: Layer, source: torch.Generator) -> None:
    """Write `PATTERN` blocks of random tokens through the backend, and repeat them over the cache."""
    count = min(PATTERN, layer.blocks)
    tokens = count * SHAPE.block
    size = (tokens, SHAPE.kv_heads, SHAPE.head)
    key, value = (torch.randn(size, generator=source, device="cuda").to(layer.dtype) for _ in range(2))
    layer.write(key, value, slots_of(torch.arange(count, device="cuda"), SHAPE.block, 0, tokens))
    pages = layer.raw[GUARD : GUARD + layer.blocks * layer.page_bytes].view(layer.blocks, layer.page_bytes)
    for begin in range(count, layer.blocks, count):
        pages[begin : begin + count] = pages[: min(count, layer.blocks - begin)]


def block_table(case: Case, blocks: int, source: torch.Generator) -> torch.Tensor:
    """Return each request's blocks, drawn at random from the whole cache, as wide as `rig.table`'s."""
    need = -(-(case.context + case.queries) // SHAPE.block)
    order = torch.randperm(blocks, generator=source, device="cuda")[: case.batch * need]
    rows = torch.zeros(case.batch, -(-need // 8) * 8, dtype=torch.int32, device="cuda")
    rows[:, :need] = order.view(case.batch, need)
    return rows


def floor(case: Case, cache: str, bandwidth: float) -> dict[str, float]:
    """Least microseconds, by bytes of the cache, by products on tensor cores, and by unpacking codes."""
    values = case.tokens * 2 * SHAPE.kv_heads * SHAPE.head
    width = {"auto": 2.0, "fp8": 1.0, "nvfp4": 9 / 16}[cache]
    flops = 4 * case.tokens * case.queries * SHAPE.q_heads * SHAPE.head
    found = {"bytes": values * width / bandwidth * 1e6, "products": flops / TENSOR_FLOPS * 1e6}
    if cache == "nvfp4":
        found["unpacking"] = values * UNPACK / LANES * 1e6
    return {name: round(value, 2) for name, value in found.items()}


def decode(case: Case, layers: dict[str, Layer], clock: Clock, bandwidth: float, record: Recorder) -> None:
    """Time one case over all caches, and compare their results."""
    source = torch.Generator(device="cuda").manual_seed(case.context + case.batch)
    batch = Batch((case.context,) * case.batch, (case.queries,) * case.batch)
    blocks = min(layer.blocks for layer in layers.values())
    pages = block_table(case, blocks, source)
    rows = case.batch * case.queries
    query = torch.randn(rows, SHAPE.q_heads, SHAPE.head, generator=source, device="cuda").to(torch.bfloat16)
    outputs, first, runs = {}, {}, {}
    for name, layer in layers.items():
        metadata, served = layer.metadata(batch, pages), layer.query_as_served(query)
        outputs[name] = torch.zeros_like(query)

        def step(layer=layer, metadata=metadata, served=served, output=outputs[name]) -> None:
            layer.attend(served, metadata, output)

        runs[name] = clock.graph(step)
        first[name] = outputs[name].clone()
        outputs[name].zero_()
    taken = clock.times(runs, rounds=21, seconds=1.5)
    for name, times in taken.items():
        least = floor(case, name, bandwidth)
        record.write(
            "speed",
            case=str(case),
            context=case.context,
            batch=case.batch,
            queries=case.queries,
            cache=name,
            us=[times.median, times.low, times.high],
            floor=least,
            of_floor=round(times.median / max(least.values()), 2),
            bandwidth=round(least["bytes"] / times.median, 3),
            to_16_bit=round(taken["auto"].median / times.median, 3),
        )
    for name, output in outputs.items():
        record.check(f"timed what was computed: {case}, {name}", torch.equal(output, first[name]))
        away = distance(output, outputs["auto"])
        record.check(f"near to 16 bits: {case}, {name}", away <= NEAR, f"{away:.3f} of its RMS")
    goals(case, taken, record)


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """RMS of the difference in terms of that of *wanted*; not a number where one has such a value."""
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def goals(case: Case, taken: dict[str, Times], record: Recorder) -> None:
    """Return the aims of the work."""
    ours = taken["nvfp4"].median
    if (case.context, case.queries) == (32768, 1) and case.batch == 8:
        detail = f"{ours:.1f} us, FP8 {taken['fp8'].median:.1f} us"
        record.goal("32k x 8 as fast as FP8", ours <= taken["fp8"].median, detail)
    if (case.context, case.queries) == (4096, 1):
        ratio = taken["auto"].median / ours
        record.goal(f"4k x {case.batch} at 0.9 of 16 bits", ratio >= 0.9, f"{ratio:.2f} of its speed")


def packing(clock: Clock, record: Recorder) -> None:
    """Time the pack kernel against a copy that reads and writes as many bytes, and against 16-bit stores."""
    for tokens in (64, 2048, 8192, 65536):
        layers = {
            name: Layer(name, SHAPE, -(-tokens // SHAPE.block) + 1, torch.device("cuda")) for name in CACHES
        }
        heads = SHAPE.q_heads + 2 * SHAPE.kv_heads
        fused = torch.randn(tokens, heads, SHAPE.head, device="cuda", dtype=torch.bfloat16)
        _, key, value = fused.split([SHAPE.q_heads, SHAPE.kv_heads, SHAPE.kv_heads], dim=1)
        slots = torch.randperm(tokens, device="cuda")
        read = 2 * tokens * SHAPE.kv_heads * SHAPE.head * 2
        moved = read + read * 9 // 32
        origin, target = (torch.empty(moved // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
        runs = {"copy": clock.graph(lambda target=target, origin=origin: target.copy_(origin))}
        for name, layer in layers.items():
            runs[name] = clock.graph(lambda layer=layer: layer.write(key, value, slots))  # noqa: B023 - run now
        taken = clock.times(runs, rounds=31, seconds=0.5)
        ratio = taken["nvfp4"].median / taken["copy"].median
        record.write(
            "pack",
            tokens=tokens,
            bytes=moved,
            us={name: [times.median, times.low, times.high] for name, times in taken.items()},
            to_copy=round(ratio, 2),
        )
        if tokens >= 8192:
            detail = f"{taken['nvfp4'].median:.1f} us, a copy {taken['copy'].median:.1f} us"
            record.goal(f"packing {tokens} tokens within 1.5 copies", ratio <= 1.5, detail)


def run(spec: dict[str, Any], record: Recorder) -> None:
    """Run one of `PROCESSES`: the pack kernel, or every case of one context that fits in memory and time."""
    prepare(spec["device"])
    if spec["device"] == "cpu":
        record.write("fact", name="speed", value="needs a card")
        return
    began, clock = time.monotonic(), Clock()
    bandwidth = copy_bandwidth(clock)
    if spec["process"] == "packing":
        nothing = clock.times({"nothing": clock.graph(lambda: torch.empty(1, device="cuda").zero_())}, 21, 1)
        record.write("fact", name="device", value=torch.cuda.get_device_name())
        record.write("fact", name="copy bandwidth, TB/s", value=round(bandwidth / 1e12, 3))
        record.write("fact", name="smallest graph, us", value=nothing["nothing"].median)
        record.case("packing", lambda: packing(clock, record))
    else:
        some = [case for case in cases(int(spec["process"])) if spec["cases"] in str(case)]
        reading(some, clock, bandwidth, began + spec["seconds"], spec["seed"], record)
    value = round(time.monotonic() - began, 1)
    record.write("fact", name=f"seconds of {spec['process']}", value=value)


def reading(
    some: list[Case], clock: Clock, bandwidth: float, until: float, seed: int, record: Recorder
) -> None:
    """Fill the caches and time *some* cases; none is begun after *until*, as `time.monotonic` counts."""
    for case in some:  # before anything is timed
        floors = {cache: floor(case, cache, bandwidth) for cache in CACHES}
        record.write("floor", case=str(case), us=floors)
    torch.cuda.empty_cache()
    tokens = room(torch.cuda.mem_get_info()[0], some) if some else 0
    layers = {}
    for name in CACHES if some else ():
        layers[name] = Layer(name, SHAPE, tokens // SHAPE.block, torch.device("cuda"))
        fill(layers[name], torch.Generator(device="cuda").manual_seed(seed))
    for case in some:
        if case.tokens + case.batch * SHAPE.block > tokens:
            record.write("fact", name=f"left out: {case}", value="does not fit beside the other caches")
        elif time.monotonic() > until:
            record.write("fact", name=f"left out: {case}", value="time is up")
        else:
            record.case(str(case), lambda case=case: decode(case, layers, clock, bandwidth, record))
