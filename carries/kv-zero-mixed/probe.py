"""Are cache blocks zeroed when they can pass between attention layers of different formats?

Layers of groups with block tables of their own share memory: a block that a 16-bit sliding-window layer
gave back may be the next one of an fp8 layer, whose kernels then find bytes of the other format in the
rows that they have not written yet. Upstream's own planning groups the layers and lays out their memory
here, its KV cache manager hands out the blocks, and its `KVBlockZeroer` clears them, in Triton's interpreter.

The defect shows where full attention is quantised and sliding windows are not: nothing is to be zeroed.
Then, block by block and byte by byte, exactly what the new blocks' layers can read has to be zero: also
where pages are padded, where blocks of several layers are packed side by side, where kernels use smaller
blocks than the manager does, and where keys and values of all blocks lie apart.

Controls: layers that all store one format, layers that share no memory, and Mamba layers.
"""

# ruff: noqa: SLF001 - the runners' allocation, and their hooks for zeroing, are private

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from unittest import mock

import torch
from probekit import expect
from vllm.utils import torch_utils
from vllm.v1.attention.backends import triton_attn
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_config_from_groups,
    get_kv_cache_groups,
)
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as RunnerV2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as RunnerV1
from vllm.v1.worker.utils import AttentionGroup, KVBlockZeroer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vllm.config import VllmConfig
    from vllm.v1.request import Request

BLOCK = 16  # tokens
BLOCKS = 12
NEW = [3, 7, 11]  # the last one as well: what lies behind it is not ours
WINDOW = 32
GUARD = 1 << 16  # bytes before and behind each allocation
STALE = 0xFF  # NaN in every 8-bit and 16-bit format that is used here
CPU = torch.device("cpu")


class Format(NamedTuple):
    """How a layer stores keys and values."""

    dtype: torch.dtype
    mode: KVQuantMode = KVQuantMode.NONE
    cache_dtype: str = "auto"


BF16 = Format(torch.bfloat16)
FP8 = Format(torch.uint8, KVQuantMode.FP8_PER_TENSOR, "fp8")
NVFP4 = Format(torch.uint8, KVQuantMode.NVFP4, "nvfp4")
INT8_HEADS = Format(torch.int8, KVQuantMode.INT8_PER_TOKEN_HEAD, "int8_per_token_head")


def full(stored: Format, heads: int = 2, head_size: int = 32, block: int = BLOCK) -> FullAttentionSpec:
    """A full attention layer."""
    return FullAttentionSpec(
        block_size=block,
        num_kv_heads=heads,
        head_size=head_size,
        dtype=stored.dtype,
        kv_quant_mode=stored.mode,
        indexes_kv_by_block_stride=True,
    )


def windowed(stored: Format, heads: int = 2, head_size: int = 32) -> SlidingWindowSpec:
    """A sliding-window layer."""
    return SlidingWindowSpec(
        block_size=BLOCK,
        num_kv_heads=heads,
        head_size=head_size,
        dtype=stored.dtype,
        kv_quant_mode=stored.mode,
        indexes_kv_by_block_stride=True,
        sliding_window=WINDOW,
    )


def turboquant() -> TQFullAttentionSpec:
    """A full attention layer with 64 bytes for keys and values of a head: the page of an fp8 one."""
    return TQFullAttentionSpec(
        block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.uint8, tq_slot_size=64
    )


def mamba(page: int) -> MambaSpec:
    """A Mamba layer whose state fills a page of that many bytes."""
    return MambaSpec(block_size=BLOCK, shapes=((page // 4,),), dtypes=(torch.float32,))


def model(*layers: tuple[int, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """So many layers of each kind, by name."""
    specs = [spec for count, spec in layers for _ in range(count)]
    return {f"layers.{index}": spec for index, spec in enumerate(specs)}


def serving(*, packed: bool = False) -> VllmConfig:
    """What planning reads of the configuration."""
    transfer = SimpleNamespace(kv_connector_extra_config={"enable_cross_layers_blocks": "true"})
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(num_gpu_blocks_override=BLOCKS),
        kv_transfer_config=transfer if packed else None,
        speculative_config=None,
    )
    return cast("VllmConfig", config)


def plan(layers: dict[str, KVCacheSpec], *, packed: bool = False) -> KVCacheConfig:
    """Group the layers and lay out their memory as the engine does."""
    config = serving(packed=packed)
    groups = get_kv_cache_groups(config, dict(layers))
    return get_kv_cache_config_from_groups(config, groups, available_memory=1 << 30)


# --- which models ------------------------------------------------------------------------------


CONTROLS = (
    ("16-bit full attention alone", model((2, full(BF16))), False),
    ("fp8 full attention alone", model((2, full(FP8))), False),
    ("16-bit full attention and windows", model((2, full(BF16)), (2, windowed(BF16))), False),
    ("fp8 full attention and windows", model((2, full(FP8)), (2, windowed(FP8))), False),
    ("nvfp4 full attention and windows", model((2, full(NVFP4)), (2, windowed(NVFP4))), False),
    ("fp8 with heads of two sizes", model((2, full(FP8)), (2, windowed(FP8, 1, 64))), False),
    ("full attention of two formats, which shares no memory", model((2, full(FP8)), (1, full(BF16))), False),
    ("Mamba layers", model((1, full(BF16)), (1, mamba(4096))), True),
)
DEFECTS = (
    ("fp8 full attention, 16-bit windows", model((2, full(FP8)), (2, windowed(BF16))), True),
    ("16-bit full attention, fp8 windows", model((2, full(BF16)), (2, windowed(FP8))), True),
    ("turboquant full attention, fp8 windows", model((2, turboquant()), (2, windowed(FP8))), True),
    ("nvfp4 full attention, 16-bit windows", model((2, full(NVFP4)), (2, windowed(BF16))), True),
    ("nvfp4 full attention, fp8 windows", model((2, full(NVFP4)), (2, windowed(FP8))), True),
    # One format whose scales lie among its data: those of one geometry are data in the other one.
    ("nvfp4 with heads of two sizes", model((2, full(NVFP4)), (2, windowed(NVFP4, 1, 64))), True),
    ("int8 with scales of two places", model((2, full(INT8_HEADS)), (2, windowed(INT8_HEADS, 4, 16))), True),
)


def check_models(cases: Iterable[tuple[str, dict[str, KVCacheSpec], bool]]) -> None:
    """Worker and scheduler have to agree on what is zeroed."""
    for what, layers, zeroes in cases:
        config = plan(layers)
        for whose, one in (
            ("worker", config),
            ("scheduler", generate_scheduler_kv_cache_config([config])),
        ):
            expect(
                one.needs_kv_cache_zeroing == zeroes,
                f"{what}: the {whose} zeroes {'nothing' if zeroes else 'new blocks without need'}",
            )


# --- which blocks ------------------------------------------------------------------------------


class Prompt(NamedTuple):
    """What the KV cache manager reads of a request."""

    request_id: str
    num_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    status: object = None
    skip_reading_prefix_cache: bool = True
    block_hashes: tuple[bytes, ...] = ()


def recorded(
    layers: dict[str, KVCacheSpec], tokens: int, external: int = 0
) -> tuple[list[int], list[list[int]]]:
    """The blocks to be zeroed after a prompt got its blocks, and the blocks of each group.

    The first *external* tokens are to be loaded by a connector.
    """
    manager = KVCacheManager(
        plan(layers), max_model_len=1024, scheduler_block_size=BLOCK * 2, hash_block_size=BLOCK,
        enable_caching=False,
    )  # fmt: skip
    prompt = cast("Request", Prompt("one", tokens, tokens))
    got = manager.allocate_slots(prompt, tokens - external, num_external_computed_tokens=external)
    if got is None:
        raise ValueError("the manager has no blocks for the prompt")
    return manager.take_new_block_ids(), [list(ids) for ids in manager.get_block_ids("one")]


def check_blocks() -> None:
    """Every group's new blocks, and where nothing is zeroed no list that grows for ever."""
    for what, layers in (
        ("fp8 full attention, 16-bit windows", model((2, full(FP8)), (2, windowed(BF16)))),
        ("16-bit full attention, fp8 windows", model((2, full(BF16)), (2, windowed(FP8)))),
    ):
        for external in (0, 2 * BLOCK):
            taken, groups = recorded(layers, 4 * BLOCK, external)
            wanted = sorted(block for block in itertools.chain(*groups) if block)  # block 0 is nobody's
            expect(
                sorted(taken) == wanted and all(groups),
                f"{what}, {external} tokens from elsewhere: of blocks {wanted}, {sorted(taken)} are zeroed",
            )
    taken, _ = recorded(model((2, full(FP8)), (2, windowed(FP8))), 4 * BLOCK)
    expect(not taken, "blocks that nobody zeroes are kept in mind")


# --- which bytes -------------------------------------------------------------------------------


class SmallKernelBlocks(TritonAttentionBackend):
    """Kernels that know blocks of 16 tokens only."""

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        """As FlashInfer, for example, names its sizes."""
        return [16]


class KeysFirst(TritonAttentionBackend):
    """Keys of all blocks, then values of all blocks."""

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """As some backends of other platforms arrange it."""
        shape = TritonAttentionBackend.get_kv_cache_shape(
            num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str
        )
        return (shape[1], shape[0], *shape[2:])


@dataclass
class Memory:
    """The caches of a model, with bytes before and behind them that nobody may touch."""

    config: KVCacheConfig
    backend: type[TritonAttentionBackend]
    allocations: list[torch.Tensor]
    raw: dict[str, torch.Tensor]
    caches: dict[str, torch.Tensor]
    groups: list[AttentionGroup]
    kernel_blocks: list[int]


def allocate(
    layers: dict[str, KVCacheSpec],
    backend: type[TritonAttentionBackend] = TritonAttentionBackend,
    *,
    packed: bool = False,
) -> Memory:
    """Upstream's plan and views, over memory full of stale bytes."""
    config = plan(layers, packed=packed)
    allocations: list[torch.Tensor] = []
    raw: dict[str, torch.Tensor] = {}
    for tensor in config.kv_cache_tensors:
        if not (tensor.block_stride and allocations):  # packed layers share one allocation
            allocations.append(torch.full((GUARD + tensor.size + GUARD,), STALE, dtype=torch.uint8))
        for name in tensor.shared_by:
            raw[name] = allocations[-1][GUARD:-GUARD].view(torch.int8)
    groups = [
        AttentionGroup(backend, group.layer_names, group.kv_cache_spec, index)
        for index, group in enumerate(config.kv_cache_groups)
    ]
    kernel_blocks = attn_utils.prepare_kernel_block_sizes(config, [[group] for group in groups])
    caches = attn_utils._reshape_kv_cache(
        groups,
        raw,
        cache_dtype="auto",  # fp8 and 16-bit caches have the same shape
        kernel_block_sizes=kernel_blocks,
        shared_kv_cache_layers={},
        kv_cache_config=config,
    )
    return Memory(config, backend, allocations, raw, caches, groups, kernel_blocks)


def readable(memory: Memory, blocks: list[int]) -> list[torch.Tensor]:
    """For each allocation, which bytes the layers can read through *blocks*, found by writing there."""
    before = [allocation.clone() for allocation in memory.allocations]
    for group in memory.groups:
        spec = cast("AttentionSpec", group.kv_cache_spec)
        ratio = spec.block_size // memory.kernel_blocks[group.kv_cache_group_id]
        kernel_blocks = [block * ratio + part for block in blocks for part in range(ratio)]
        for name in group.layer_names:
            cache = memory.caches[name]
            for block in kernel_blocks:
                view = cache[:, block] if memory.backend is KeysFirst else cache[block]
                view.view(torch.uint8 if view.element_size() == 1 else torch.int16).fill_(0)
    marked = [allocation == 0 for allocation in memory.allocations]
    for allocation, old in zip(memory.allocations, before, strict=True):
        allocation.copy_(old)
    return marked


def runners(memory: Memory) -> Iterator[tuple[str, Any]]:
    """Both model runners' ways to zero blocks, as functions of the block ids."""
    contexts = {name: SimpleNamespace(kv_cache=cache) for name, cache in memory.caches.items()}
    common = {
        "device": CPU,
        "cache_config": SimpleNamespace(cache_dtype="auto"),
        "compilation_config": SimpleNamespace(static_forward_context=contexts),
    }
    one = SimpleNamespace(
        **common,
        _kv_cache_spec_attn_group_iterator=lambda: iter(memory.groups),
        _kernel_block_sizes=memory.kernel_blocks,
        runner_only_attn_layers=set(),
    )
    RunnerV1._init_kv_zero_meta(cast("RunnerV1", one))
    yield "V1", lambda ids: RunnerV1._zero_block_ids(cast("RunnerV1", one), ids)
    two = SimpleNamespace(
        **common, attn_groups=[[group] for group in memory.groups], kernel_block_sizes=memory.kernel_blocks
    )
    RunnerV2._init_kv_zero_meta(cast("RunnerV2", two))
    yield "V2", cast("KVBlockZeroer", two.kv_block_zeroer).zero_block_ids


def check_bytes(what: str, memory: Memory) -> None:
    """Zeroing new blocks has to clear what can be read through them, and not a byte more."""
    wanted = readable(memory, NEW)
    if not all(marks.any() for marks in wanted):
        raise ValueError(f"{what}: an allocation is read by nobody")
    for runner, zero in runners(memory):
        for allocation in memory.allocations:
            allocation.fill_(STALE)
        zero(NEW)
        for index, (allocation, marks) in enumerate(zip(memory.allocations, wanted, strict=True)):
            cleared = allocation == 0
            missed, excess = int((marks & ~cleared).sum()), int((cleared & ~marks).sum())
            expect(
                not missed and not excess and bool((allocation[~marks] == STALE).all()),
                f"{what}, runner {runner}, allocation {index}: of {int(marks.sum())} bytes of new blocks "
                f"{missed} stay stale, and {excess} others are cleared",
            )


def check_layouts(layout: str) -> None:
    """Every way in which pages lie in memory."""
    mixed = model((4, full(FP8)), (5, windowed(BF16)))
    uneven = model((2, full(FP8, heads=3)), (2, windowed(BF16)))
    if not any(
        cast("AttentionSpec", group.kv_cache_spec).page_size_padded for group in allocate(uneven).groups
    ):
        raise ValueError("the pages that should need padding need none")
    check_bytes(f"{layout}, one layer with memory of its own", allocate(mixed))
    check_bytes(f"{layout}, padded pages", allocate(uneven))
    check_bytes(f"{layout}, packed pages", allocate(mixed, packed=True))
    check_bytes(f"{layout}, packed and padded pages", allocate(uneven, packed=True))
    split = model((5, full(FP8)), (4, windowed(BF16)))
    check_bytes(f"{layout}, kernel blocks within a block", allocate(split, SmallKernelBlocks))
    threes = model((1, full(FP8, heads=3)), (1, windowed(BF16, heads=3)))
    check_bytes(f"{layout}, pages of no power of two", allocate(threes))
    same = model((1, replace(full(BF16), block_size=2 * BLOCK)), (1, windowed(BF16, heads=4)))
    check_bytes(f"{layout}, keys and values apart", allocate(same, KeysFirst))


def check_many() -> None:
    """More ids than the buffers of a step ever had room for, and none at all."""
    memory = allocate(model((1, full(FP8)), (1, windowed(BF16))))
    zero = dict(runners(memory))["V1"]
    zero([])
    expect(
        all(bool((one == STALE).all()) for one in memory.allocations), "no block is new, and some are cleared"
    )
    zero([1, 2] * 8)
    zero([4])
    one = memory.allocations[0]
    page = (len(one) - 2 * GUARD) // BLOCKS
    blocks = [bool((one[GUARD + i * page : GUARD + (i + 1) * page] == 0).all()) for i in range(BLOCKS)]
    expect(
        [i for i in range(BLOCKS) if blocks[i]] == [1, 2, 4], f"of blocks 1, 2 and 4, {blocks} are cleared"
    )


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    check_models(CONTROLS)
    check_models(DEFECTS)
    check_blocks()
    with mock.patch.object(torch_utils, "PIN_MEMORY", new=False):  # a CPU build of torch has none
        for layout in ("NHD", "HND"):
            with mock.patch.object(triton_attn, "get_kv_cache_layout", return_value=layout):
                check_layouts(layout)
                check_many()
