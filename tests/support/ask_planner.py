"""A program for an environment with vLLM: lay out KV caches by vLLM's own planning, from JSON to JSON.

Each case has layers (kind, count, heads, head size, type of cache, window, or the bytes of a state), perhaps
those of a DFlash drafter, a block size, the length of requests, the batch and the memory. The answer is the
number of blocks, tokens and groups, or nothing where planning fails.
"""

import json
import sys
from types import SimpleNamespace

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode, MambaSpec, SlidingWindowSpec

FORMATS = {
    "auto": (torch.bfloat16, KVQuantMode.NONE),
    "bfloat16": (torch.bfloat16, KVQuantMode.NONE),
    "fp8": (torch.uint8, KVQuantMode.FP8_PER_TENSOR),
    "nvfp4": (torch.uint8, KVQuantMode.NVFP4),
}


def spec(layer: dict, case: dict):
    if layer["kind"] == "state":
        return MambaSpec(
            block_size=case["block"],
            shapes=((layer["bytes"] // 4,),),
            dtypes=(torch.float32,),
            page_size_padded=layer["page"],
            mamba_cache_mode="align" if case["prefix_caching"] else "none",
            num_speculative_blocks=case["drafts"],
        )
    dtype, mode = FORMATS[layer["dtype"]]
    shared = {
        "block_size": case["block"],
        "num_kv_heads": layer["heads"],
        "head_size": layer["size"],
        "dtype": dtype,
        "kv_quant_mode": mode,
        "indexes_kv_by_block_stride": True,
    }
    if layer["window"]:
        return SlidingWindowSpec(**shared, sliding_window=layer["window"])
    return FullAttentionSpec(**shared)


def answer(case: dict) -> dict:
    layers = {}
    for index, layer in enumerate(case["layers"]):
        layers |= {f"{index}.{number}": spec(layer, case) for number in range(layer["count"])}
    target = len(layers)
    for layer in case.get("drafter", []):
        names = range(len(layers), len(layers) + layer["count"])
        layers |= {f"model.layers.{number}.self_attn.attn": spec(layer, case) for number in names}
    drafting = None
    if count := len(layers) - target:
        own = SimpleNamespace(hf_config=SimpleNamespace(num_hidden_layers=count))
        drafting = SimpleNamespace(method="dflash", draft_model_config=own, use_eagle=lambda: True)
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False, max_num_batched_tokens=case["batch"]
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None, mamba_cache_mode="align" if case["prefix_caching"] else "none"
        ),
        model_config=SimpleNamespace(max_model_len=case["length"], get_num_layers=lambda _parallel: target),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, pipeline_parallel_size=1
        ),
        kv_transfer_config=None,
        speculative_config=drafting,
    )
    try:
        groups = kv_cache_utils.get_kv_cache_groups(config, layers)
    except (AssertionError, NotImplementedError):
        return {}
    plan = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, case["memory"])
    tokens, _ = kv_cache_utils.get_kv_cache_capacity(config, plan)
    return {"blocks": plan.num_blocks, "tokens": tokens, "groups": len(plan.kv_cache_groups)}


json.dump([answer(case) for case in json.loads(sys.stdin.read())], sys.stdout)
