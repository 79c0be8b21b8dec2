"""Do NVFP4 layers of 0.33.0 keep what NVFP4 saves when they share memory with layers of another format?

Upstream's planning gets the layers of a model, groups them and lays out their memory, and its allocator
makes the tensors; nothing is replaced but the configuration around them. A page of NVFP4 is 9/16 byte for
each value, so that no number of them fills one of a 16-bit or fp8 layer.

The defect shows where a drafter's sliding windows are 16-bit beside NVFP4 full attention: each NVFP4 page is
padded to the size of a 16-bit one and takes as much memory for a token. With the carry it takes its own
bytes, and the 16-bit pages an eighth more. What is planned is then written, block by block, and read back.

Controls: windows that upstream itself brings to the pages of NVFP4, as for `--kv-cache-dtype-skip-layers`;
hybrid models, whose states upstream pads to the largest page; layers whose pages divide each other; models
without NVFP4; layouts that need no pages of one size; and MLA, which cannot be padded.
"""

# ruff: noqa: SLF001 - the platform's alignment is private

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from unittest import mock

import torch
from probekit import expect
from vllm.config import vllm as vllm_config_module
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import nvfp4_kv_cache_full_dim
from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups, get_kv_cache_groups
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    iter_layer_specs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    Layers = dict[str, KVCacheSpec]

BLOCK, HEADS, HEAD_SIZE, WINDOW = 16, 4, 128, 64
PADDED = 32 / 9  # what an NVFP4 page takes of a 16-bit one


class Format(NamedTuple):
    """The format and sizes of a layer's keys and values."""

    dtype: torch.dtype
    mode: KVQuantMode = KVQuantMode.NONE


BF16 = Format(torch.bfloat16)
FP8 = Format(torch.uint8, KVQuantMode.FP8_PER_TENSOR)
NVFP4 = Format(torch.uint8, KVQuantMode.NVFP4)


def attention(kind: Any, stored: Format, heads: int, head_size: int, **more: Any) -> Any:
    """A layer as its backend publishes it: NVFP4 has a slot each for keys and values of a head."""
    if stored == NVFP4:
        more |= {"num_head_slots": 2 * heads, "state_content_bytes": nvfp4_kv_cache_full_dim(head_size)}
    sizes = {"block_size": BLOCK, "num_kv_heads": heads, "head_size": head_size}
    return kind(dtype=stored.dtype, kv_quant_mode=stored.mode, **(sizes | more))


def full(stored: Format, heads: int = HEADS, head_size: int = HEAD_SIZE, **more: Any) -> FullAttentionSpec:
    """A full attention layer."""
    spec: FullAttentionSpec = attention(FullAttentionSpec, stored, heads, head_size, **more)
    return spec


def windowed(
    stored: Format, heads: int = HEADS, head_size: int = HEAD_SIZE, **more: Any
) -> SlidingWindowSpec:
    """A sliding-window layer."""
    more["sliding_window"] = WINDOW
    spec: SlidingWindowSpec = attention(SlidingWindowSpec, stored, heads, head_size, **more)
    return spec


def model(*layers: tuple[int, KVCacheSpec]) -> Layers:
    """So many layers of each kind, by name."""
    specs = [spec for count, spec in layers for _ in range(count)]
    return {f"layers.{index}": spec for index, spec in enumerate(specs)}


def plan(layers: Layers, layout: KVCacheLayout = KVCacheLayout.LBNHC) -> KVCacheConfig:
    """Return the cache configuration that the engine plans for these layers."""
    config = cast("VllmConfig", SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=8, prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
    ))  # fmt: skip
    groups = get_kv_cache_groups(config, dict(layers))
    return get_kv_cache_config_from_groups(config, groups, available_memory=1 << 30)


def planned(config: KVCacheConfig) -> Layers:
    """The layers as they are planned."""
    found: Layers = {}
    for group in config.kv_cache_groups:
        specs = list(iter_layer_specs(group.kv_cache_spec))
        found |= dict(zip(group.layer_names, specs * (len(group.layer_names) // len(specs)), strict=True))
    return found


def bytes_a_token(spec: KVCacheSpec) -> float:
    """Return the bytes that one layer's keys and values of a token take."""
    return spec.page_size_bytes / spec.block_size


def check(what: str, layers: Layers, most: float, layout: KVCacheLayout = KVCacheLayout.LBNHC) -> None:
    """Let no layer take more than so many times the memory that its values need; all are read as written."""
    try:
        config = plan(layers, layout)
    except NotImplementedError as refusal:
        expect(False, f"{what}: planning refuses with {refusal}")  # noqa: FBT003 - that is the defect
        return
    found = planned(config)
    expect(found.keys() == layers.keys(), f"{what}: {found.keys() ^ layers.keys()} are not planned")
    for name, spec in found.items():
        ratio = bytes_a_token(spec) / bytes_a_token(layers[name])
        expect(
            ratio <= most + 1e-9,
            f"{what}: {name} takes {ratio:.2f} times the memory that its values need",
        )
        grown = spec.block_size != layers[name].block_size
        expect(
            not grown or getattr(spec, "page_size_padded", None) is None,
            f"{what}: {name} has blocks of {spec.block_size} tokens on padded pages",
        )
    check_memory(what, config, layout)


def check_memory(what: str, config: KVCacheConfig, layout: KVCacheLayout) -> None:
    """Write each block through the layers of one group, of the groups in turn, and read all of them back."""
    views = allocate_kv_cache(config, torch.device("cpu"), layout)
    owners = {block: block % len(config.kv_cache_groups) for block in range(config.num_blocks)}
    written = defaultdict(list)
    for block, index in owners.items():
        for number, name in enumerate(config.kv_cache_groups[index].layer_names):
            values = views[name].view(torch.uint8)[block]
            values.fill_(1 + (7 * block + number) % 250)
            written[name].append((block, values.clone()))
    for name, blocks in written.items():
        spec = planned(config)[name]
        size = getattr(spec, "unpadded_page_size_bytes", None) or cast("MambaSpec", spec).real_page_size_bytes
        for block, values in blocks:
            expect(values.numel() == size, f"{what}: {name} views {values.numel()} bytes of {size}")
            same = torch.equal(views[name].view(torch.uint8)[block], values)
            expect(same, f"{what}: block {block} of {name} was overwritten")


def hybrid(target: Format, drafter: Format) -> Layers:
    """Qwen3.6 in small: four KV heads of 256 beside states, and a drafter with eight heads of 128."""
    layer = full(target, 4, 256)
    state = MambaSpec(
        block_size=BLOCK,
        shapes=((3, 40), (8, 16)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=layer.page_size_bytes,
    )
    return {
        **{f"target.{index}": layer for index in range(2)},
        **{f"state.{index}": state for index in range(6)},
        **{f"draft.{index}": full(drafter, 8, 128) for index in range(2)},
    }


HYBRID = (
    ("16-bit beside 16-bit", hybrid(BF16, BF16), 1.0),
    ("fp8 beside 16-bit", hybrid(BF16, FP8), 1.0),
    ("NVFP4 beside NVFP4", hybrid(NVFP4, NVFP4), 1.0),
    ("16-bit beside fp8", hybrid(FP8, BF16), 2.0),
    ("16-bit beside NVFP4", hybrid(NVFP4, BF16), PADDED),
)
MIXED = (
    ("16-bit windows", model((4, full(NVFP4)), (4, windowed(BF16)))),
    ("fp8 windows", model((4, full(NVFP4)), (4, windowed(FP8)))),
    (
        "a 16-bit drafter's windows and full layer",
        model((6, full(NVFP4)), (4, windowed(BF16)), (1, full(BF16))),
    ),
    ("16-bit windows with wider heads", model((4, full(NVFP4)), (4, windowed(BF16, 2, 256)))),
    ("16-bit windows, two pages of which are three", model((4, full(NVFP4, 64)), (4, windowed(BF16, 27)))),
)
CONTROLS = (
    ("fp8 and 16-bit", model((4, full(FP8)), (4, windowed(BF16))), 1.0),
    ("fp8 and 16-bit with heads of two sizes", model((4, full(FP8, 3)), (4, windowed(BF16))), 8 / 3),
    ("NVFP4 in both", model((4, full(NVFP4)), (4, windowed(NVFP4))), 1.0),
    ("NVFP4 in both, twice the heads", model((4, full(NVFP4, 8)), (4, windowed(NVFP4))), 1.0),
    ("NVFP4 and 16-bit in one group", model((4, full(NVFP4)), (2, full(BF16))), 1.0),
)


class Packing:
    """The pages of a backend that stores NVFP4, as FlashInfer does."""

    @staticmethod
    def customize_spec(spec: FullAttentionSpec) -> FullAttentionSpec:
        """Publish the slots of NVFP4."""
        stored = Format(spec.dtype, spec.kv_quant_mode)
        return full(stored, spec.num_kv_heads, spec.head_size, block_size=spec.block_size)

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:
        """Name the block sizes of its kernels."""
        return [16, 32, 64]


def skipped() -> Layers:
    """Return windows that `--kv-cache-dtype-skip-layers` leaves 16-bit, as upstream aligns them to NVFP4."""
    cache = SimpleNamespace(
        cache_dtype="nvfp4", kv_cache_dtype_skip_layers=["sliding_window"], block_size=BLOCK,
        mamba_page_size_padded=None, skip_page_size_padded=None,
    )  # fmt: skip
    config = SimpleNamespace(
        cache_config=cache, parallel_config=None,
        model_config=SimpleNamespace(
            dtype=torch.bfloat16, get_num_kv_heads=lambda _: HEADS, get_head_size=lambda: HEAD_SIZE
        ),
    )  # fmt: skip
    with mock.patch.object(vllm_config_module, "set_current_vllm_config", nullcontext):
        Platform._align_heterogeneous_kv_block_size(cast("Any", config), cast("Any", Packing))
    windows = windowed(BF16, page_size_padded=cache.skip_page_size_padded)
    return model((4, full(NVFP4, block_size=cache.block_size)), (4, windows))


def check_mla() -> None:
    """Pages of MLA are not padded: beside larger ones of it, windows stay windows, and are padded to it."""
    latent = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    found = planned(plan(model((2, latent), (2, windowed(NVFP4, 3)))))
    for spec in found.values():
        alone = latent if isinstance(spec, MLAAttentionSpec) else windowed(NVFP4, 3)
        expect(type(spec) is type(alone), f"beside MLA, {type(alone).__name__} becomes {type(spec).__name__}")
        expect(spec.page_size_bytes == latent.page_size_bytes, "beside MLA, pages have not its size")


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    for what, layers, most in CONTROLS:
        check(f"control, {what}", layers, most)
    largest = max(spec.page_size_bytes for spec in CONTROLS[1][1].values())
    pages = {spec.page_size_bytes for spec in planned(plan(CONTROLS[1][1])).values()}
    expect(pages == {largest}, f"without NVFP4, pages have {pages} bytes instead of {largest}")
    aligned = skipped()
    takes = {spec.page_size_bytes / spec.block_size / bytes_a_token(full(NVFP4)) for spec in aligned.values()}
    expect(
        takes == {1.0, 4.0}, f"for layers skipped, NVFP4 and windows take {takes} times the bytes of NVFP4"
    )
    check("layers skipped", aligned, 1.0)
    expect(planned(plan(aligned)) == aligned, "what upstream has aligned is planned in another way")
    check_mla()
    for what, layers, most in HYBRID:
        check(f"hybrid model, drafter {what}", layers, most)
    for what, layers in MIXED:
        check(f"blocks outermost, NVFP4 beside {what}", layers, 1.0, KVCacheLayout.BLNHC)
    both = {**skipped(), **{f"draft.{index}": windowed(BF16, 8) for index in range(4)}}
    check("layers skipped and a drafter's wider windows", both, 2.0)
    for what, layers in MIXED:
        check(f"NVFP4 beside {what}", layers, 1.13)
    for spec in planned(plan(MIXED[0][1])).values():
        size = BLOCK * (4 if cast("AttentionSpec", spec).kv_quant_mode.is_nvfp4 else 1)
        expect(spec.block_size == size, f"blocks of {spec.block_size} tokens instead of {size}")
    # So many windows lose more by an eighth each than one NVFP4 layer by its padding.
    many = planned(plan(model((1, full(NVFP4)), (8, windowed(BF16)))))
    windows = [spec for spec in many.values() if isinstance(spec, SlidingWindowSpec)]
    expect(
        {bytes_a_token(spec) for spec in windows} == {bytes_a_token(windowed(BF16))},
        "eight 16-bit windows are padded for one NVFP4 layer, and lose more than it gains",
    )
