"""Does the Triton attention backend of 0.33.0 serve an NVFP4 KV cache where FlashInfer cannot?

The kernels are asked by `checks`, for all releases. Here: what lies where in a page, by FlashInfer's own
views of it; memory as the engine plans and allocates it, in every layout; and which backend is picked, on
every family of cards: FlashInfer wherever it can read the cache, Triton where it cannot.

Controls, true of every tree: unquantised and other quantised caches, and FlashInfer's choices for them.
`flashinfer` is not installed here; its module has a stand-in while vLLM's is imported.
"""

# ruff: noqa: SLF001 - FlashInfer's views are private to its backend

from __future__ import annotations

import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from unittest import mock

import torch
from standins import import_platform_and_flashinfer_backend

flashinfer: Any = import_platform_and_flashinfer_backend()  # `pages` takes its views

from attending import Shape, empty, write  # noqa: E402
from checks import HEADS, MODES, check_controls, check_kernels, coded, hard_values, spec  # noqa: E402
from pages import packed  # noqa: E402
from probekit import expect  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402
from vllm.v1.attention.backends import triton_attn  # noqa: E402
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend  # noqa: E402
from vllm.v1.attention.selector import AttentionSelectorConfig  # noqa: E402
from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups, get_kv_cache_groups  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec, iter_layer_specs  # noqa: E402
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402
from vllm.v1.worker.utils import allocate_kv_cache, customize_attention_spec  # noqa: E402

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheSpec

TRITON, FLASHINFER = "TRITON_ATTN", "FLASHINFER"
OFF_SM100 = ((8, 0), (8, 9), (9, 0), (12, 0), (12, 1))
GEMMA_4 = (
    Shape(queries=(30, 18), lengths=(37, 20), image=(4, 17), window=8, clamped=True),
    Shape(
        queries=(30, 18), lengths=(37, 20), image=(4, 17), window=8, clamped=True, layout="HND", head_size=128
    ),
)


class Choice(NamedTuple):
    """A layer that a backend is picked for, on a card where XQA can be had or not, or is turned off."""

    capability: tuple[int, int]
    first: str | None  # the backend to be picked
    config: dict[str, Any]
    xqa: bool = True
    asked: bool | None = None  # `--attention-config.use_trtllm_attention`


def nvfp4(
    capability: tuple[int, int],
    first: str | None,
    *,
    xqa: bool = True,
    asked: bool | None = None,
    **config: Any,
) -> Choice:
    """A choice for an NVFP4 cache."""
    return Choice(capability, first, {"kv_cache_dtype": "nvfp4", **config}, xqa, asked)


# Drafts that attend to each other, as DFlash's do.
DRAFTS: dict[str, Any] = {"use_non_causal": True}
SERVED_BY_FLASHINFER = (
    *(nvfp4(card, FLASHINFER, head_size=size) for card in OFF_SM100 for size in (128, 256, 512)),
    *(nvfp4((12, 1), FLASHINFER, head_size=size, **DRAFTS) for size in (128, 256)),
    nvfp4((10, 0), FLASHINFER),
    nvfp4((12, 1), FLASHINFER, has_sliding_window=True),
    nvfp4((10, 0), FLASHINFER, **DRAFTS),
    Choice((12, 1), "FLASH_ATTN", {"kv_cache_dtype": "auto"}),
    Choice((12, 1), FLASHINFER, {"kv_cache_dtype": "fp8", **DRAFTS}, xqa=False),
)
LEFT_TO_TRITON = (
    *(nvfp4(card, TRITON, head_size=64) for card in OFF_SM100),
    *(nvfp4(card, TRITON, head_size=64, has_sink=True, has_sliding_window=True) for card in OFF_SM100),
    *(nvfp4(card, TRITON, has_sink=True) for card in OFF_SM100),
    *(nvfp4(card, TRITON, head_size=256, use_mm_prefix=True) for card in (*OFF_SM100, (10, 0))),
    *(nvfp4(card, TRITON, use_batch_invariant=True) for card in OFF_SM100),
    *(nvfp4(card, TRITON, dtype=torch.float32) for card in OFF_SM100),
    *(nvfp4(card, TRITON, head_size=96) for card in OFF_SM100),
    # Drafts over NVFP4: FlashInfer reads them by XQA alone, which has no heads of 512.
    *(nvfp4(card, TRITON, **DRAFTS) for card in ((8, 0), (8, 9), (9, 0))),
    *(nvfp4(card, TRITON, xqa=False, **DRAFTS) for card in ((12, 0), (12, 1))),
    nvfp4((12, 1), TRITON, asked=False, **DRAFTS),
    nvfp4((12, 1), TRITON, head_size=512, **DRAFTS),
)
LEFT_TO_NOBODY = (
    nvfp4((12, 1), None, use_mla=True),
    Choice((12, 1), None, {"kv_cache_dtype": "nvfp4_4over6"}),
)


def backends(choice: Choice) -> list[str]:
    """Names of the backends that vLLM may pick for a decoder, best first."""
    defaults: dict[str, Any] = {"head_size": 128, "dtype": torch.bfloat16, "block_size": None}
    config = AttentionSelectorConfig(**(defaults | choice.config))
    capability = DeviceCapability(*choice.capability)
    serving = SimpleNamespace(
        attention_config=SimpleNamespace(use_trtllm_attention=choice.asked), model_config=None
    )
    card = mock.Mock(
        is_device_capability_family=lambda family: family // 10 == capability.major,
        is_device_capability=lambda wanted: wanted == capability.to_int(),
    )
    platform = sys.modules["vllm.platforms.cuda"].CudaPlatformBase
    with (
        mock.patch.object(flashinfer, "current_platform", card),
        mock.patch.object(flashinfer, "supports_trtllm_attention", return_value=choice.xqa),
        mock.patch("vllm.config.get_current_vllm_config", return_value=serving),
    ):
        found, _ = platform.get_valid_backends(capability, config)
    return [candidate.backend.name for candidate in found]


def check_choices(choices: tuple[Choice, ...]) -> None:
    """The wanted backend is picked, and none that would fail later comes before it."""
    for choice in choices:
        names = backends(choice)
        first = names[0] if names else None
        expect(first == choice.first, f"{choice.config} on {choice.capability}: {names} claim it")


def check_heads() -> None:
    """The Triton backend says which heads it cannot have."""
    for head_size, dtype, fits in HEADS:
        config = {"head_size": head_size, "dtype": dtype, "use_mm_prefix": True}
        found = TRITON in backends(nvfp4((12, 1), None, **config))
        expect(found == fits, f"heads of {head_size} in {dtype} are {'taken' if found else 'refused'}")


def published(cache_dtype: str, **more: Any) -> FullAttentionSpec:
    """Return the specification of the cache of a layer with eight heads of 128 on the Triton backend."""
    return cast(
        "FullAttentionSpec", customize_attention_spec(TritonAttentionBackend, spec(cache_dtype, **more))
    )


def check_page_sizes() -> None:
    """NVFP4 pages have 4.5 bits a value, and FlashInfer's shape: layers of both can share memory."""
    sizes = {name: published(name).page_size_bytes for name in MODES}
    expect(sizes["nvfp4"] == 2 * 16 * 8 * 72, f"a page of NVFP4 has {sizes['nvfp4']} bytes")
    expect(sizes["auto"] * 9 == sizes["nvfp4"] * 32, "NVFP4 does not hold 3.56 times the tokens of 16 bits")
    expect(sizes["fp8"] * 9 == sizes["nvfp4"] * 16, "NVFP4 does not hold 1.78 times the tokens of FP8")
    theirs = flashinfer.FlashInferBackend.customize_spec(spec("nvfp4"))
    expect(published("nvfp4") == theirs, f"FlashInfer's pages are {theirs}")
    twice = published("nvfp4", head_size_v=128)
    expect(twice == published("nvfp4"), "pages depend on whether the size of V is named")
    with suppress(ValueError):
        wrong = published("nvfp4", head_size_v=64)
        expect(False, f"K and V of two sizes get {wrong}")  # noqa: FBT003


def planned(layers: dict[str, KVCacheSpec], layout: KVCacheLayout) -> dict[str, torch.Tensor]:
    """The views that the engine plans and allocates for these layers."""
    config: Any = SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=8,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        kv_transfer_config=None,
        speculative_config=None,
    )
    groups = get_kv_cache_groups(config, dict(layers))
    plan = get_kv_cache_config_from_groups(config, groups, available_memory=1 << 30)
    for group in plan.kv_cache_groups:
        for one in iter_layer_specs(group.kv_cache_spec):
            expect(one.kv_quant_mode == next(iter(layers.values())).kv_quant_mode, "a layer lost its mode")
    return allocate_kv_cache(plan, torch.device("cpu"), layout)


def check_memory() -> None:
    """In memory that the engine allocates, each block of a layer takes what is written, and no other byte.

    Layouts that put layers or blocks between the heads of a page are refused, as by FlashInfer.
    """
    window = customize_attention_spec(
        TritonAttentionBackend,
        SlidingWindowSpec(
            block_size=16, num_kv_heads=8, head_size=128, dtype=torch.uint8, kv_quant_mode=MODES["nvfp4"],
            sliding_window=32,
        ),
    )  # fmt: skip
    layers: dict[str, KVCacheSpec] = {f"full.{i}": published("nvfp4") for i in range(2)}
    layers |= {f"window.{i}": window for i in range(2)}
    heads = hard_values(128).to(torch.bfloat16)
    key = torch.stack([heads.roll(i, 0) for i in range(8)], dim=1)
    value = key.flip(0) * 0.25
    for layout in KVCacheLayout:
        caches = planned(layers, layout)
        dense = layout.is_block_compact
        for name, cache in caches.items():
            scene = empty(Shape(head_size=128, kv_heads=8, heads=8, dtype=torch.bfloat16), blocks=1)
            scene.cache = cache
            scene.layer._k_scale = scene.layer._v_scale = torch.tensor(1.0)
            slots = torch.randperm(8 * 16)[: len(heads)]
            everything = torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage())
            everything.zero_()
            try:
                write(scene, key, value, slots)
            except ValueError as refusal:
                expect(not dense and "dense" in str(refusal), f"{layout.name}, {name}: {refusal}")
                expect(not everything.any(), f"{layout.name}, {name}: bytes were written before the refusal")
                continue
            expect(dense, f"{layout.name}, {name}: pages were written to that are not dense")
            written = everything.clone()
            codes, scales = packed(cache)
            block, slot = slots // 16, slots % 16
            for x, code, scale in zip((key, value), codes, scales, strict=True):
                right, wanted = coded(x, torch.tensor(1.0))
                known = ~x.unflatten(-1, (-1, 16)).isnan().any(-1)
                same = (code[block, slot] == right) | ~known.repeat_interleave(8, -1)
                expect(same.all(), f"{layout.name}, {name}: codes are not where FlashInfer has them")
                right_scales = scale[block, slot].view(torch.uint8) == wanted
                expect(right_scales.all(), f"{layout.name}, {name}: scales are not where FlashInfer has them")
                code[block, slot] = 0
                scale.view(torch.uint8)[block, slot] = 0
            expect(written.any() and not everything.any(), f"{layout.name}, {name}: other bytes were written")


def check_composites() -> None:
    """No backend that has Triton and FlashInfer in it reads one's scales as the other's."""
    from vllm.v1.attention.backends import triton_flashinfer

    card = mock.Mock(is_device_capability_family=lambda family: family == 100)
    with (
        mock.patch.object(flashinfer, "current_platform", card),
        mock.patch.object(flashinfer, "supports_trtllm_attention", return_value=True),
    ):
        backend = triton_flashinfer.TritonFlashInferBackend
        expect(backend.supports_kv_cache_dtype("fp8"), "the composite refuses FP8")
        expect(
            not backend.supports_kv_cache_dtype("nvfp4"),
            "the composite takes NVFP4, which its parts swizzle apart",
        )


def check_builder() -> None:
    """The metadata of each step has NVFP4's buffers, also on the card that upstream has others for."""
    card = mock.Mock(
        is_cuda=lambda: True,
        is_device_capability=lambda wanted: wanted == (12, 0),
        num_compute_units=lambda *_: 188,
    )
    config: Any = SimpleNamespace(
        model_config=mock.Mock(
            dtype=torch.bfloat16,
            rswa_window=None,
            get_num_kv_heads=lambda _: 8,
            get_head_size=lambda: 128,
        ),
        parallel_config=None,
        compilation_config=SimpleNamespace(cudagraph_mode=None),
        scheduler_config=SimpleNamespace(max_num_seqs=64),
        speculative_config=None,
    )
    step: Any = SimpleNamespace(
        num_reqs=64, num_actual_tokens=64, max_query_len=1, max_seq_len=100, query_start_loc=None,
        seq_lens=torch.ones(64), block_table_tensor=None, slot_mapping=None, causal=True,
        mm_req_doc_ranges=None, rswa_prefix_lens=None,
    )  # fmt: skip
    with (
        mock.patch.object(triton_attn, "current_platform", card),
        mock.patch.object(triton_attn, "get_num_attention_heads_from_layers", return_value=32),
    ):
        wanted = [torch.empty(7, 32, 128), torch.empty(7), torch.empty(7)]
        with mock.patch.object(triton_attn, "nvfp4_segment_buffers", return_value=tuple(wanted)):
            builder = triton_attn.TritonAttentionMetadataBuilder(
                published("nvfp4"), [], config, torch.device("cpu")
            )
        found = builder.build(0, step)
    given = [found.softmax_segm_output, found.softmax_segm_max, found.softmax_segm_expsum]
    same = all(one is other for one, other in zip(given, wanted, strict=True))
    expect(same, f"a step has buffers of {[tuple(one.shape) for one in given]}")


def probe() -> None:
    """Controls first; then the backend is asked for, and only then used."""
    check_choices(SERVED_BY_FLASHINFER)
    check_choices(LEFT_TO_NOBODY)
    check_controls()
    check_choices(LEFT_TO_TRITON)
    check_heads()
    check_composites()
    check_page_sizes()
    check_memory()
    check_builder()
    check_kernels(*GEMMA_4)
