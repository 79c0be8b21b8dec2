"""Checkpoints of real shapes without their bytes: after its header, each file is a hole.

Files have the size that they would have and take a few kilobytes of disk. Configurations have the keys of the
published ones that decide sizes.
"""

import json
import math
from pathlib import Path
from typing import Any

BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of a value, by the format's name of its type."""


QWEN_27B = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "vision_config": {"depth": 2},
    "text_config": {
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248320,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
        "dtype": "bfloat16",
    },
}
NEMOTRON = {
    "hybrid_override_pattern": "MEM*-",
    "hidden_size": 2688,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_key_value_heads": 2,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
}
QWEN_35B = {
    **QWEN_27B,
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {
        **QWEN_27B["text_config"],
        "num_hidden_layers": 40,
        "hidden_size": 2048,
        "intermediate_size": 0,
        "moe_intermediate_size": 512,
        "num_experts_per_tok": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
    },
}
QWEN_27B_DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "block_size": 16,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
    "num_target_layers": 64,
    "num_hidden_layers": 5,
    "hidden_size": 5120,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 248320,
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {"quant_method": "mxfp4"},
    "max_position_embeddings": 131072,
}
GEMMA_26B = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "num_hidden_layers": 30,
    "hidden_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "num_global_key_value_heads": 2,
    "global_head_dim": 512,
    "vocab_size": 262144,
    "sliding_window": 1024,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
}
MODELOPT = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
}

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of each tensor, by name."""


def write_shard(path: Path, tensors: Tensors, *, missing: int = 0) -> None:
    """Write a safetensors file with a header and no bytes; *missing* bytes shorter than it should be."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + offset - missing)


def write_checkpoint(
    folder: Path,
    config: dict[str, Any],
    shards: list[Tensors] | None = None,
    *,
    tokenizer: bool = True,
    modelopt: dict[str, Any] | None = None,
) -> Path:
    """Write a checkpoint of several files with their index, or of one without."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
        (folder / "chat_template.jinja").write_text("{{ messages }}")
    if modelopt is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(modelopt))
    shards = [SMALL] if shards is None else shards
    names = [
        "model.safetensors" if len(shards) == 1 else f"model-{one + 1:05}-of-{len(shards):05}.safetensors"
        for one in range(len(shards))
    ]
    for name, tensors in zip(names, shards, strict=True):
        write_shard(folder / name, tensors)
    if len(shards) > 1:
        weights = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor in tensors}
        total = sum(math.prod(s) * BITS[d] // 8 for tensors in shards for d, s in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weights}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


SMALL: Tensors = {"model.embed_tokens.weight": ("BF16", (512, 64)), "lm_head.weight": ("BF16", (512, 64))}
DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 8,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 8192,
    "max_position_embeddings": 65536,
    "torch_dtype": "bfloat16",
}


def nvfp4_27b() -> list[Tensors]:
    """Return the language model of a 27B in NVFP4, the heads and the vision part in 16 bits, in two files."""
    body: Tensors = {}
    for layer in range(64):
        for name, shape in (
            ("gate_proj", (17408, 5120)),
            ("up_proj", (17408, 5120)),
            ("down_proj", (5120, 17408)),
        ):
            stem = f"model.language_model.layers.{layer}.mlp.{name}"
            body[f"{stem}.weight"] = ("U8", (shape[0], shape[1] // 2))
            body[f"{stem}.weight_scale"] = ("F8_E4M3", (shape[0], shape[1] // 16))
            body[f"{stem}.weight_scale_2"] = ("F32", ())
    rest: Tensors = {
        "model.language_model.embed_tokens.weight": ("BF16", (248320, 5120)),
        "lm_head.weight": ("BF16", (248320, 5120)),
        "model.visual.patch_embed.proj.weight": ("BF16", (1152, 1536)),
        "mtp.fc.weight": ("BF16", (5120, 10240)),
    }
    return [body, rest]


def dflash_27b() -> list[Tensors]:
    """Return a DFlash drafter for it."""
    return [{"fc.weight": ("BF16", (5120, 5 * 5120)), "layers.0.mlp.up_proj.weight": ("BF16", (17408, 5120))}]
