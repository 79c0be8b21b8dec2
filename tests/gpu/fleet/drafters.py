"""Drafters for the tiny architectures: their checkpoints, and what vLLM is asked for to draft with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pair.load import ACCEPTED, DRAFTED
from pair.models import VOCABULARY

from fleet.shapes import HIDDEN, MIDDLE, _attention, _common, _mlp, _norms, checkpoint
from fleet.tensors import HEAD, ONES, TIED, TIED_NORM, Checkpoint, Tensor, kept_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DRAFTERS", "WINDOW", "drafter", "speculative"]

WINDOW = 64
HEADS, KV_HEADS, SIZE = 8, 4, 128
DRAFTERS = ("none", "dflash", "windows", "mtp", "eagle3", "ngram")
_TWO = ("input_layernorm", "post_attention_layernorm")


def _layers_of(target: Checkpoint) -> list[int]:
    last = int(target.config["num_hidden_layers"]) - 1
    return [0, last // 2, last - 1]


def dflash(target: Checkpoint, *, windows: bool) -> Checkpoint:
    """Return a DFlash drafter: two layers, or four with windows and one without."""
    layers = 5 if windows else 2
    config = _common(
        architectures=["DFlashDraftModel"], model_type="qwen3", num_hidden_layers=layers, head_dim=SIZE,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS,
        num_target_layers=target.config["num_hidden_layers"],
        dflash_config={"mask_token_id": VOCABULARY - 1, "target_layer_ids": _layers_of(target)},
    )  # fmt: skip
    if windows:
        kinds = ["sliding_attention"] * (layers - 1) + ["full_attention"]
        config |= {"layer_types": kinds, "sliding_window": WINDOW, "use_sliding_window": True}
    tensors = {
        "fc.weight": Tensor((HIDDEN, 3 * HIDDEN)),
        "hidden_norm.weight": Tensor((HIDDEN,), ONES),
        "norm.weight": Tensor((HIDDEN,), ONES),
    }
    for layer in range(layers):
        at = f"layers.{layer}"
        tensors |= _attention(f"{at}.self_attn", HEADS, KV_HEADS, SIZE)
        tensors |= _mlp(f"{at}.mlp") | _norms(at, _TWO, ONES)
    return Checkpoint(config, tensors)


def eagle3(target: Checkpoint) -> Checkpoint:
    """Return an EAGLE3 head of one layer with an output head of its own.

    Its auxiliary layers are named at the top of the configuration: model runner V2 reads them nowhere else,
    and takes the model's default ones, which in few layers are two and not three.
    """
    config = _common(
        architectures=["LlamaForCausalLMEagle3"], model_type="llama", num_hidden_layers=1, head_dim=SIZE,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, draft_vocab_size=VOCABULARY,
        eagle_aux_hidden_state_layer_ids=[one + 1 for one in _layers_of(target)],
    )  # fmt: skip
    tensors = _attention("midlayer.self_attn", HEADS, KV_HEADS, SIZE, norm="") | _mlp("midlayer.mlp")
    for name in "qkv":
        rows = tensors[f"midlayer.self_attn.{name}_proj.weight"].shape[0]
        tensors[f"midlayer.self_attn.{name}_proj.weight"] = Tensor((rows, 2 * HIDDEN))
    tensors |= _norms("midlayer", (*_TWO, "hidden_norm"), ONES)
    tensors |= {
        "fc.weight": Tensor((HIDDEN, 3 * HIDDEN)),
        "norm.weight": Tensor((HIDDEN,), ONES),
        "lm_head.weight": Tensor((VOCABULARY, HIDDEN), HEAD),
    }
    return Checkpoint(config, tensors)


def gemma_assistant(target: Checkpoint) -> Checkpoint:
    """Return Gemma 4's paired drafter, whose layers read the target's KV cache."""
    text = {
        name: value
        for name, value in target.config.items()
        if name not in ("architectures", "num_kv_shared_layers", "vocab_size_per_layer_input")
    }
    kinds = ["sliding_attention", "full_attention"]
    text |= {"num_hidden_layers": len(kinds), "layer_types": kinds, "num_kv_shared_layers": len(kinds)}
    text |= {"vocab_size_per_layer_input": 0}
    config = {
        "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
        "text_config": text, "backbone_hidden_size": HIDDEN, "use_ordered_embeddings": False,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    tensors = {
        "model.embed_tokens.weight": Tensor((VOCABULARY, HIDDEN), TIED),
        "model.norm.weight": Tensor((HIDDEN,), str(TIED_NORM)),
        "pre_projection.weight": Tensor((HIDDEN, 2 * HIDDEN)),
        "post_projection.weight": Tensor((HIDDEN, HIDDEN)),
    }
    norms = (*_TWO, "pre_feedforward_layernorm", "post_feedforward_layernorm")
    for layer, kind in enumerate(kinds):
        at = f"model.layers.{layer}"
        size = text["global_head_dim" if kind == "full_attention" else "head_dim"]
        rows = text["num_attention_heads"] * size
        tensors |= _mlp(f"{at}.mlp", MIDDLE) | _norms(at, norms, ONES)
        tensors |= {
            f"{at}.self_attn.q_proj.weight": Tensor((rows, HIDDEN)),
            f"{at}.self_attn.o_proj.weight": Tensor((HIDDEN, rows)),
            f"{at}.self_attn.q_norm.weight": Tensor((size,), "0.3"),
            f"{at}.layer_scalar": Tensor((1,), ONES),
        }
    return Checkpoint(config, tensors)


def drafter(shape: str, kind: str) -> Checkpoint | None:
    """Return the checkpoint of a drafter of that kind for *shape*; None where it has none of its own."""
    if kind in ("dflash", "windows"):
        return dflash(checkpoint(shape), windows=kind == "windows")
    if kind == "eagle3":
        return eagle3(checkpoint(shape))
    if kind == "mtp" and shape == "gemma4":
        return gemma_assistant(checkpoint(shape))
    return None


def speculative(
    shape: str, kind: str, folder: Path, *, synthetic: bool, asked: dict[str, str]
) -> dict[str, Any] | None:
    """Write the drafter's checkpoint under *folder*; return vLLM's speculative configuration.

    Args:
        shape: name of the target's shape.
        kind: one of `DRAFTERS`.
        folder: where checkpoints are written, and found the next time.
        synthetic: accept two of three drafts without looking at them.
        asked: backend and cache of the drafter; empty for those that vLLM chooses.
    """
    if kind == "none":
        return None
    found: dict[str, Any] = {"num_speculative_tokens": DRAFTED}
    found["method"] = "dflash" if kind == "windows" else kind
    own = drafter(shape, kind)
    if own is not None:
        found["model"] = str(kept_checkpoint(folder / f"{shape}-{kind}", own))
    if kind == "ngram":
        found |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    if kind != "ngram":
        found |= asked
    if synthetic:
        found |= {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": float(1 + ACCEPTED),
        }
    return found
