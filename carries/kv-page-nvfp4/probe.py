"""Do NVFP4 layers keep what NVFP4 saves when they share memory with layers of another format?

Upstream's planning gets the layers of a model, groups them and lays out their memory; nothing is replaced
but the configuration around it. A page of NVFP4 is 9/16 byte for each value, so that no number of them fills
one of a 16-bit or fp8 layer.

The defect shows where full attention is NVFP4 and sliding windows, or a drafter's layers, are 16-bit: each
NVFP4 page is padded to the size of a 16-bit one and takes as much memory for a token. With the carry it takes
its own bytes, and the 16-bit pages an eighth more. Where Mamba layers stand in the way, it says so.

Controls: layers whose pages divide each other, layers of one size, models without NVFP4, and pages that no
backend can pad.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from probekit import expect
from vllm.v1.core.kv_cache_utils import (
    get_kv_cache_config_from_groups,
    get_kv_cache_groups,
    unify_kv_cache_spec_page_size,
)
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    SlidingWindowSpec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.config import VllmConfig

BLOCK, HEADS, HEAD_SIZE = 16, 4, 128


class Format(NamedTuple):
    """How a layer stores keys and values."""

    dtype: torch.dtype
    mode: KVQuantMode = KVQuantMode.NONE


BF16 = Format(torch.bfloat16)
FP8 = Format(torch.uint8, KVQuantMode.FP8_PER_TENSOR)
NVFP4 = Format(torch.uint8, KVQuantMode.NVFP4)


def full(stored: Format, heads: int = HEADS, head_size: int = HEAD_SIZE) -> FullAttentionSpec:
    """A full attention layer whose backend can read padded pages."""
    return FullAttentionSpec(
        block_size=BLOCK,
        num_kv_heads=heads,
        head_size=head_size,
        dtype=stored.dtype,
        kv_quant_mode=stored.mode,
        indexes_kv_by_block_stride=True,
    )


def windowed(stored: Format, heads: int = HEADS, head_size: int = HEAD_SIZE) -> SlidingWindowSpec:
    """A sliding-window layer whose backend can read padded pages."""
    return SlidingWindowSpec(
        block_size=BLOCK,
        num_kv_heads=heads,
        head_size=head_size,
        dtype=stored.dtype,
        kv_quant_mode=stored.mode,
        indexes_kv_by_block_stride=True,
        sliding_window=64,
    )


def mamba(page: int) -> MambaSpec:
    """A Mamba layer whose state fills a page of that many bytes."""
    return MambaSpec(block_size=BLOCK, shapes=((page // 4,),), dtypes=(torch.float32,))


def model(*layers: tuple[int, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """So many layers of each kind, by name."""
    specs = [spec for count, spec in layers for _ in range(count)]
    return {f"layers.{index}": spec for index, spec in enumerate(specs)}


def bytes_a_token(spec: KVCacheSpec) -> float:
    """What one layer's keys and values of a token take in memory."""
    return spec.page_size_bytes / spec.block_size


def check(what: str, layers: dict[str, KVCacheSpec], most: float, least: float = 0.0) -> None:
    """Memory for a token, compared with what its values take, has to lie between the two for every layer."""
    unified = unify_kv_cache_spec_page_size(dict(layers))
    if len({spec.page_size_bytes for spec in unified.values()}) != 1:
        raise ValueError(f"{what}: the pages have different sizes")
    for name, spec in unified.items():
        ratio = bytes_a_token(spec) / bytes_a_token(layers[name])
        expect(
            least <= ratio <= most,
            f"{what}: {name} takes {ratio:.2f} times the memory that its values need",
        )
        attention = cast("AttentionSpec", spec)
        expect(
            spec.block_size % BLOCK == 0 and (spec.block_size == BLOCK or attention.page_size_padded is None),
            f"{what}: {name} has blocks of {spec.block_size} tokens on padded pages",
        )


def check_plan(layers: dict[str, KVCacheSpec]) -> None:
    """What the engine makes of it: every tensor holds whole pages of all who share it."""
    config = cast("VllmConfig", SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None),
        kv_transfer_config=None,
        speculative_config=None,
    ))  # fmt: skip
    groups = get_kv_cache_groups(config, dict(layers))
    plan = get_kv_cache_config_from_groups(config, groups, available_memory=1 << 28)
    spec_of = {name: group.kv_cache_spec for group in plan.kv_cache_groups for name in group.layer_names}
    pages = {tensor.size // plan.num_blocks for tensor in plan.kv_cache_tensors}
    expect(
        set(spec_of) == set(layers) and pages == {spec.page_size_bytes for spec in spec_of.values()},
        f"tensors hold pages of {pages} bytes",
    )


MIXED = (
    ("16-bit windows", model((4, full(NVFP4)), (4, windowed(BF16)))),
    ("fp8 windows", model((4, full(NVFP4)), (4, windowed(FP8)))),
    ("five 16-bit windows for each NVFP4 layer", model((4, full(NVFP4)), (20, windowed(BF16)))),
    ("16-bit windows and a 16-bit drafter", model((4, full(NVFP4)), (4, windowed(BF16)), (2, full(BF16)))),
    ("16-bit windows with wider heads", model((4, full(NVFP4)), (4, windowed(BF16, 2, 256)))),
)
CONTROLS = (
    ("fp8 and 16-bit", model((4, full(FP8)), (4, windowed(BF16))), 1.0),
    ("fp8 and 16-bit with heads of two sizes", model((4, full(FP8, 3)), (4, windowed(BF16))), 8 / 3),
    ("NVFP4 in both", model((4, full(NVFP4)), (4, windowed(NVFP4))), 1.0),
    ("NVFP4 in both, twice the heads", model((4, full(NVFP4, 8)), (4, windowed(NVFP4))), 1.0),
)


def says(layers: dict[str, KVCacheSpec]) -> str:
    """What planning says against these layers."""
    try:
        unify_kv_cache_spec_page_size(dict(layers))
    except NotImplementedError as refusal:
        return str(refusal)
    except AssertionError:
        return ""
    raise ValueError("pages of sizes that cannot be one were unified")


def unpadded(layers: dict[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """The same layers with a backend that reads no padded pages."""
    specs: Iterable[tuple[str, KVCacheSpec]] = layers.items()
    return {
        name: replace(cast("AttentionSpec", spec), indexes_kv_by_block_stride=False) for name, spec in specs
    }


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    for what, layers, most in CONTROLS:
        check(f"control, {what}", layers, most)
        largest = max(spec.page_size_bytes for spec in layers.values())
        pages = {spec.page_size_bytes for spec in unify_kv_cache_spec_page_size(dict(layers)).values()}
        expect(pages == {largest}, f"control, {what}: pages of {pages} bytes instead of {largest}")
    expect("cannot be padded" in says(unpadded(MIXED[0][1])), "pages that cannot be padded are not refused")
    rigid = {name: spec for name, spec in MIXED[0][1].items() if spec.kv_quant_mode == NVFP4.mode}  # type: ignore[attr-defined]
    rigid |= unpadded({name: spec for name, spec in MIXED[0][1].items() if name not in rigid})
    check("16-bit layers that cannot be padded", rigid, 32 / 9)
    same = model((2, full(NVFP4)), (2, mamba(full(NVFP4).page_size_bytes)))
    check("Mamba pages of the same size", same, 1.0)
    small = full(BF16, 1, 96)  # three of its pages are two of the others', but a Mamba page stays as it is
    check("Mamba pages and a drafter with smaller ones", {**same, "layers.4": small}, 1.5)
    for what, layers in MIXED:
        check(f"NVFP4 beside {what}", layers, 1.13)
        check_plan(layers)
    for drafter in (full(FP8), full(BF16)):
        beside = model((2, full(FP8)), (4, mamba(full(FP8).page_size_bytes)), (1, drafter))
        if drafter == full(FP8):
            check("Mamba layers and a drafter like the target", beside, 1.0)
            continue
        said = says(beside)
        expect(
            "Mamba" in said and "KV cache dtype" in said,
            f"a drafter with larger pages beside Mamba layers is refused without a reason: {said!r}",
        )
    said = says(model((2, full(NVFP4)), (4, mamba(full(NVFP4).page_size_bytes)), (1, full(BF16))))
    expect(
        "Mamba" in said,
        f"a 16-bit drafter beside NVFP4 and Mamba layers is refused for another reason: {said!r}",
    )
