"""Is the cache of a drafter's windows padded beside a hybrid target, whose blocks have odd sizes?

FlashInfer's kernels take blocks of 16, 32 or 64 tokens. `Attention.get_kv_cache_spec` chooses one for
layers with windows, and upstream's planning makes pages equal: it gives a layer more tokens a block where
its page divides the largest, and pads its page to that one otherwise. Real layers, backends and planning
are asked here, for the blocks that hybrid models get.

Controls: blocks of 1600 and 1664 tokens, backends that take any block, layers whose page divides in no
way, layers that share a padded page, and a model without states.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from probekit import expect
from vllm.model_executor.layers.attention.attention import Attention
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core.kv_cache_planning import unify_kv_cache_spec_page_size
from vllm.v1.kv_cache_interface import MambaSpec

WINDOW = 2048
ODD = (528, 784, 1056, 1568, 1632, 1648, 2096)  # tokens of a hybrid model's block
EVEN = (1600, 1664)


class StandIn(ModuleType):
    """A module of the package flashinfer, which is not installed here."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, loader=None, is_package=True)

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def flashinfer() -> Any:
    """Return upstream's backend, imported with stand-ins for the package that it wraps."""
    importlib.import_module(
        "vllm.utils.flashinfer"
    )  # asks whether there is the package: without its stand-in
    names = [f"flashinfer{part}" for part in ("", ".decode", ".prefill", ".utils")]
    sys.modules.update({name: StandIn(name) for name in names})
    try:
        return importlib.import_module("vllm.v1.attention.backends.flashinfer").FlashInferBackend
    finally:
        for name in names:
            del sys.modules[name]


def layer(backend: Any, heads: int, head_size: int, cache: str = "fp8", window: int | None = None) -> Any:
    """Return a layer of attention as its constructor leaves it, but for weights and kernels."""
    made = object.__new__(Attention)
    made.__dict__.update(
        attn_type=AttentionType.DECODER, kv_cache_dtype=cache, sliding_window=window, attn_backend=backend,
        num_kv_heads=heads, head_size=head_size, head_size_v=head_size,
        kv_cache_torch_dtype=torch.bfloat16 if cache == "auto" else torch.uint8,
    )  # fmt: skip
    return made


def serving(block: int, page: int | None, shared: int | None = None) -> Any:
    """Return what layers read of the configuration."""
    return SimpleNamespace(
        cache_config=SimpleNamespace(
            block_size=block, mamba_page_size_padded=page, skip_page_size_padded=shared
        )
    )


def planned(backend: Any, block: int, drafter: Any, *, unpadded: bool = False) -> tuple[int, Any]:
    """Return the block that a drafter's layer chooses beside Qwen3.6-27B in FP8, and its spec as planned.

    With *unpadded* a state fills the target's page.
    """
    target = layer(backend, 4, 256).get_kv_cache_spec(serving(block, None))
    page = target.page_size_bytes
    own = drafter.get_kv_cache_spec(serving(block, None if unpadded else page))
    state = MambaSpec(
        block_size=block,
        shapes=((page - 4096,),),
        dtypes=(torch.uint8,),
        page_size_padded=page,
        mamba_cache_mode="align",
    )
    specs = unify_kv_cache_spec_page_size({"full": target, "state": state, "window": own})
    expect(
        len({spec.page_size_bytes for spec in specs.values()}) == 1,
        f"blocks of {block}: pages of several sizes",
    )
    return own.block_size, specs["window"]


def check(what: str, backend: Any, block: int, drafter: Any, **more: bool) -> int:
    """Hold the drafter's page against its values; returns the block that it chooses."""
    chosen, spec = planned(backend, block, drafter, **more)
    times = spec.page_size_bytes / spec.real_page_size_bytes
    expect(times == 1, f"{what}, blocks of {block}: a page is {times:.2f} times its values")
    return chosen


def probe() -> None:
    """Check the controls first."""
    backend = flashinfer()
    expect(
        set(backend.get_supported_kernel_block_sizes()) == {16, 32, 64},
        "FlashInfer's kernels take other blocks",
    )
    dflash = layer(backend, 8, 128, window=WINDOW)  # as many bytes a token as the target's
    for block in EVEN:
        chosen = check("FlashInfer", backend, block, dflash)
        expect(chosen == 64, f"blocks of {block}: the drafter's are {chosen}")
    for block in (*ODD, *EVEN):
        chosen = check("Triton", backend, block, layer(TritonAttentionBackend, 8, 128, window=WINDOW))
        expect(chosen == block, f"Triton, blocks of {block}: the drafter's are {chosen}")
        chosen, _ = planned(
            backend, block, layer(backend, 6, 128, window=WINDOW)
        )  # three quarters of the bytes
        expect(chosen == 64, f"a page that divides in no way, blocks of {block}: the drafter's are {chosen}")
    shared = dflash.get_kv_cache_spec(serving(1648, 1648 * 4096, 1648 * 4096))
    expect(
        (shared.block_size, shared.page_size_bytes) == (64, 1648 * 4096),
        f"a shared page: {shared.block_size} tokens",
    )
    stateless = layer(backend, 8, 128, "auto", WINDOW)
    for block in (16, 32, 64, 128):
        chosen = stateless.get_kv_cache_spec(serving(block, None)).block_size
        expect(chosen == min(block, 64), f"without states, blocks of {block}: the drafter's are {chosen}")
    for block in ODD:
        check("FlashInfer", backend, block, dflash)
        check("FlashInfer, a state that fills a page", backend, block, dflash, unpadded=True)
        check("FlashInfer, half the bytes a token", backend, block, layer(backend, 4, 128, window=WINDOW))
    for block in (48, 96):
        chosen = stateless.get_kv_cache_spec(serving(block, None)).block_size
        expect(chosen == block // 3, f"without states, blocks of {block}: the drafter's are {chosen}")
