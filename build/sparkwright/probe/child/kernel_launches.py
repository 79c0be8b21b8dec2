"""The launches that the recipes' backends may choose on a GB10, asked of upstream's own wrappers.

Shapes are those of the recipes' models: heads of 64 to 512, latents of 512 + 64 and 256 + 64, 0 to 16
drafts, caches of 16 bits, FP8 and NVFP4, the delta net of Qwen3.5 to 3.8, Mamba 2 of Nemotron, experts in
16 bits and FP8. Tensors are on the CPU and empty: what a wrapper launches hangs on shapes and types.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BF16, FP8, F32, I32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int32
# Query heads, KV heads, head size.
ATTENTION = ((64, 8, 64), (40, 8, 80), (32, 8, 96), (32, 8, 128), (24, 8, 192), (24, 4, 256), (32, 4, 512))
LATENTS = ((512, 64, 16), (512, 64, 128), (256, 64, 32))  # and query heads
STEPS = {  # requests, and tokens of each
    "decode": (2, 1), "decode of many": (160, 1), "4 drafts": (2, 5), "7 drafts": (64, 8),
    "16 drafts": (2, 17), "16 drafts of many": (64, 17), "prefill": (1, 2000),
}  # fmt: skip
ENDS = ("decode", "16 drafts", "prefill")  # of shapes that few recipes have
COMMON = (64, 128, 256)  # head sizes
FEATURES = {
    "window, sinks": ("decode", "prefill"),
    "softcap": ("decode", "prefill"),
    "not causal": ("16 drafts",),
    "not causal, window": ("7 drafts", "16 drafts of many"),
}
DELTA_NETS = ((16, 48, 128, 10240), (16, 32, 128, 8192))  # key heads, value heads, head size, convolution
MAMBAS = ((64, 64, 128, 8, 6144), (128, 64, 128, 8, 10240))  # heads, head size, state, groups, convolution
EXPERTS = ((256, 512, 2048, 8), (128, 704, 2816, 8))  # experts, their size, model's size, chosen
BLOCK = 16


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Return a tensor of that shape, whose pages are not touched where it is large."""
    return torch.zeros(*shape, dtype=torch.uint8 if dtype == FP8 else dtype).view(dtype)


def named(module: str, *elsewhere: str) -> Any:
    """Return the first of these modules that this release has."""
    for one in (module, *elsewhere):
        try:
            return importlib.import_module(one)
        except ModuleNotFoundError as error:
            if not one.startswith(str(error.name)):
                raise
    raise ModuleNotFoundError(module)


def called(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call *function* with those of *options* that it has in this release."""
    known = inspect.signature(function).parameters
    return function(*args, **{name: value for name, value in options.items() if name in known})


def attend(shape: tuple[int, int, int], step: tuple[int, int], cache: str, feature: str) -> None:
    """Read the cache of one layer as `TRITON_ATTN` does."""
    ops = named("vllm.v1.attention.ops.triton_unified_attention")
    heads, kv_heads, size = shape
    requests, queries = step
    rows, segments = requests * queries, 16
    dtype = FP8 if cache == "fp8" else BF16
    query = empty(rows, heads, size)
    output = empty(rows, heads, segments, 1 << (size - 1).bit_length(), dtype=F32)
    best, total = empty(rows, heads, segments, dtype=F32), empty(rows, heads, segments, dtype=F32)
    options: dict[str, Any] = {}
    if cache == "nvfp4":
        nvfp4 = named("vllm.v1.attention.ops.triton_nvfp4_kv")
        key, value = nvfp4.nvfp4_code_views(empty(16, 2, BLOCK, kv_heads, size * 9 // 16, dtype=torch.uint8))
        output, best, total = nvfp4.nvfp4_segment_buffers(heads, size, BF16, torch.device("cpu"))
        options["kv_quant_mode"] = named("vllm.v1.kv_cache_interface").KVQuantMode.NVFP4
    elif side_by_side():
        pages = empty(16, kv_heads, BLOCK, 2 * size, dtype=dtype).transpose(1, 2)
        key, value = pages.split(size, dim=-1)
    else:
        key, value = empty(16, 2, BLOCK, kv_heads, size, dtype=dtype).unbind(1)
    causal = "not causal" not in feature
    window = 127 if "window" in feature else -1
    ops.unified_attention(
        query, key, value, torch.zeros_like(query), cu_seqlens_q=torch.arange(requests + 1,
        dtype=I32) * queries, max_seqlen_q=queries, seqused_k=torch.full((requests,), 256, dtype=I32),
        max_seqlen_k=256, softmax_scale=0.1, causal=causal, window_size=(window,
        window if not causal else min(window, 0)), block_table=torch.zeros(requests, 16, dtype=I32),
        softcap=30.0 if "softcap" in feature else 0, q_descale=None, k_descale=torch.ones(()),
        v_descale=torch.ones(()), seq_threshold_3D=128 // kv_heads, num_par_softmax_segments=segments,
        softmax_segm_output=output, softmax_segm_max=best, softmax_segm_expsum=total,
        sinks=empty(heads) if "sinks" in feature else None, **options,
    )  # fmt: skip


def side_by_side() -> bool:
    """Return whether this release has keys and values side by side in a row of the cache (0.26 and later)."""
    backend = named("vllm.v1.attention.backends.triton_attn").TritonAttentionBackend
    shape = getattr(backend, "get_kv_cache_shape", None)
    return shape is None or len(shape(4, BLOCK, 2, 64)) == 4  # noqa: PLR2004 - blocks, heads, tokens, both


def attend_latent(
    shape: tuple[int, int, int], step: tuple[int, int], cache: torch.dtype, context: int
) -> None:
    """Read a latent cache as `TRITON_MLA` does."""
    latent, rope, heads = shape
    requests, queries = step
    layer = object.__new__(named("vllm.v1.attention.backends.mla.triton_mla").TritonMLAImpl)
    layer.__dict__.update(num_heads=heads, kv_lora_rank=latent, scale=0.1, _sm_count=48, dcp_world_size=1)
    decode = SimpleNamespace(
        block_table=torch.zeros(requests, 16, dtype=I32), seq_lens=torch.full((requests,), 256, dtype=I32)
    )
    layer.forward_mqa(
        empty(requests * queries, heads, latent + rope), empty(16, BLOCK, latent + rope, dtype=cache),
        SimpleNamespace(decode=decode, max_seq_len=context, causal=True),
        SimpleNamespace(_k_scale=torch.ones(())),
    )  # fmt: skip


def write(shape: tuple[int, int, int], cache: str) -> None:
    """Write keys and values into the cache of one layer."""
    _, heads, size = shape
    rows = empty(33, heads, size)
    slots = torch.zeros(33, dtype=torch.int64)
    if cache == "nvfp4":
        pages = empty(16, 2, BLOCK, heads, size * 9 // 16, dtype=torch.uint8)
        named("vllm.v1.attention.ops.triton_nvfp4_kv").nvfp4_reshape_and_cache(
            rows, rows, pages, slots, torch.ones(()), torch.ones(())
        )
        return
    key, value = empty(16, 2, BLOCK, heads, size, dtype=FP8 if cache == "fp8" else BF16).unbind(1)
    named("vllm.v1.attention.ops.triton_reshape_and_cache_flash").triton_reshape_and_cache_flash(
        rows, rows, key, value, slots, cache, torch.ones(()), torch.ones(())
    )


def fla(name: str) -> Any:
    """Return a module of the delta net's kernels."""
    return named(
        f"vllm.third_party.flash_linear_attention.ops.{name}", f"vllm.model_executor.layers.fla.ops.{name}"
    )


def delta_prefill(shape: tuple[int, int, int, int], tokens: int) -> None:
    """Run a prefill of the delta net: what follows the convolution, chunks, and the gated norm."""
    key_heads, heads, size, width = shape
    log, bias = empty(heads, dtype=F32), empty(heads, dtype=F32)
    gates = empty(tokens, heads)
    fla("fused_gdn_prefill_post_conv").fused_post_conv_prep(
        empty(tokens, width), gates, gates, log, bias, key_heads, size, size
    )
    short, tall = empty(1, tokens, key_heads, size), empty(1, tokens, heads, size)
    lengths = torch.tensor([0, tokens], dtype=torch.int64)
    called(
        fla("chunk").chunk_gated_delta_rule, short, short, tall, empty(1, tokens, heads, dtype=F32), empty(1,
        tokens, heads), initial_state=empty(1, heads, size, size, dtype=F32), output_final_state=True,
        cu_seqlens=lengths, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    fla("layernorm_guard").rmsnorm_fn(
        empty(tokens * heads, size),
        empty(size, dtype=F32),
        None,
        z=empty(tokens * heads, size),
        eps=1e-6,
        norm_before_gate=True,
    )


def delta_decode(shape: tuple[int, int, int, int], drafts: int) -> None:
    """Run a decode step of the delta net with *drafts*."""
    key_heads, heads, size, width = shape
    requests, queries = 4, drafts + 1
    rows = requests * queries
    state = empty(40, heads, size, size, dtype=F32)
    short, tall = empty(1, rows, key_heads, size), empty(1, rows, heads, size)
    log, bias, gates = empty(heads, dtype=F32), empty(heads, dtype=F32), empty(rows, heads)
    accepted = torch.ones(requests, dtype=I32) if drafts else None
    places = torch.zeros(requests, queries, dtype=I32) if drafts else torch.zeros(requests, dtype=I32)
    starts = torch.arange(requests + 1, dtype=I32) * queries
    fla("fused_sigmoid_gating").fused_sigmoid_gating_delta_rule_update(
        log, gates, gates, bias, short, short, tall, initial_state=state, cu_seqlens=starts,
        ssm_state_indices=places, num_accepted_tokens=accepted, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    fla("fused_recurrent").fused_recurrent_gated_delta_rule(
        short, short, tall, empty(1, rows, heads, dtype=F32), empty(1, rows, heads), initial_state=state,
        cu_seqlens=starts, ssm_state_indices=places, num_accepted_tokens=accepted,
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    if not drafts:
        fla("fused_recurrent").fused_recurrent_gated_delta_rule_packed_decode(
            empty(rows, width),
            gates,
            gates,
            log,
            bias,
            0.1,
            state,
            empty(rows, 1, heads, size),
            places,
            use_qk_l2norm_in_kernel=True,
        )


def convolve(width: int, drafts: int, state_dtype: torch.dtype) -> None:
    """Run the short convolution before a delta net or Mamba: a decode with *drafts*, or a prefill below 0."""
    conv = named("vllm.model_executor.layers.mamba.ops.causal_conv1d")
    weight = empty(width, 4)
    if drafts < 0:
        conv.causal_conv1d_fn(
            empty(2000, width).t(), weight, None, empty(40, 3, width, dtype=state_dtype).transpose(1, 2),
            torch.tensor([0, 2000], dtype=I32), cache_indices=torch.zeros(1, dtype=I32),
            has_initial_state=torch.ones(1, dtype=torch.bool), activation="silu",
        )  # fmt: skip
        return
    requests, queries = 4, drafts + 1
    options: dict[str, Any] = {}
    if drafts:
        options = {
            "num_accepted_tokens": torch.ones(requests, dtype=I32),
            "query_start_loc": torch.arange(requests + 1, dtype=I32) * queries,
            "max_query_len": queries,
        }
    conv.causal_conv1d_update(
        empty(requests * queries, width), empty(40, 3 + drafts, width, dtype=state_dtype).transpose(1, 2),
        weight, None, "silu", conv_state_indices=torch.zeros(requests, dtype=I32), **options,
    )  # fmt: skip


def mamba_prefill(shape: tuple[int, ...], tokens: int, chunk: int) -> None:
    """Run a prefill of Mamba 2."""
    heads, size, state, groups, _ = shape
    chunks = -(-tokens // chunk)
    called(
        named("vllm.model_executor.layers.mamba.ops.ssd_combined").mamba_chunk_scan_combined_varlen,
        empty(tokens, heads, size), empty(tokens, heads), empty(heads, dtype=F32), empty(tokens, groups,
        state), empty(tokens, groups, state), chunk, torch.tensor([0, tokens], dtype=I32),
        torch.arange(chunks + 1, dtype=I32).mul(chunk).clamp(max=tokens), torch.tensor([chunks - 1],
        dtype=I32), torch.zeros(chunks, dtype=I32), empty(tokens, heads, size), D=empty(heads),
        dt_bias=empty(heads), initial_states=empty(1, heads, size, state, dtype=F32), dt_softplus=True,
        state_dtype=F32,
    )  # fmt: skip


def mamba_decode(shape: tuple[int, ...], drafts: int, state_dtype: torch.dtype) -> None:
    """Run a decode step of Mamba 2 with *drafts*."""
    heads, size, state, groups, _ = shape
    requests, queries = 4, drafts + 1
    rows = requests * queries
    options: dict[str, Any] = {}
    places = torch.zeros(requests, queries, dtype=I32) if drafts else torch.zeros(requests, dtype=I32)
    if drafts:
        options = {
            "num_accepted_tokens": torch.ones(requests, dtype=I32),
            "cu_seqlens": torch.arange(requests + 1, dtype=I32) * queries,
            "dst_state_batch_indices": places,
        }
    wide = empty(rows, heads, 1).expand(rows, heads, size)
    per_head = empty(heads, 1, 1, dtype=F32).expand(heads, size, state)
    bias = empty(heads, 1).expand(heads, size)
    named("vllm.model_executor.layers.mamba.ops.mamba_ssm").selective_state_update(
        empty(40, heads, size, state, dtype=state_dtype), empty(rows, heads, size), wide, per_head,
        empty(rows, groups, state), empty(rows, groups, state), bias, bias, dt_softplus=True,
        state_batch_indices=places, out=empty(rows, heads, size), is_blackwell=False, **options,
    )  # fmt: skip


def experts(shape: tuple[int, ...], tokens: int, weights: str) -> None:
    """Run both products of a layer of experts, in the configuration that is chosen for a GB10."""
    moe = named("vllm.model_executor.layers.fused_moe.fused_moe")
    count, size, width, chosen = shape
    quantized = weights != "16 bits"
    blocks = [128, 128] if weights == "FP8 in blocks" else None
    first, second = (count, 2 * size, width), (count, width, size)
    config = moe.try_get_optimal_moe_config(
        first, second, chosen, "fp8_w8a8" if quantized else None, tokens, block_shape=blocks
    )
    dtype = FP8 if quantized else BF16
    for rows, (_, wide, deep), top in ((tokens, first, chosen), (tokens * chosen, second, 1)):
        scales: tuple[Any, Any] = (None, None)
        if quantized:
            scales = (empty(1, dtype=F32), empty(count, dtype=F32))
        if blocks:
            scales = (
                empty(rows, -(-deep // 128), dtype=F32),
                empty(count, -(-wide // 128), -(-deep // 128), dtype=F32),
            )
        slots = max(tokens * chosen, count) * config["BLOCK_SIZE_M"]
        moe.invoke_fused_moe_triton_kernel(
            empty(rows, deep, dtype=dtype), empty(count, wide, deep, dtype=dtype), empty(tokens, chosen,
            wide), *scales, empty(tokens, chosen, dtype=F32), torch.zeros(slots, dtype=I32),
            torch.zeros(slots // config["BLOCK_SIZE_M"], dtype=I32), torch.zeros(1, dtype=I32), top == 1,
            top, config, compute_type=named("triton.language").bfloat16, use_fp8_w8a8=quantized,
            use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False, per_channel_quant=False,
            block_shape=blocks,
        )  # fmt: skip


def multiply_blocks(tokens: int, wide: int, deep: int) -> None:
    """Multiply by a matrix in FP8 with a scale for each block, and quantize what goes in."""
    ops = named("vllm.model_executor.layers.quantization.utils.fp8_utils")
    ops.w8a8_triton_block_scaled_mm(
        empty(tokens, deep, dtype=FP8), empty(wide, deep, dtype=FP8), empty(tokens, deep // 128, dtype=F32),
        empty(-(-wide // 128), deep // 128, dtype=F32), [128, 128], BF16,
    )  # fmt: skip


def sample(requests: int, vocabulary: int) -> None:
    """Apply top-k and top-p to logits."""
    ops = named("vllm.v1.sample.ops.topk_topp_triton")
    top, portion = torch.full((requests,), 40, dtype=I32), torch.full((requests,), 0.9)
    for k, p in ((top, portion), (top, None), (None, portion)):
        ops.apply_top_k_top_p_triton(empty(requests, vocabulary, dtype=F32), k, p)


def cases(tree: Path) -> Iterator[tuple[str, Callable[[], None]]]:  # noqa: C901, PLR0912 - a list
    """Return what to ask for, by a name for people."""
    caches = ["auto", "fp8"]
    if (tree / "vllm/v1/attention/ops/triton_nvfp4_kv.py").is_file():
        caches.append("nvfp4")
    for shape, cache in itertools.product(ATTENTION, caches):
        label = f"{cache} cache, heads of {shape[2]}"
        steps = STEPS if shape[2] in COMMON else ENDS
        for name in steps:
            yield f"{name}, {label}", partial(attend, shape, STEPS[name], cache, "")
        for feature, names in FEATURES.items() if shape[2] in COMMON else ():
            for name in names:
                yield f"{name}, {feature}, {label}", partial(attend, shape, STEPS[name], cache, feature)
        yield f"write, {label}", partial(write, shape, cache)
    for latent, dtype, context in itertools.product(LATENTS, (BF16, FP8), (256, 60000)):
        name = "FP8" if dtype == FP8 else "16 bits"
        yield (
            f"decode, latent of {latent[0]} + {latent[1]} in {name}, {latent[2]} heads, context of {context}",
            partial(attend_latent, latent, (4, 1), dtype, context),
        )
    for net in DELTA_NETS:
        yield f"delta net of {net[1]} heads, prefill", partial(delta_prefill, net, 4000)
        for drafts in (0, 1, 4, 7, 16):
            yield f"delta net of {net[1]} heads, {drafts} drafts", partial(delta_decode, net, drafts)
    for width, dtype in ((8192, BF16), (10240, BF16), (10240, F32), (6144, BF16)):
        for drafts in (-1, 0, 3, 7, 15):
            name = "prefill" if drafts < 0 else f"{drafts} drafts"
            yield f"convolution of {width} over {dtype}, {name}", partial(convolve, width, drafts, dtype)
    for mamba in MAMBAS:
        for chunk in (128, 256):
            yield (
                f"Mamba of {mamba[0]} heads, prefill in chunks of {chunk}",
                partial(mamba_prefill, mamba, 2000, chunk),
            )
        for drafts, dtype in itertools.product((0, 1, 3, 7), (BF16, F32)):
            yield (
                f"Mamba of {mamba[0]} heads over {dtype}, {drafts} drafts",
                partial(mamba_decode, mamba, drafts, dtype),
            )
    for shape_, weights in itertools.product(EXPERTS, ("16 bits", "FP8", "FP8 in blocks")):
        for tokens in (1, 8, 32, 64, 128, 512, 4096):
            yield (
                f"{shape_[0]} experts in {weights}, {tokens} tokens",
                partial(experts, shape_, tokens, weights),
            )
    for tokens, (wide, deep) in itertools.product((1, 64, 512, 4096), ((10240, 5120), (5120, 17408))):
        yield f"FP8 in blocks, {tokens} by {deep} by {wide}", partial(multiply_blocks, tokens, wide, deep)
    for requests, vocabulary in itertools.product((1, 64), (151936, 262144)):
        yield f"sampling {requests} of {vocabulary}", partial(sample, requests, vocabulary)
