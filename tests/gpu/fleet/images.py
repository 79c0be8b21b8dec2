"""A tiny Gemma 3 that sees: windows, heads of 256, images whose tokens attend to one another both ways."""

from __future__ import annotations

from typing import Any

from pair.models import VOCABULARY

from fleet.shapes import HIDDEN, MAX_MODEL_LEN, _attention, _common, _mlp, _norms
from fleet.tensors import ONES, TIED, TIED_NORM, ZEROS, Checkpoint, Tensor
from sparkwright.engine.tiny.tokenizer import tokenizer, tokenizer_config

__all__ = ["IMAGE_SIDE", "IMAGE_TOKENS", "START", "image"]

IMAGE_SIDE, IMAGE_TOKENS = 112, 16  # pixels, and tokens that an image becomes
NAMES = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
LINES = tuple("\n" * count for count in range(1, 5))  # vLLM joins those around an image, by their own tokens
START, STOP, SOFT = range(VOCABULARY - len(NAMES), VOCABULARY)
_SEEN, _PATCH = 128, 14


def _words() -> dict[str, Any]:
    """Return the files of tokenizer and processor."""
    own = (*LINES, *NAMES)
    words = tokenizer(VOCABULARY - len(own))
    like = words["added_tokens"][0]
    words["added_tokens"] += [
        {**like, "id": VOCABULARY - len(own) + place, "content": name, "special": name in NAMES}
        for place, name in enumerate(own)
    ]
    special = dict(zip(("boi_token", "eoi_token", "image_token"), NAMES, strict=True))
    told = tokenizer_config(MAX_MODEL_LEN) | special | {"extra_special_tokens": special}
    half = [0.5, 0.5, 0.5]
    size = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    pixels = {
        "image_processor_type": "Gemma3ImageProcessor", "do_resize": True, "do_rescale": True,
        "do_normalize": True, "do_pan_and_scan": False, "size": size, "image_mean": half, "image_std": half,
        "rescale_factor": 1 / 255, "resample": 2, "image_seq_length": IMAGE_TOKENS,
        "pan_and_scan_min_crop_size": 256, "pan_and_scan_max_num_crops": 1,
        "pan_and_scan_min_ratio_to_activate": 1.2, "processor_class": "Gemma3Processor",
    }  # fmt: skip
    return {
        "tokenizer.json": words,
        "tokenizer_config.json": told,
        "preprocessor_config.json": pixels,
        "processor_config.json": {"processor_class": "Gemma3Processor", "image_seq_length": IMAGE_TOKENS},
    }


def _eyes() -> dict[str, Tensor]:
    """Return the tensors of the vision tower and of the projector."""

    def pair(at: str, *shape: int, fill: str = "matrix") -> dict[str, Tensor]:
        return {f"{at}.weight": Tensor(shape, fill), f"{at}.bias": Tensor(shape[:1], ZEROS)}

    tower = "model.vision_tower.vision_model"
    places = (IMAGE_SIDE // _PATCH) ** 2
    found = pair(f"{tower}.embeddings.patch_embedding", _SEEN, 3, _PATCH, _PATCH)
    found[f"{tower}.embeddings.position_embedding.weight"] = Tensor((places, _SEEN))
    for layer in range(2):
        at = f"{tower}.encoder.layers.{layer}"
        for name in ("q", "k", "v", "out"):
            found |= pair(f"{at}.self_attn.{name}_proj", _SEEN, _SEEN)
        found |= pair(f"{at}.mlp.fc1", 2 * _SEEN, _SEEN) | pair(f"{at}.mlp.fc2", _SEEN, 2 * _SEEN)
        found |= pair(f"{at}.layer_norm1", _SEEN, fill=ONES) | pair(f"{at}.layer_norm2", _SEEN, fill=ONES)
    found |= pair(f"{tower}.post_layernorm", _SEEN, fill=ONES)
    projector = "model.multi_modal_projector"
    found[f"{projector}.mm_input_projection_weight"] = Tensor((_SEEN, HIDDEN))
    found[f"{projector}.mm_soft_emb_norm.weight"] = Tensor((_SEEN,), ZEROS)
    return found


def image() -> Checkpoint:
    """Return the model, its tokenizer and its processor."""
    layers, heads, kv_heads, size = 6, 4, 2, 256
    kinds = ["full_attention" if layer % 3 == 2 else "sliding_attention" for layer in range(layers)]
    text = _common(
        model_type="gemma3_text", num_hidden_layers=layers, head_dim=size, num_attention_heads=heads,
        num_key_value_heads=kv_heads, sliding_window=128, layer_types=kinds, query_pre_attn_scalar=size,
        hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
    )  # fmt: skip
    del text["rope_theta"]
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text,
        "vision_config": {
            "model_type": "siglip_vision_model", "hidden_size": _SEEN, "intermediate_size": 2 * _SEEN,
            "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": IMAGE_SIDE, "patch_size": _PATCH,
            "num_channels": 3, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
            "vision_use_head": False,
        },
        "mm_tokens_per_image": IMAGE_TOKENS, "boi_token_index": START, "eoi_token_index": STOP,
        "image_token_index": SOFT, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    tensors = _eyes() | {
        "model.language_model.embed_tokens.weight": Tensor((VOCABULARY, HIDDEN), TIED),
        "model.language_model.norm.weight": Tensor((HIDDEN,), str(TIED_NORM - 1)),
    }
    names = ("input_layernorm", "post_attention_layernorm")
    names += ("pre_feedforward_layernorm", "post_feedforward_layernorm")
    for layer in range(layers):
        at = f"model.language_model.layers.{layer}"
        tensors |= _attention(f"{at}.self_attn", heads, kv_heads, size, norm="0.5")
        tensors |= _mlp(f"{at}.mlp") | _norms(at, names, ZEROS)
    return Checkpoint(config, tensors, files=_words())
