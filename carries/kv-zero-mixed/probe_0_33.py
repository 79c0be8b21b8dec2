"""Are blocks of 0.33.0 zeroed that pass between layers whose scales lie at different places?

Upstream zeroes where groups store different formats, and leaves out blocks that are being loaded. It does
not where groups store one format with scales among the data, in pages that are laid out in different ways.
Upstream's planning lays out the memory here, its KV cache manager hands out blocks, its allocator makes the
views, and its `KVBlockZeroer` clears new blocks for either runner, in Triton's interpreter.

A layer fills its blocks with codes, which are finite numbers, and gives them back. The defect shows where the
next group's layers get one of them and find NaN among the scales of rows that they have not written.

Controls: pages of two geometries that have their scales at the same places, layers of one group, layers
without scales in the cache, formats that upstream zeroes for, and blocks that are loading.
"""

# ruff: noqa: SLF001 - the runners' hooks for zeroing are private

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from unittest import mock

import torch
from probekit import expect
from vllm.sampling_params import SamplingParams
from vllm.utils import torch_utils
from vllm.utils.torch_utils import nvfp4_kv_cache_full_dim, nvfp4_split_data_scale
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups, get_kv_cache_groups
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.request import Request
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as RunnerV2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as RunnerV1
from vllm.v1.worker.utils import AttentionGroup, allocate_kv_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm.config import VllmConfig

    Layers = dict[str, KVCacheSpec]

BLOCK, BLOCKS, HEAD_SIZE = 16, 12, 128
STALE = 0xFF  # two codes of NVFP4, -6 each; NaN as a scale of it
LAYOUTS = (KVCacheLayout.LBNHC, KVCacheLayout.LBHNC)


class Format(NamedTuple):
    """The format and sizes of a layer's keys and values."""

    dtype: torch.dtype
    mode: KVQuantMode = KVQuantMode.NONE


BF16 = Format(torch.bfloat16)
FP8 = Format(torch.uint8, KVQuantMode.FP8_PER_TENSOR)
NVFP4 = Format(torch.uint8, KVQuantMode.NVFP4)
INT8_HEADS = Format(torch.int8, KVQuantMode.INT8_PER_TOKEN_HEAD)


def layer(kind: Any, stored: Format, heads: int, size: int, **more: Any) -> Any:
    """A layer as its backend publishes it."""
    if stored == NVFP4:
        more |= {"num_head_slots": 2 * heads, "state_content_bytes": nvfp4_kv_cache_full_dim(size)}
    spec = kind(
        block_size=BLOCK, num_kv_heads=heads, head_size=size, dtype=stored.dtype, kv_quant_mode=stored.mode,
        **more,
    )  # fmt: skip
    return TritonAttentionBackend.customize_spec(spec)


def full(stored: Format, heads: int = 4, size: int = HEAD_SIZE) -> Any:
    """A full attention layer."""
    return layer(FullAttentionSpec, stored, heads, size)


def windowed(stored: Format, heads: int = 4, size: int = HEAD_SIZE) -> Any:
    """A sliding-window layer."""
    return layer(SlidingWindowSpec, stored, heads, size, sliding_window=32)


def model(*layers: KVCacheSpec) -> Layers:
    """Two layers of each kind, by name."""
    return {f"layers.{index}": spec for index, spec in enumerate(spec for spec in layers for _ in range(2))}


STATE = MambaSpec(BLOCK, shapes=((64,),), dtypes=(torch.float32,))
ZEROED = (
    ("NVFP4 and 16-bit", model(full(NVFP4), windowed(BF16))),
    ("NVFP4 of two geometries and states", model(full(NVFP4), windowed(NVFP4, 3), STATE)),
)
LEFT = (
    ("NVFP4 of one geometry", model(full(NVFP4), windowed(NVFP4))),
    ("NVFP4 with scales at the same places", model(full(NVFP4), windowed(NVFP4, 2, 256))),
    ("NVFP4 of two geometries in one group", model(full(NVFP4), full(NVFP4, 3))),
    ("16-bit of two geometries", model(full(BF16), windowed(BF16, 3))),
    ("fp8 of two geometries", model(full(FP8), windowed(FP8, 3))),
    ("int8 of one geometry", model(full(INT8_HEADS), windowed(INT8_HEADS))),
)
DEFECTS = (
    ("NVFP4 with pages that have to be padded", model(full(NVFP4), windowed(NVFP4, 3))),
    ("NVFP4 with blocks of two sizes", model(full(NVFP4), windowed(NVFP4, 8))),
    ("int8 with heads of two sizes", model(full(INT8_HEADS), windowed(INT8_HEADS, 2, 256))),
)


def plan(layers: Layers, layout: KVCacheLayout = LAYOUTS[0]) -> KVCacheConfig:
    """Return the cache configuration that the engine plans for these layers."""
    config = cast("VllmConfig", SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=BLOCKS, prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
    ))  # fmt: skip
    groups = get_kv_cache_groups(config, dict(layers))
    return get_kv_cache_config_from_groups(config, groups, available_memory=1 << 30)


def fresh(config: KVCacheConfig, *, loading: bool = False) -> tuple[set[int], list[int]]:
    """The attention blocks that a new request gets, and those that are to be zeroed."""
    config = generate_scheduler_kv_cache_config([config])
    sizes = {group.kv_cache_spec.block_size for group in config.kv_cache_groups}
    manager = KVCacheManager(
        config, max_model_len=256, scheduler_block_size=max(sizes), hash_block_size=min(sizes),
        max_in_flight_tokens=256, enable_caching=False,
    )  # fmt: skip
    request = Request("one", list(range(40)), SamplingParams(max_tokens=1), None)
    skipped = {"skip_zeroing_group_ids": tuple(range(len(config.kv_cache_groups)))} if loading else {}
    external = {"num_external_computed_tokens": 32, "delay_cache_blocks": True} if loading else {}
    manager.allocate_slots(request, 8 if loading else 40, **external, **skipped)
    table = zip(config.kv_cache_groups, manager.get_block_ids("one"), strict=True)
    held = {block for group, ids in table if isinstance(group.kv_cache_spec, AttentionSpec) for block in ids}
    return held - {0}, manager.take_new_block_ids()


def check_recorded(what: str, layers: Layers, *, zeroes: bool) -> None:
    """New blocks are to be zeroed, or none is."""
    config = plan(layers)
    for side in (config, generate_scheduler_kv_cache_config([config])):
        expect(side.needs_kv_cache_zeroing == zeroes, f"{what}: blocks are {'not ' * zeroes}zeroed")
    held, recorded = fresh(config)
    expect(set(recorded) == (held if zeroes else set()), f"{what}: of blocks {held}, {recorded} are recorded")
    if zeroes:
        held, recorded = fresh(config, loading=True)
        left = held - set(recorded)
        expect(left, f"{what}: blocks {recorded} are zeroed while they are loaded")


class Memory(NamedTuple):
    """The caches of a model."""

    config: KVCacheConfig
    caches: dict[str, torch.Tensor]

    def zeroers(self) -> Iterator[tuple[str, Callable[[list[int]], None]]]:
        """Both runners' ways to zero blocks."""
        contexts = {name: SimpleNamespace(kv_cache=cache) for name, cache in self.caches.items()}
        groups = [
            AttentionGroup(TritonAttentionBackend, group.layer_names, group.kv_cache_spec, index)
            for index, group in enumerate(self.config.kv_cache_groups)
        ]
        sizes = [group.kv_cache_spec.block_size for group in self.config.kv_cache_groups]
        runner: Any = SimpleNamespace(
            device=torch.device("cpu"),
            kv_cache_config=self.config,
            compilation_config=SimpleNamespace(static_forward_context=contexts),
            runner_only_attn_layers=set(),
            attn_groups=[[group] for group in groups],
            _kv_cache_spec_attn_group_iterator=lambda: iter(groups),
            kernel_block_sizes=sizes,
            _kernel_block_sizes=sizes,
        )
        for name, kind in (("V1", RunnerV1), ("V2", RunnerV2)):
            kind._init_kv_zero_meta(runner)
            zeroer = getattr(runner, "kv_block_zeroer", None) or runner._kv_block_zeroer
            yield name, zeroer.zero_block_ids


def parts(cache: torch.Tensor, spec: AttentionSpec) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The codes and the scales, for keys and for values, as kernels for blocks of 16 tokens find them."""
    if spec.kv_quant_mode.is_nvfp4:  # all codes of a kernel's page, then their scales, for either side
        count = spec.block_size // BLOCK
        side = spec.unpadded_page_size_bytes // count // 2
        width = spec.state_content_size_bytes
        shape = (cache.shape[0], spec.num_kv_heads, BLOCK, width)
        for start in range(0, 2 * count * side, side):
            strides = (cache.stride(0), BLOCK * width, width, 1)
            yield nvfp4_split_data_scale(cache.as_strided(shape, strides, cache.storage_offset() + start))
    else:  # each head's codes, then its scale in four bytes
        for half in cache.view(torch.uint8).chunk(2, dim=-1):
            yield half[..., : spec.head_size], half[..., spec.head_size :]


def stale(scales: torch.Tensor) -> int:
    """Scales that are no finite number."""
    if scales.dtype == torch.float8_e4m3fn:
        return int(scales.float().isnan().sum())
    bits = scales.view(torch.uint8)
    kind = torch.float8_e4m3fn if scales.shape[-1] != 4 else torch.float32
    return int((~bits.contiguous().view(kind).float().isfinite()).sum())


def check_scales(what: str, layers: Layers, layout: KVCacheLayout) -> None:
    """Check that bytes which a layer left in a block are no scales to the layers that get the block."""
    memory = Memory(
        plan(layers, layout), allocate_kv_cache(plan(layers, layout), torch.device("cpu"), layout)
    )
    groups = memory.config.kv_cache_groups
    for runner, zero in memory.zeroers():
        for before in groups:
            for after in (group for group in groups if group is not before):
                for name in before.layer_names:
                    for codes, scales in parts(
                        memory.caches[name], cast("AttentionSpec", before.kv_cache_spec)
                    ):
                        codes.view(torch.uint8).fill_(STALE)
                        scales.view(torch.uint8).fill_(0)
                if memory.config.needs_kv_cache_zeroing:
                    zero([3, BLOCKS - 1])
                for name in after.layer_names:
                    spec = cast("AttentionSpec", after.kv_cache_spec)
                    for _, scales in parts(memory.caches[name], spec):
                        wrong = sum(stale(scales[block]) for block in (3, BLOCKS - 1))
                        expect(
                            not wrong, f"{what}, {layout.name}, {runner}: {wrong} scales of {name} are NaN"
                        )


def check_bytes(what: str, layers: Layers, layout: KVCacheLayout) -> None:
    """Zeroing clears what is read through the new blocks, and nothing else."""
    config = plan(layers, layout)
    memory = Memory(config, allocate_kv_cache(config, torch.device("cpu"), layout))
    storage = next(iter(memory.caches.values())).untyped_storage()
    raw = torch.empty(0, dtype=torch.uint8).set_(storage)
    blocks = [3, BLOCKS - 1]
    raw.fill_(1)
    for cache in memory.caches.values():
        for block in blocks:
            cache.view(torch.uint8)[block].fill_(0)
    wanted = raw == 0
    for runner, zero in memory.zeroers():
        raw.fill_(STALE)
        zero(blocks)
        cleared = raw == 0
        missed, excess = int((wanted & ~cleared).sum()), int((cleared & ~wanted).sum())
        expect(
            not missed and not excess, f"{what}, {runner}: {missed} bytes stay, {excess} others are cleared"
        )


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    for what, layers in ZEROED:
        check_recorded(what, layers, zeroes=True)
    for what, layers in LEFT:
        check_recorded(what, layers, zeroes=False)
    config = plan(DEFECTS[0][1])
    config.kv_cache_groups[1] = replace(config.kv_cache_groups[1], host_resident=True)
    expect(not config.needs_kv_cache_zeroing, "blocks are zeroed for layers whose memory is the host's")
    with mock.patch.object(torch_utils, "PIN_MEMORY", new=False):  # a CPU build of torch has none
        for layout in LAYOUTS:
            for what, layers in DEFECTS:
                check_bytes(what, layers, layout)
            check_scales(*LEFT[0], layout)
            check_scales(*LEFT[1], layout)
            for what, layers in DEFECTS:
                check_scales(what, layers, layout)
    for what, layers in DEFECTS:
        check_recorded(what, layers, zeroes=True)
