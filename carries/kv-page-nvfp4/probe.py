"""Do NVFP4 layers keep what NVFP4 saves when they share memory with layers of another format?

Upstream's planning gets the layers of a model, groups them and lays out their memory; nothing is replaced
but the configuration around it. A page of NVFP4 is 9/16 byte for each value, so that no number of them fills
one of a 16-bit or fp8 layer.

The defect shows where full attention is NVFP4 and sliding windows, or a drafter's layers, are 16-bit: each
NVFP4 page is padded to the size of a 16-bit one and takes as much memory for a token. With the carry it takes
its own bytes, and the 16-bit pages an eighth more.

It shows, too, where a hybrid model has a drafter with larger pages: planning fails. With the carry the states
are padded. The tensors that both model runners make of the plan are then written, block by block, and read
back; a prompt that is served twice is found in the prefix cache; and none waits where a step has less room
than such a page.

Controls: layers whose pages divide each other, layers of one size, models without NVFP4, hybrid models
without such a drafter, and pages that no backend can pad.
"""

# ruff: noqa: SLF001 - the runners' views come from private methods

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from unittest import mock

import torch
from probekit import expect
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig, set_current_vllm_config
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core.kv_cache_utils import (
    get_kv_cache_config_from_groups,
    get_kv_cache_groups,
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
    unify_kv_cache_spec_page_size,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK, HEADS, HEAD_SIZE = 16, 4, 128
LONGEST = 1024  # tokens of a request


class Model(SimpleNamespace):
    """A model's configuration that says no to whatever else it is asked."""

    def __getattr__(self, name: str) -> bool:
        return False


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


def plan_of(layers: dict[str, KVCacheSpec], memory: int = 1 << 28) -> KVCacheConfig:
    """What the engine makes of these layers."""
    config = cast("VllmConfig", SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(num_gpu_blocks_override=None),
        kv_transfer_config=None,
        speculative_config=None,
    ))  # fmt: skip
    groups = get_kv_cache_groups(config, dict(layers))
    return get_kv_cache_config_from_groups(config, groups, available_memory=memory)


def check_plan(layers: dict[str, KVCacheSpec]) -> None:
    """Every tensor holds whole pages of all who share it."""
    plan = plan_of(layers)
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
    ("16-bit windows, two pages of which are three", model((4, full(NVFP4, 64)), (4, windowed(BF16, 27)))),
)
CONTROLS = (
    ("fp8 and 16-bit", model((4, full(FP8)), (4, windowed(BF16))), 1.0),
    ("fp8 and 16-bit with heads of two sizes", model((4, full(FP8, 3)), (4, windowed(BF16))), 8 / 3),
    ("NVFP4 in both", model((4, full(NVFP4)), (4, windowed(NVFP4))), 1.0),
    ("NVFP4 in both, twice the heads", model((4, full(NVFP4, 8)), (4, windowed(NVFP4))), 1.0),
)


def refused(layers: dict[str, KVCacheSpec]) -> str:
    """What planning says against these layers."""
    try:
        unify_kv_cache_spec_page_size(dict(layers))
    except NotImplementedError as refusal:
        return str(refusal)
    raise ValueError("pages of sizes that cannot be one were unified")


def unpadded(layers: dict[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """The same layers with a backend that reads no padded pages."""
    specs: Iterable[tuple[str, KVCacheSpec]] = layers.items()
    return {
        name: replace(cast("AttentionSpec", spec), indexes_kv_by_block_stride=False) for name, spec in specs
    }


def hybrid(target: Format, drafter: Format) -> dict[str, KVCacheSpec]:
    """Qwen3.6 in small: four KV heads of 256 beside states, and a drafter with eight heads of 128."""
    attention = full(target, 4, 256)
    state = MambaSpec(
        block_size=BLOCK,
        shapes=((3, 40), (8, 16)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=attention.page_size_bytes,
    )
    return {
        **{f"target.{index}": attention for index in range(2)},
        **{f"state.{index}": state for index in range(6)},
        **{f"draft.{index}": full(drafter, 8, 128) for index in range(2)},
    }


# Target, drafter, and how many times their own size states, the target's and the drafter's pages may take.
HYBRID = (
    ("16-bit beside 16-bit", hybrid(BF16, BF16), (1.0, 1.0, 1.0)),
    ("fp8 beside 16-bit", hybrid(BF16, FP8), (1.0, 1.0, 1.0)),
    ("NVFP4 beside NVFP4", hybrid(NVFP4, NVFP4), (1.0, 1.0, 1.0)),
    ("16-bit beside fp8", hybrid(FP8, BF16), (2.0, 1.0, 1.0)),
    ("16-bit beside NVFP4", hybrid(NVFP4, BF16), (32 / 9, 32 / 9, 1.0)),
)


def check_hybrid(what: str, layers: dict[str, KVCacheSpec], most: tuple[float, float, float]) -> None:
    """A hybrid model and its drafter are planned, and no layer takes more of memory than that."""
    what = f"hybrid model, drafter {what}"
    try:
        unified = unify_kv_cache_spec_page_size(dict(layers))
    except (AssertionError, NotImplementedError) as error:
        expect(False, f"{what}: planning fails with {error!r}")  # noqa: FBT003 - that is the defect
        return
    for kind, limit in zip(("state", "target", "draft"), most, strict=True):
        spec, alone = unified[f"{kind}.0"], layers[f"{kind}.0"]
        ratio = bytes_a_token(spec) / bytes_a_token(alone)
        expect(ratio <= limit + 1e-9, f"{what}: {kind} takes {ratio:.2f} times the memory")
        stays = isinstance(spec, MambaSpec) or getattr(spec, "page_size_padded", None) is not None
        expect(
            not stays or spec.block_size == BLOCK, f"{what}: {kind} has blocks of {spec.block_size} tokens"
        )
    check_plan(layers)
    check_views(what, layers)


def check_views(what: str, layers: dict[str, KVCacheSpec]) -> None:
    """What both runners view of the memory: each block's values are its own, whichever layer it belongs to.

    A block belongs to one layer of those that share a tensor. All of its values are written, others' are
    left as they are; then every block has to hold what was written there.
    """
    plan = plan_of(layers, 1 << 21)
    groups: Any = [
        SimpleNamespace(
            backend=TritonAttentionBackend,
            kv_cache_group_id=index,
            kv_cache_spec=group.kv_cache_spec,
            layer_names=group.layer_names,
        )
        for index, group in enumerate(plan.kv_cache_groups)
        if getattr(group.kv_cache_spec, "kv_quant_mode", None) != NVFP4.mode  # another carry views those
    ]
    sizes = [group.kv_cache_spec.block_size for group in plan.kv_cache_groups]
    runner: Any = SimpleNamespace(
        cache_config=SimpleNamespace(cache_dtype="auto"),
        kv_cache_config=plan,
        runner_only_attn_layers=set(),
        _kv_cache_spec_attn_group_iterator=lambda: iter(groups),
        _update_hybrid_attention_mamba_layout=lambda *_: (
            None
        ),  # only for pages that begin with K of all blocks
    )
    for name in ("V1", "V2"):
        raw = {
            layer: tensor
            for one in plan.kv_cache_tensors
            for tensor in [torch.zeros(one.size, dtype=torch.int8)]
            for layer in one.shared_by
        }
        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
            views = (
                GPUModelRunner._reshape_kv_cache_tensors(runner, raw, sizes)
                if name == "V1"
                else attn_utils._reshape_kv_cache(groups, raw, "auto", sizes, {}, plan)
            )
        for one in plan.kv_cache_tensors:
            sharing = [layer for layer in one.shared_by if layer in views]
            check_tensor(f"{what}: {name}", sharing, views, layers, plan.num_blocks)


def check_tensor(
    what: str, sharing: list[str], views: dict[str, Any], layers: dict[str, KVCacheSpec], blocks: int
) -> None:
    """Write the blocks of one tensor, in turn for the layers that share it, and read them all back."""
    owners = {block: sharing[block % len(sharing)] for block in range(blocks)}
    parts = {name: views[name] if isinstance(views[name], list) else [views[name]] for name in sharing}
    for name in sharing:
        found = sum(part[0].numel() * part.element_size() for part in parts[name])
        spec = layers[name]
        values = (
            sum(shape.numel() * dtype.itemsize for shape, dtype in states(spec))
            if isinstance(spec, MambaSpec)
            else found
        )
        expect(
            found == values and all(len(part) == blocks for part in parts[name]),
            f"{what} views {found} bytes of a block of {name}, which has {values}",
        )
    for block, name in owners.items():
        for index, part in enumerate(parts[name]):
            part[block] = 1 + (block + index) % 100
    for block, name in owners.items():
        for index, part in enumerate(parts[name]):
            wrong = int((part[block] != 1 + (block + index) % 100).sum())
            expect(not wrong, f"{what}: {wrong} values of block {block} of {name} were overwritten")


def states(spec: MambaSpec) -> list[tuple[torch.Size, torch.dtype]]:
    """The parts of a state."""
    return [(torch.Size(shape), dtype) for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)]


def scheduler_of(layers: dict[str, KVCacheSpec], budget: int, longest_chunk: int = 0) -> Scheduler:
    """Upstream's scheduler for these layers, by so many tokens a step, and of one prompt at most."""
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=4, max_num_batched_tokens=budget, max_model_len=LONGEST, is_encoder_decoder=False,
            long_prefill_token_threshold=longest_chunk,
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        device_config=DeviceConfig("cpu"),
    )  # fmt: skip
    config.cache_config.mamba_cache_mode = "align"
    config.model_config = Model(architectures=[""], max_model_len=LONGEST, runner_type="generate")  # type: ignore[assignment]
    plan = plan_of(layers)
    config.cache_config.num_gpu_blocks = plan.num_blocks
    scheduler_block, hash_block = resolve_kv_cache_block_sizes(plan, config)
    init_none_hash(sha256)
    return Scheduler(
        vllm_config=config,
        kv_cache_config=plan,
        structured_output_manager=mock.MagicMock(**{"should_advance.return_value": False}),
        block_size=scheduler_block,
        hash_block_size=hash_block,
    )


def request(name: str, tokens: int, answer: int = 1) -> Request:
    """A request for so many tokens; all begin alike."""
    return Request(
        request_id=name,
        prompt_token_ids=list(range(tokens)),
        sampling_params=SamplingParams(max_tokens=answer),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


def report(scheduler: Scheduler, planned: Any) -> None:
    """Tell the scheduler that each request that is through with its prompt has one more token."""
    names = list(planned.num_scheduled_tokens)
    sampled = [[] if scheduler.requests[name].is_prefill_chunk else [7] for name in names]
    rows = {name: row for row, name in enumerate(names)}
    scheduler.update_from_output(planned, ModelRunnerOutput(names, rows, sampled))


def serve(scheduler: Scheduler, one: Request) -> int:
    """Serve one request to its end; returns how many of its tokens were found in the prefix cache."""
    scheduler.add_request(one)
    found = 0
    for step in range(LONGEST):
        planned = scheduler.schedule()
        expect(bool(planned.num_scheduled_tokens), f"no token of a prompt is scheduled in step {step}")
        if not step:
            found = planned.scheduled_new_reqs[0].num_computed_tokens
        report(scheduler, planned)
        if not scheduler.has_unfinished_requests():
            return found
    raise ValueError("a request is not finished")


def check_prefix_hits() -> None:
    """Mamba's states have to be kept where a hit of all groups can end, and no prompt waits for that."""
    several, few = 5 * BLOCK + 3, BLOCK + 3  # tokens: of several blocks, of less than a drafter's page
    for what, drafter, step in (("of the target's dtype", FP8, 1), ("with larger pages", BF16, 2)):
        layers: dict[str, KVCacheSpec] = {
            name: replace(spec, mamba_cache_mode="align") if isinstance(spec, MambaSpec) else spec
            for name, spec in hybrid(FP8, drafter).items()
        }
        for blocks in range(2, 8):
            for budget, longest_chunk in ((several, 0), (few, 0), (several, few)):
                scheduler = scheduler_of(layers, budget, longest_chunk)
                serve(scheduler, request("first", blocks * BLOCK + 5))
                found = serve(scheduler, request("second", blocks * BLOCK + 5)) // BLOCK
                expect(
                    found >= blocks // step * step,
                    f"drafter {what}: {found} of {blocks} blocks are found again, by {budget} tokens a step, "
                    f"{longest_chunk or budget} of a prompt",
                )
        scheduler = scheduler_of(layers, 2 * BLOCK)
        scheduler.add_request(request("decoding", 5, answer=50))
        report(scheduler, scheduler.schedule())
        scheduler.add_request(request("waiting", 7 * BLOCK))
        for _ in range(7):
            planned = scheduler.schedule()
            expect(
                planned.num_scheduled_tokens.get("waiting"),
                f"drafter {what}: a prompt waits for as long as another request decodes beside it",
            )
            report(scheduler, planned)


def probe() -> None:
    """Controls first, so that a defect is reported only by a probe whose healthy cases hold."""
    for what, layers, most in CONTROLS:
        check(f"control, {what}", layers, most)
        largest = max(spec.page_size_bytes for spec in layers.values())
        pages = {spec.page_size_bytes for spec in unify_kv_cache_spec_page_size(dict(layers)).values()}
        expect(pages == {largest}, f"control, {what}: pages of {pages} bytes instead of {largest}")
    expect(
        "cannot be padded" in refused(unpadded(MIXED[0][1])), "pages that cannot be padded are not refused"
    )
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
    # So many windows lose more by an eighth each than one NVFP4 layer by its padding.
    many = unify_kv_cache_spec_page_size(model((1, full(NVFP4)), (8, windowed(BF16))))
    windows = [spec for spec in many.values() if isinstance(spec, SlidingWindowSpec)]
    expect(
        {bytes_a_token(spec) for spec in windows} == {bytes_a_token(windowed(BF16))},
        "eight 16-bit windows are padded for one NVFP4 layer, and lose more than it gains",
    )
    for pair in HYBRID:
        check_hybrid(*pair)
    check_prefix_hits()
