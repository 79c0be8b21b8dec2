"""The pack kernel against `coder`, bit for bit, in memory that was poisoned before.

Every byte of the cache and of its guards is compared: those of the slots that were written with what the
reference coder makes of the keys and values, all others with the garbage that was there before. Only the
codes of groups with a value that is not a number mean nothing and are left out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from nvfp4 import coder
from nvfp4.record import Recorder
from nvfp4.rig import GUARD, Layer, Shape, prepare

__all__ = ["run"]

INFINITY = float("inf")
NAN = float("nan")
SIZES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


@dataclass(frozen=True)
class Case:
    """One launch: *tokens* rows, of which every eleventh has no slot."""

    shape: Shape
    dtype: torch.dtype
    tokens: int
    scales: tuple[float, float] = (1.0, 1.0)
    kind: str = "random"

    def __str__(self) -> str:
        scales = f"{self.scales[0]:g}, {self.scales[1]:g}"
        return f"{self.kind} {SIZES[self.dtype]}, {self.tokens} tokens, {self.shape}, scales {scales}"


def cases(device: str) -> list[Case]:
    """Return what is packed: each head size, block, layout and type, both kinds of data."""
    full = device != "cpu"
    tokens, heads = (4096, 8) if full else (29, 2)
    b, h, f = torch.bfloat16, torch.float16, torch.float32
    odd = (0.0371, 0.0059)  # as a checkpoint may have them: no powers of two

    def shape(head: int, block: int, layout: str, kv_heads: int = heads) -> Shape:
        return Shape(4 * kv_heads, kv_heads, head, block, layout)

    found = [
        Case(shape(128, 16, "NHD"), b, tokens),
        Case(shape(128, 16, "HND"), b, tokens, odd),
        Case(shape(64, 16, "HND"), b, tokens),
        Case(shape(96, 32, "NHD"), h, tokens, odd),
        Case(shape(256, 32, "HND"), f, tokens, odd),
        Case(shape(256, 16, "NHD", 1), b, tokens),
        Case(shape(512, 16, "NHD"), b, tokens),
        Case(shape(512, 32, "HND", 1), f, tokens, odd),
        Case(shape(80, 16, "NHD", 3), h, tokens, odd),
        Case(shape(128, 64, "HND", 5), b, tokens),
        Case(shape(128, 16, "NHD"), b, 1),
        Case(replace(shape(128, 48, "NHD"), padding=1024), b, tokens, odd),
        Case(replace(shape(64, 112, "HND"), padding=64), b, tokens),
        *(Case(shape(128, 16, layout), b, tokens, kind="bits") for layout in ("NHD", "HND")),
        Case(shape(64, 32, "NHD"), h, tokens, odd, "bits"),
        Case(shape(96, 16, "HND"), f, tokens, (1.0, 0.003), "bits"),
        *(
            Case(shape(128, 16, "NHD"), dtype, tokens, one, "edges")
            for dtype in (b, h, f)
            for one in ((1.0, 1.0), odd)
        ),
        *(Case(shape(64, 16, "HND"), dtype, tokens, kind="ties") for dtype in (b, f)),
    ]
    if full:  # a long prefill, and slots far into a large cache
        found.append(Case(shape(128, 16, "NHD"), b, 65536, odd))
    return found


def data(case: Case, source: torch.Generator, device: torch.device) -> torch.Tensor:
    """Queries, keys and values of one fused projection (tokens x heads x head size)."""
    heads = case.shape.q_heads + 2 * case.shape.kv_heads
    size = (case.tokens, heads, case.shape.head)
    if case.kind == "bits":  # any bit pattern: subnormals, infinities and not-a-numbers among them
        width = torch.int32 if case.dtype == torch.float32 else torch.int16
        info = torch.iinfo(width)
        bits = torch.randint(info.min, info.max, size, generator=source, device=device, dtype=width)
        return bits.view(case.dtype)
    if case.kind == "edges":
        return edges(size, case.dtype, source, device)
    if case.kind == "ties":
        return ties(size, source, device).to(case.dtype)
    spread = torch.exp(4 * torch.randn(size[0], size[1], 1, generator=source, device=device))
    return (spread * torch.randn(size, generator=source, device=device)).to(case.dtype)


def edges(
    size: tuple[int, int, int], dtype: torch.dtype, source: torch.Generator, device: torch.device
) -> torch.Tensor:
    """Return groups of special values, drawn at random: each group has a background and a few intruders."""
    tiny, largest = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    special = [0.0, -0.0, step, -step, tiny, 2.0**-12, 2.0**-10, 1 / 6, 0.25, 1.0, 6.0, 2687.0, 2688.0]
    special += [2689.0, -2688.0, 6e4, largest, -largest, INFINITY, -INFINITY, NAN]
    values = torch.tensor(special, dtype=torch.float32, device=device).to(dtype)
    groups = (size[0], size[1], size[2] // coder.GROUP)
    backgrounds = torch.randint(len(special) - 1, groups, generator=source, device=device)  # no NaN alone
    intruders = torch.randint(len(special), (*groups, coder.GROUP), generator=source, device=device)
    rare = torch.rand((*groups, coder.GROUP), generator=source, device=device) < 0.06
    return torch.where(rare, values[intruders], values[backgrounds][..., None]).flatten(-2)


def ties(size: tuple[int, int, int], source: torch.Generator, device: torch.device) -> torch.Tensor:
    """Return groups of values midway between two codes, with a scale midway between two scales.

    With a tensor's scale of 1 the largest value, 6 s, makes the scale: s, or, where s is midway between
    two of E4M3's values, the even one of them. All others are k/4 of it.
    """
    groups = (size[0], size[1], size[2] // coder.GROUP)
    quarters = torch.randint(-24, 25, (*groups, coder.GROUP), generator=source, device=device).float()
    quarters[..., 0] = 24.0
    sixteenths = torch.randint(16, 32, groups, generator=source, device=device)  # odd ones are midway
    power = torch.randint(-7, 6, groups, generator=source, device=device)
    scale = sixteenths.float() / 16 * torch.exp2(power.float())
    return (quarters / 4 * scale[..., None]).flatten(-2)


def pack(case: Case, seed: int, device: torch.device, record: Recorder) -> None:
    """Pack one case and compare all bytes."""
    source = torch.Generator(device=device).manual_seed(seed)
    shape = case.shape
    blocks = 2 * -(-case.tokens // shape.block) + 3
    layer = Layer("nvfp4", shape, blocks, device, dtype=case.dtype, scales=case.scales)
    before = torch.randint(0, 256, layer.raw.shape, generator=source, device=device, dtype=torch.uint8)
    layer.raw.view(torch.uint8).copy_(before)
    slots = torch.randperm(blocks * shape.block, generator=source, device=device)[: case.tokens].clone()
    slots[5::11] = -1
    fused = data(case, source, device)
    if device.type == "cpu" and case.dtype == torch.bfloat16:  # Triton's interpreter misreads subnormals
        fused = torch.where(fused.abs() < torch.finfo(case.dtype).tiny, fused * 0, fused)
    _, key, value = fused.split([shape.q_heads, shape.kv_heads, shape.kv_heads], dim=1)
    kept = fused.clone()
    layer.write(key, value, slots)
    wanted, ignored = before.clone(), []
    pages = wanted[GUARD:-GUARD].view(blocks, layer.page_bytes)
    for side, (tensor, scale) in enumerate(zip((key, value), case.scales, strict=True)):
        codes_at, _ = coder.write(pages, coder.encode(tensor, scale), slots, shape, side)
        ignored.append(codes_at)
    found = layer.raw.view(torch.uint8).clone()
    nowhere = torch.cat(ignored) + GUARD
    found[nowhere] = wanted[nowhere]
    different = (found != wanted).nonzero().flatten()
    detail = f"{len(wanted):,} bytes compared, {len(nowhere):,} of undefined codes left out"
    if len(different):
        detail += "; " + difference(different, found, wanted, layer)
    record.check(f"pack: {case}", not len(different), detail)
    same = torch.equal(fused.contiguous().view(torch.uint8), kept.contiguous().view(torch.uint8))
    record.check(f"inputs untouched: {case}", same)


def difference(places: torch.Tensor, found: torch.Tensor, wanted: torch.Tensor, layer: Layer) -> str:
    """Say where and how bytes differ."""
    first = [
        f"offset {int(place) - GUARD} is {int(found[place]):#04x}, not {int(wanted[place]):#04x}"
        for place in places[:3]
    ]
    inside = (places >= GUARD) & (places < GUARD + layer.blocks * layer.page_bytes)
    guards = int((~inside).sum())
    return f"{len(places):,} bytes differ ({guards} in guards): {'; '.join(first)}"


def views(shape: Shape, device: torch.device, record: Recorder) -> None:
    """vLLM's four views of a cache cover each of its bytes once, and are where the layout says."""
    from vllm.utils.torch_utils import nvfp4_kv_cache_split_views

    layer = Layer("nvfp4", shape, 3, device)
    layer.raw.zero_()
    codes, scales = nvfp4_kv_cache_split_views(layer.cache)
    for view in (*codes, *(some.view(torch.uint8) for some in scales)):
        view.add_(1)
    covered = bool((layer.bytes == 1).all()) and not layer.raw[:GUARD].any() and not layer.raw[-GUARD:].any()
    placed = True
    for side in (0, 1):
        where = coder.places(shape, side)
        for view, offsets in ((codes[side], where.codes), (scales[side].view(torch.uint8), where.scales)):
            layer.raw.zero_()
            view.copy_(torch.arange(view.numel(), device=device).reshape(view.shape).to(torch.uint8))
            placed &= torch.equal(layer.bytes[:, offsets.to(device)], view)
    record.check(f"views disjoint and complete: {shape}", covered)
    record.check(f"views where the layout says: {shape}", placed)


def page_bytes(record: Recorder, device: torch.device) -> None:
    """Check that a page takes 9/32 of a 16-bit one and 9/16 of FP8's, at every head size."""
    for head in (64, 96, 128, 256, 512):
        sizes = {
            name: Layer(name, Shape(8, 2, head), 1, device).page_bytes for name in ("auto", "fp8", "nvfp4")
        }
        ok = 32 * sizes["nvfp4"] == 9 * sizes["auto"] and 16 * sizes["nvfp4"] == 9 * sizes["fp8"]
        record.check(f"page of head size {head}", ok, str(sizes))


def coder_itself(record: Recorder) -> None:
    """Compare the reference with published facts: golden bytes, and torch's own E4M3."""
    golden = torch.tensor(
        [0.0, -0.0, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 6.0, -6.0, 0.25, 0.75, 1.25, 2.5, 3.5, 5.0]
    )
    packed = coder.encode(golden, 1.0)
    record.check(
        "golden codes",
        packed.codes.tolist() == [0x80, 0xA1, 0x43, 0x6D, 0xF7, 0x20, 0x42, 0x66],
        packed.codes.numpy().tobytes().hex(),
    )
    record.check("golden scale", packed.scales.tolist() == [0x38], str(packed.scales.tolist()))
    every = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    record.check("values of E4M3", every.tolist() == list(coder.SCALES))
    x = torch.exp(3 * torch.randn(100_000)).clamp(max=448)
    same = torch.equal(coder.nearest(x, coder.SCALES), x.to(torch.float8_e4m3fn).view(torch.uint8).long())
    record.check("rounding to E4M3 as torch rounds", same)


def run(spec: dict[str, Any], record: Recorder) -> None:
    """All cases."""
    device = torch.device(spec["device"])
    prepare(spec["device"])
    began = time.monotonic()
    record.write("fact", name="seed", value=spec["seed"])
    record.case("coder", lambda: coder_itself(record))
    record.case("page sizes", lambda: page_bytes(record, device))
    for head, block, layout in (
        (64, 16, "NHD"),
        (96, 32, "HND"),
        (128, 16, "HND"),
        (256, 32, "NHD"),
        (512, 16, "HND"),
    ):
        shape = Shape(6, 3, head, block, layout)
        record.case(f"views: {shape}", lambda shape=shape: views(shape, device, record))
    for index, case in enumerate(cases(spec["device"])):
        if spec["cases"] not in str(case):
            continue
        record.case(
            str(case), lambda case=case, index=index: pack(case, spec["seed"] + index, device, record)
        )
    record.write("fact", name="seconds", value=round(time.monotonic() - began, 1))
