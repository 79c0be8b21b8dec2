"""Does the Triton attention backend write and read an NVFP4 KV cache, and is it picked for one?

The kernels are asked by `checks`, for all releases. Here: upstream's views, sizes of pages, which backend
is picked, and the caches of both model runners.

Controls, true of every tree: page sizes, unquantised and other quantised caches, and which backend is
picked for them. `flashinfer` is not installed here; its module has a stand-in while vLLM's is imported.
"""

# ruff: noqa: SLF001 - what the runners keep to themselves is in question here

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import torch
from checks import HEADS, LAYOUTS, MODES, check_controls, check_kernels, spec
from probekit import expect
from standins import import_platform_and_flashinfer_backend
from vllm.platforms.interface import DeviceCapability
from vllm.utils.torch_utils import nvfp4_kv_cache_split_views
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.attention.backends.utils import set_kv_cache_layout
from vllm.v1.attention.selector import AttentionSelectorConfig
from vllm.v1.core.kv_cache_utils import unify_hybrid_kv_cache_specs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVQuantMode,
    SlidingWindowSpec,
)
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.utils import AttentionGroup


def check_views() -> None:
    """Upstream's views of codes and scales share no byte and leave none out, in both layouts."""
    for layout in LAYOUTS:
        cache = torch.zeros(3, 2, 16, 2, 72, dtype=torch.uint8)
        if layout == "HND":
            cache = torch.zeros(3, 2, 2, 16, 72, dtype=torch.uint8).transpose(2, 3)
        views = [view.view(torch.uint8) for pair in nvfp4_kv_cache_split_views(cache) for view in pair]
        for view in views:
            view.fill_(1)
        expect(cache.all(), f"{layout}: some bytes of a page belong to no view")
        expect(sum(view.numel() for view in views) == cache.numel(), f"{layout}: views overlap")


def check_page_sizes() -> None:
    """NVFP4 pages have 4.5 bits a value: 32/9 times the tokens of 16 bits, 16/9 times those of FP8."""
    sizes = {name: spec(name).page_size_bytes for name in MODES}
    expect(sizes["nvfp4"] == 2 * 16 * 8 * 72, f"a page of NVFP4 has {sizes['nvfp4']} bytes")
    expect(sizes["auto"] * 9 == sizes["nvfp4"] * 32, "NVFP4 does not hold 3.56 times the tokens of 16 bits")
    expect(sizes["fp8"] * 9 == sizes["nvfp4"] * 16, "NVFP4 does not hold 1.78 times the tokens of FP8")


def backends(
    capability: tuple[int, int],
    kv_cache_dtype: str,
    head_size: int = 128,
    dtype: torch.dtype = torch.bfloat16,
) -> list[str]:
    """Names of the backends that vLLM may pick for a decoder, best first."""
    config = AttentionSelectorConfig(
        head_size=head_size,
        dtype=dtype,
        kv_cache_dtype=cast("Any", kv_cache_dtype),
        block_size=None,
    )
    platform = sys.modules["vllm.platforms.cuda"].CudaPlatformBase
    found, _ = platform.get_valid_backends(DeviceCapability(*capability), config)
    return [candidate.backend.name for candidate in found]


def check_selection_of_others() -> None:
    """FlashInfer keeps what it can serve, and Triton what it has served."""
    for capability in ((9, 0), (12, 1)):
        for kv_cache_dtype in ("auto", "fp8"):
            names = backends(capability, kv_cache_dtype)
            expect({"FLASHINFER", "TRITON_ATTN"} <= {*names}, f"{capability}, {kv_cache_dtype}: {names}")
    expect(backends((10, 0), "nvfp4")[:1] == ["FLASHINFER"], "FlashInfer is not picked for NVFP4 on SM100")
    expect("TRITON_ATTN" not in backends((9, 0), "turboquant_4bit_nc"), "Triton claims what it cannot read")


def check_selection() -> None:
    """Triton is what is left for NVFP4 off SM100, and it says which heads it cannot have."""
    for capability in ((8, 0), (8, 9), (9, 0), (12, 0), (12, 1)):
        names = backends(capability, "nvfp4")
        expect("TRITON_ATTN" in names, f"{capability}: the Triton backend refuses an NVFP4 cache")
        expect(names == ["TRITON_ATTN"], f"{capability}: {names} claim NVFP4, the first would fail later")
    for head_size, dtype, fits in HEADS:
        found = "TRITON_ATTN" in backends((12, 1), "nvfp4", head_size, dtype)
        expect(found == fits, f"heads of {head_size} in {dtype} are {'taken' if found else 'refused'}")


def check_runners() -> None:
    """In both model runners a layer that stays unquantised beside NVFP4 gets a cache of its own shape."""
    kinds = {"packed": spec("nvfp4"), "skipped": spec("auto")}
    memory = {name: torch.zeros(3 * kind.page_size_bytes, dtype=torch.int8) for name, kind in kinds.items()}
    groups = [AttentionGroup(TritonAttentionBackend, [name], kind, 0) for name, kind in kinds.items()]
    config: Any = SimpleNamespace(kv_cache_tensors=[])
    v1: Any = SimpleNamespace(
        kv_cache_config=config,
        runner_only_attn_layers=set(),
        cache_config=SimpleNamespace(cache_dtype="nvfp4"),
        _kv_cache_spec_attn_group_iterator=lambda: iter(groups),
    )
    wanted = {"packed": (3, 2, 16, 8, 72), "skipped": (3, 2, 16, 8, 128)}
    for layout in LAYOUTS:
        set_kv_cache_layout(cast("Any", layout))
        for runner, reshape in (
            ("V1", lambda: GPUModelRunner._reshape_kv_cache_tensors(v1, memory, [16])),
            ("V2", lambda: attn_utils._reshape_kv_cache(groups, memory, "nvfp4", [16], {}, config)),
        ):
            shapes: object
            try:
                shapes = {name: tuple(cache.shape) for name, cache in reshape().items()}
            except RuntimeError as error:
                shapes = error
            expect(shapes == wanted, f"runner {runner}, {layout}: caches have the shapes {shapes}")


def check_converted_specs() -> None:
    """Layers with local attention keep their mode where the hybrid cache manager is off."""
    size: dict[str, Any] = {"block_size": 16, "num_kv_heads": 8, "head_size": 128, "dtype": torch.uint8}
    mode = KVQuantMode.NVFP4
    sliding = SlidingWindowSpec(**size, kv_quant_mode=mode, sliding_window=32)
    local = ChunkedLocalAttentionSpec(**size, kv_quant_mode=mode, attention_chunk_size=32)
    for other in (sliding, local):
        specs: dict[str, Any] = {"full": FullAttentionSpec(**size, kv_quant_mode=mode), "other": other}
        unify_hybrid_kv_cache_specs(specs)
        sizes = {name: one.page_size_bytes for name, one in specs.items()}
        expect(len({*sizes.values()}) == 1, f"pages of one pool have the sizes {sizes}")


def probe() -> None:
    """Controls first; then the backend is asked for, and only then used."""
    import_platform_and_flashinfer_backend()
    check_views()
    check_page_sizes()
    check_selection_of_others()
    check_controls()
    check_selection()
    check_runners()
    check_converted_specs()
    check_kernels()
    set_kv_cache_layout(None)
