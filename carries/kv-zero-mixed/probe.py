"""Are cache blocks zeroed that pass between attention layers of different formats, and none that is loading?

Layers of groups with block tables of their own share memory: a block that a 16-bit sliding-window layer
gave back may be the next one of an fp8 layer, whose kernels then find bytes of the other format in the
rows that they have not written yet. Upstream's own planning groups the layers and lays out their memory
here, its scheduler hands out the blocks, and its `KVBlockZeroer` clears them, in Triton's interpreter.

The defect shows where full attention is quantised and sliding windows are not: nothing is to be zeroed.
Then each step of the scheduler is held against an account of its blocks: those that are new have to be
zeroed, but for those that a connector is loading; and what is read was zeroed or loaded before, also after
a load failed and after a request had to give its blocks back. Mamba models, which are zeroed without the
carry, are among them. Byte by byte, exactly what the new blocks' layers can read has to be zero: also
where pages are padded, where blocks of several layers are packed side by side, where kernels use smaller
blocks than the manager does, and where keys and values of all blocks lie apart.

Controls: layers that all store one format, layers that share no memory, and Mamba layers.
"""

# ruff: noqa: SLF001 - the runners' allocation, and their hooks for zeroing, are private

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from probekit import expect
from vllm.config import SchedulerConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.sampling_params import SamplingParams
from vllm.utils import torch_utils
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface as specs
from vllm.v1.attention.backends import triton_attn
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, GPULoadStoreSpec
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as RunnerV2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as RunnerV1
from vllm.v1.worker.utils import AttentionGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vllm.v1.core.kv_cache_manager import KVCacheBlocks

    Layers = dict[str, specs.KVCacheSpec]

BLOCK = 16  # tokens
BLOCKS = 12
NEW = [3, 7, 11]  # the last one as well: what lies behind it is not ours
WINDOW = 32
GUARD = 1 << 16  # bytes before and behind each allocation
STALE = 0xFF  # NaN in every 8-bit and 16-bit format that is used here


# How a layer stores keys and values.
BF16 = (torch.bfloat16, specs.KVQuantMode.NONE)
FP8 = (torch.uint8, specs.KVQuantMode.FP8_PER_TENSOR)
NVFP4 = (torch.uint8, specs.KVQuantMode.NVFP4)
INT8_HEADS = (torch.int8, specs.KVQuantMode.INT8_PER_TOKEN_HEAD)


def full(stored: Any, heads: int = 2, head_size: int = 32, kind: Any = specs.FullAttentionSpec) -> Any:
    """A full attention layer."""
    return kind(
        block_size=BLOCK, num_kv_heads=heads, head_size=head_size, dtype=stored[0], kv_quant_mode=stored[1],
        indexes_kv_by_block_stride=True,
    )  # fmt: skip


windowed = functools.partial(full, kind=functools.partial(specs.SlidingWindowSpec, sliding_window=WINDOW))
# 64 bytes for keys and values of a head: the page of an fp8 layer.
TURBOQUANT = specs.TQFullAttentionSpec(
    BLOCK, num_kv_heads=2, head_size=32, dtype=torch.uint8, tq_slot_size=64
)
# The state fills a page of 16-bit attention.
MAMBA = specs.MambaSpec(BLOCK, shapes=((1024,),), dtypes=(torch.float32,), mamba_cache_mode="align")


def model(*layers: tuple[int, specs.KVCacheSpec]) -> Layers:
    """So many layers of each kind, by name."""
    specs = [spec for count, spec in layers for _ in range(count)]
    return {f"layers.{index}": spec for index, spec in enumerate(specs)}


def serving(blocks: int = BLOCKS, failures: str = "recompute", *, packed: bool = False) -> Any:
    """What planning and the scheduler read of the configuration."""
    return SimpleNamespace(
        scheduler_config=SchedulerConfig(
            max_model_len=1024, is_encoder_decoder=False, max_num_batched_tokens=512, async_scheduling=True,
            disable_hybrid_kv_cache_manager=False,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=blocks, num_gpu_blocks=blocks, block_size=BLOCK, hash_block_size=None,
            enable_prefix_caching=True, mamba_cache_mode="align",
        ),
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config={"enable_cross_layers_blocks": "true"} if packed else {},
            kv_load_failure_policy=failures, is_kv_consumer=True,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0, decode_context_parallel_size=1, prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
        ),
        model_config=SimpleNamespace(
            is_encoder_decoder=False, is_diffusion=False, is_multimodal_model=False,
            enable_return_routed_experts=False, max_model_len=1024,
        ),
        observability_config=SimpleNamespace(kv_cache_metrics=False), kv_events_config=None, lora_config=None,
        ec_transfer_config=None, speculative_config=None, num_speculative_tokens=0, max_concurrent_batches=2,
        use_v2_model_runner=False,
    )  # fmt: skip


def plan(layers: Layers, config: Any) -> specs.KVCacheConfig:
    """Group the layers and lay out their memory as the engine does."""
    groups = kv_cache_utils.get_kv_cache_groups(config, dict(layers))
    return kv_cache_utils.get_kv_cache_config_from_groups(config, groups, available_memory=1 << 30)


# --- which models ------------------------------------------------------------------------------


CONTROLS = (
    ("16-bit full attention alone", model((2, full(BF16))), False),
    ("fp8 full attention alone", model((2, full(FP8))), False),
    ("16-bit full attention and windows", model((2, full(BF16)), (2, windowed(BF16))), False),
    ("fp8 full attention and windows", model((2, full(FP8)), (2, windowed(FP8))), False),
    ("nvfp4 full attention and windows", model((2, full(NVFP4)), (2, windowed(NVFP4))), False),
    ("fp8 with heads of two sizes", model((2, full(FP8)), (2, windowed(FP8, 1, 64))), False),
    ("full attention of two formats, which shares no memory", model((2, full(FP8)), (1, full(BF16))), False),
    ("Mamba layers", model((1, full(BF16)), (1, MAMBA)), True),
)
DEFECTS = (
    ("fp8 full attention, 16-bit windows", model((2, full(FP8)), (2, windowed(BF16))), True),
    ("16-bit full attention, fp8 windows", model((2, full(BF16)), (2, windowed(FP8))), True),
    ("turboquant full attention, fp8 windows", model((2, TURBOQUANT), (2, windowed(FP8))), True),
    ("nvfp4 full attention, 16-bit windows", model((2, full(NVFP4)), (2, windowed(BF16))), True),
    ("nvfp4 full attention, fp8 windows", model((2, full(NVFP4)), (2, windowed(FP8))), True),
    # One format whose scales lie among its data: those of one geometry are data in the other one.
    ("nvfp4 with heads of two sizes", model((2, full(NVFP4)), (2, windowed(NVFP4, 1, 64))), True),
    ("int8 with scales of two places", model((2, full(INT8_HEADS)), (2, windowed(INT8_HEADS, 4, 16))), True),
)


def check_models(cases: Iterable[tuple[str, Layers, bool]]) -> None:
    """Worker and scheduler have to agree on what is zeroed."""
    for what, layers, zeroes in cases:
        config = plan(layers, serving())
        scheduled = kv_cache_utils.generate_scheduler_kv_cache_config([config])
        for whose, one in (("worker", config), ("scheduler", scheduled)):
            expect(
                one.needs_kv_cache_zeroing == zeroes,
                f"{what}: the {whose} zeroes {'nothing' if zeroes else 'new blocks without need'}",
            )


# --- which blocks ------------------------------------------------------------------------------


class Engine(SupportsHMA):
    """Upstream's scheduler, a connector, and an account of the blocks that every step is held against.

    The connector loads the first tokens of some requests into whole blocks, at a time of its own or within
    the step that begins the load.
    """

    def __init__(
        self, layers: Layers, blocks: int = 64, failures: str = "recompute", *, asynchronous: bool = True
    ) -> None:
        settings = serving(blocks, failures)
        config = kv_cache_utils.generate_scheduler_kv_cache_config([plan(layers, settings)])
        grain = kv_cache_utils.resolve_kv_cache_block_sizes(config, settings)
        outputs = mock.MagicMock(**{"should_advance.return_value": False})
        with mock.patch.object(KVConnectorFactory, "create_connector", return_value=self):
            self.scheduler = AsyncScheduler(settings, config, outputs, *grain)
        self.manager = self.scheduler.kv_cache_manager
        self.hasher = kv_cache_utils.get_request_block_hasher(grain[1], sha256)
        self.specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        self.asynchronous = asynchronous
        self.elsewhere: dict[str, int] = {}  # tokens of a request that can be loaded
        self.local: dict[str, int] = {}
        self.loading: dict[str, set[int]] = {}
        self.fresh: set[int] = set()  # allocated in this step
        self.sound: set[int] = set()  # zeroed or loaded since they were allocated
        self.least_free = blocks
        pool = self.manager.block_pool
        self.allocate, pool.get_new_blocks = pool.get_new_blocks, self.allocated

    def allocated(self, count: int) -> list[Any]:
        """Allocate, and take down what."""
        blocks = self.allocate(count)
        self.fresh |= {block.block_id for block in blocks}
        return blocks

    def __getattr__(self, name: str) -> Callable[..., None]:
        """The rest of a connector does nothing."""
        return lambda *_, **__: None

    def request_finished_all_groups(self, *_: object) -> tuple[bool, None]:
        """Keep no blocks of requests that are done."""
        return False, None

    def get_num_new_matched_tokens(self, request: Request, local: int) -> tuple[int, bool]:
        """Offer what is elsewhere and not local."""
        self.local[request.request_id] = local
        more = max(self.elsewhere.get(request.request_id, 0) - local, 0)
        return more, bool(more) and self.asynchronous

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        """Begin to load into each block that holds any of the tokens."""
        start = self.local[request.request_id]
        if external and self.asynchronous:
            self.loading[request.request_id] = {
                block.block_id
                for group, spec in zip(blocks.blocks, self.specs, strict=True)
                for block in group[start // spec.block_size : -(-(start + external) // spec.block_size)]
                if not block.is_null
            }

    def add(self, name: str, tokens: int, elsewhere: int = 0, answer: int = 4) -> Request:
        """Ask for an answer to a prompt that begins as all prompts do."""
        self.elsewhere[name] = elsewhere
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
        request = Request(name, list(range(tokens)), sampling, None, block_hasher=self.hasher)
        self.scheduler.add_request(request)
        return request

    def held(self, names: Iterable[str]) -> set[int]:
        """The attention blocks of these requests."""
        tables = [self.manager.get_block_ids(name) for name in names]
        pairs = [pair for table in tables for pair in zip(self.specs, table, strict=True)]
        attention = [blocks for spec, blocks in pairs if isinstance(spec, specs.AttentionSpec)]
        return set().union(*attention) - {0}

    def step(self, loaded: Iterable[str] = (), failed: Iterable[str] = ()) -> None:
        """One step, during which these loads end."""
        self.fresh.clear()
        step = self.scheduler.schedule()
        self.least_free = min(self.least_free, self.manager.block_pool.get_num_free_blocks())
        zeroed = sorted(step.new_block_ids_to_zero or [])
        loading = set().union(*self.loading.values())
        expect(loading.isdisjoint(zeroed), f"blocks {zeroed} are zeroed while {sorted(loading)} are loaded")
        wanted = sorted((self.fresh & self.held(self.scheduler.requests)) - loading)
        expect(zeroed == wanted, f"of blocks {wanted}, {zeroed} are zeroed")
        self.sound = (self.sound - self.fresh).union(zeroed)
        names = list(step.num_scheduled_tokens)
        unknown = self.held(names) - self.sound
        expect(not unknown, f"blocks {sorted(unknown)} are read, and were neither zeroed nor loaded")
        ended = {name: self.loading.pop(name) for name in (*loaded, *failed)}
        self.sound |= set().union(*(ended[name] for name in loaded))
        lost = {block for name in failed for block in (0, min(ended[name]))}  # the null block too
        transfers = KVConnectorOutput(finished_recving=set(ended), invalid_block_ids=lost)
        tokens = [[] if self.scheduler.requests[name].is_prefill_chunk else [1] for name in names]
        ids = {name: index for index, name in enumerate(names)}
        output = ModelRunnerOutput(names, ids, tokens, kv_connector_output=transfers)
        try:
            self.scheduler.update_from_output(step, output)
        except (RuntimeError, ValueError) as error:
            expect(not failed, f"a load that fails ends the engine: {error}")
            raise

    def finish(self) -> None:
        """Go on until every request is done, each load a step after it began."""
        for _ in range(1000):
            if not self.scheduler.requests:
                return
            self.step(loaded=list(self.loading))
        raise ValueError(f"requests are stuck: {list(self.scheduler.requests)}")


def check_blocks(layers: Layers) -> None:
    """Each new block is zeroed unless it is being loaded."""
    for external in (0, 128, 100):  # the last one ends within a block
        engine = Engine(layers)
        engine.add("two", 40)
        engine.add("one", 200, external)
        engine.step()
        engine.step()  # the load is still under way
        engine.finish()
        engine.add("again", 300, 260 if external else 0)  # some of it is cached by now
        engine.finish()
    engine = Engine(layers, asynchronous=False)  # the connector loads behind the zeroing
    engine.add("one", 200, 100)
    engine.finish()


def check_preemption(layers: Layers) -> None:
    """A request that gave its blocks back loads again."""
    engine = Engine(layers)
    engine.add("one", 100, 64, answer=300)
    engine.finish()
    engine = Engine(layers, (64 - engine.least_free) * 3 // 2)  # not enough for two
    requests = [engine.add(name, 100, 64, answer=300) for name in ("one", "two")]
    engine.finish()
    if not any(request.num_preemptions for request in requests):
        raise ValueError("no request had to give its blocks back")


def check_failures(layers: Layers) -> None:
    """Blocks of loads that failed hold anything: they are zeroed or loaded before they are read."""
    for again in (0, 128):
        engine = Engine(layers)
        engine.add("one", 200, 128)
        engine.add("two", 40, answer=20)
        engine.step()
        engine.elsewhere["one"] = again
        engine.step(failed=["one"])
        engine.finish()
    engine = Engine(layers, 40, "fail")
    one = engine.add("one", 200, 128)
    engine.step()
    engine.step(failed=["one"])
    expect(one.status == RequestStatus.FINISHED_ERROR, f"after its load failed, a request is {one.status}")
    engine.add("two", 300)  # all blocks but two
    engine.finish()


def check_unused() -> None:
    """Where nothing is zeroed, no list of blocks grows for as long as the server runs."""
    engine = Engine(model((2, full(FP8)), (2, windowed(FP8))))
    engine.add("one", 40)
    engine.scheduler.schedule()
    expect(not engine.manager.take_new_block_ids(), "blocks that are not zeroed are recorded")


def check_loads() -> None:
    """Copies from host memory wait for the compute stream: a zeroing that it got before may still be due."""
    host = torch.zeros(2, 64, dtype=torch.int8)
    card = mock.MagicMock(wraps=host, is_cuda=True, ndim=2, shape=host.shape, dtype=host.dtype)
    seen = mock.MagicMock()
    with (
        mock.patch.multiple(gpu_worker, current_platform=seen, PIN_MEMORY=False, HAS_TRITON=False),
        mock.patch.object(torch, "Event"),
    ):
        refs = [[CanonicalKVCacheRef(0, 64)]]
        handler = gpu_worker.SingleDirectionOffloadingHandler([card], [host], 1, refs, gpu_to_cpu=False)
        handler._swap_blocks_batch = seen.copy
        handler.transfer_async(1, (CPULoadStoreSpec([1]), GPULoadStoreSpec([0], [1], [0])))
    before = seen.mock_calls[: [name for name, _, _ in seen.mock_calls].index("copy")]
    waits = mock.call.Stream().wait_stream(seen.current_stream())
    expect(waits in before, "a load from host memory overtakes the zeroing of its block")


# --- which bytes -------------------------------------------------------------------------------


class SmallKernelBlocks(TritonAttentionBackend):
    """Kernels that know blocks of 16 tokens only, as those of FlashInfer name their sizes."""

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:  # noqa: D102
        return [16]


class KeysFirst(TritonAttentionBackend):
    """Keys of all blocks, then values of all blocks, as some backends of other platforms have them."""

    @staticmethod
    def get_kv_cache_shape(*sizes: Any, **more: Any) -> tuple[int, ...]:  # noqa: D102
        blocks, sides, *rest = TritonAttentionBackend.get_kv_cache_shape(*sizes, **more)
        return (sides, blocks, *rest)


@dataclass
class Memory:
    """The caches of a model, with bytes before and behind them that are not theirs."""

    backend: type[TritonAttentionBackend]
    allocations: list[torch.Tensor]
    caches: dict[str, torch.Tensor]
    groups: list[AttentionGroup]
    kernel_blocks: list[int]


def allocate(
    layers: Layers, backend: type[TritonAttentionBackend] = TritonAttentionBackend, *, packed: bool = False
) -> Memory:
    """Upstream's plan and views, over memory full of stale bytes."""
    config = plan(layers, serving(packed=packed))
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
        groups, raw, cache_dtype="auto",  # fp8 and 16-bit caches have the same shape
        kernel_block_sizes=kernel_blocks, shared_kv_cache_layers={}, kv_cache_config=config,
    )  # fmt: skip
    return Memory(backend, allocations, caches, groups, kernel_blocks)


def readable(memory: Memory, blocks: list[int]) -> list[torch.Tensor]:
    """For each allocation, which bytes the layers can read through *blocks*, found by writing there."""
    before = [allocation.clone() for allocation in memory.allocations]
    for group in memory.groups:
        ratio = group.kv_cache_spec.block_size // memory.kernel_blocks[group.kv_cache_group_id]
        kernel_blocks = [block * ratio + part for block in blocks for part in range(ratio)]
        for cache in (memory.caches[name] for name in group.layer_names):
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
    runner: Any = SimpleNamespace(
        device=torch.device("cpu"),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        compilation_config=SimpleNamespace(static_forward_context=contexts),
        _kv_cache_spec_attn_group_iterator=lambda: iter(memory.groups),
        _kernel_block_sizes=memory.kernel_blocks,
        runner_only_attn_layers=set(),
        attn_groups=[[group] for group in memory.groups],  # these two are V2's names
        kernel_block_sizes=memory.kernel_blocks,
    )
    RunnerV1._init_kv_zero_meta(runner)
    yield "V1", functools.partial(RunnerV1._zero_block_ids, runner)
    RunnerV2._init_kv_zero_meta(runner)
    yield "V2", runner.kv_block_zeroer.zero_block_ids


def check_bytes(what: str, memory: Memory, steps: Iterable[list[int]] = (NEW,)) -> None:
    """Zeroing new blocks has to clear what can be read through them, and not a byte more."""
    wanted = readable(memory, [block for ids in steps for block in ids])
    if not all(marks.any() for marks in wanted):
        raise ValueError(f"{what}: an allocation is never read")
    for runner, zero in runners(memory):
        for allocation in memory.allocations:
            allocation.fill_(STALE)
        for ids in steps:
            zero(ids)
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
    if not any(group.kv_cache_spec.page_size_padded for group in allocate(uneven).groups):
        raise ValueError("the pages that should need padding need none")
    check_bytes(f"{layout}, one layer with memory of its own", allocate(mixed))
    padded = allocate(uneven)
    for order in (padded.groups, padded.groups[::-1]):  # larger pages last, and first
        check_bytes(f"{layout}, padded pages", replace(padded, groups=order))
    check_bytes(f"{layout}, packed pages", allocate(mixed, packed=True))
    check_bytes(f"{layout}, packed and padded pages", allocate(uneven, packed=True))
    split = model((5, full(FP8)), (4, windowed(BF16)))
    check_bytes(f"{layout}, kernel blocks within a block", allocate(split, SmallKernelBlocks))
    threes = model((1, full(FP8, heads=3)), (1, windowed(BF16, heads=3)))
    check_bytes(f"{layout}, pages of no power of two", allocate(threes))
    same = model((1, replace(full(BF16), block_size=2 * BLOCK)), (1, windowed(BF16, heads=4)))
    check_bytes(f"{layout}, keys and values apart", allocate(same, KeysFirst))
    pair = allocate(model((1, full(FP8)), (1, windowed(BF16))))
    check_bytes(f"{layout}, one step after another, and the same block twice", pair, ([], [1, 2] * 8, [4]))


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    check_models(CONTROLS)
    check_models(DEFECTS)
    kv_cache_utils.init_none_hash(sha256)
    for _, layers, _ in (*DEFECTS, CONTROLS[-1]):
        check_blocks(layers)
        check_preemption(layers)
        check_failures(layers)
    check_unused()
    check_loads()
    with mock.patch.object(torch_utils, "PIN_MEMORY", new=False):  # a CPU build of torch has none
        for layout in ("NHD", "HND"):
            with mock.patch.object(triton_attn, "get_kv_cache_layout", return_value=layout):
                check_layouts(layout)
