"""The bytes of a checkpoint's weights once vLLM has loaded them, by the headers of its files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.quantization import NONE, find_quantization
from sparkwright.serve.preflight.safetensors import Tensor
from sparkwright.serve.preflight.shape import model_shape, value_bytes, whole_number

_FLOATS = {"F64", "F32", "F16", "BF16"}
_MTP = re.compile(r"^(?:model\.)?mtp\.|(?:^|\.)nextn\.")
_LAYER = re.compile(r"^(?:model\.)?layers\.(\d+)\.")
_ENCODERS = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|audio_tower|audio_model|multi_modal_projector)\."
)
_OUTPUT = re.compile(r"(?:^|\.)lm_head\.weight$")
_EMBEDDING = re.compile(r"embed|lm_head|norm")
# Recomputed or kept in 32 bits, whatever the model's type.
_DROPPED = re.compile(r"rotary_emb\.inv_freq$")
_WIDE = re.compile(r"(?:A_log|dt_bias|scale|scale_2|e_score_correction_bias)$")


@dataclass(frozen=True)
class LoadedWeights:
    """Weights in memory.

    Attributes:
        by_dtype: bytes in the files that are loaded, by the format's name of their type.
        left_out: bytes in the files that are not loaded: MTP heads, encoders, tied output layers.
    """

    bytes: int = 0
    by_dtype: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0


def model_dtype(recipe: Recipe, checkpoint: Checkpoint) -> str:
    """Return the type of the model's values: the recipe's, or the checkpoint's with 32 bits made 16."""
    asked = str(recipe.flags.get("dtype", "auto"))
    if asked != "auto":
        return asked
    stated = str(checkpoint.text.get("dtype") or checkpoint.text.get("torch_dtype") or "bfloat16")
    return "bfloat16" if value_bytes(stated) != value_bytes("bfloat16") else stated.removeprefix("torch.")


def loaded_weights(recipe: Recipe, checkpoint: Checkpoint, *, draft: bool = False) -> LoadedWeights:
    """Return what *checkpoint* takes in memory.

    Args:
        recipe: decides type, parallelism, and what is left out.
        checkpoint: the target, or the drafter.
        draft: true for the drafter, which is loaded whole.
    """
    value = value_bytes(model_dtype(recipe, checkpoint))
    plain = find_quantization(checkpoint).method == NONE
    online = not draft and plain and str(recipe.flags.get("quantization", "")) == "fp8"
    taken = {id(tensor) for tensor in _taken(recipe, checkpoint, draft=draft)}
    by_dtype: Counter[str] = Counter()
    total, left_out = 0, 0
    for tensor in checkpoint.tensors:
        if id(tensor) not in taken:
            left_out += tensor.bytes
            continue
        by_dtype[tensor.dtype] += tensor.bytes
        small = online and len(tensor.shape) > 1 and not _EMBEDDING.search(tensor.name)
        total += _loaded(tensor, 1 if small else value)
    ranks = max(1, whole_number(recipe.flags, "tensor-parallel-size"))
    if draft:
        ranks = whole_number(recipe.speculative, "draft_tensor_parallel_size") or ranks
    return LoadedWeights(total // ranks, dict(by_dtype), left_out)


def _loaded(tensor: Tensor, value: int) -> int:
    if tensor.dtype not in _FLOATS or (tensor.dtype == "F32" and _WIDE.search(tensor.name)):
        return tensor.bytes
    return tensor.count * value


def _taken(recipe: Recipe, checkpoint: Checkpoint, *, draft: bool) -> Iterator[Tensor]:
    """Yield the tensors that are loaded."""
    heads = draft or str(recipe.speculative.get("method", "")).endswith("mtp")
    text_alone = recipe.flags.get("language-model-only") is True
    tied = bool(
        checkpoint.config.get("tie_word_embeddings", checkpoint.text.get("tie_word_embeddings", False))
    )
    layers = model_shape(checkpoint.text).layers
    for tensor in checkpoint.tensors:
        head = is_head(tensor.name, layers)
        if _DROPPED.search(tensor.name) or (head and not heads):
            continue
        if (text_alone and _ENCODERS.search(tensor.name)) or (tied and _OUTPUT.search(tensor.name)):
            continue
        yield tensor


def is_head(name: str, layers: int) -> bool:
    """Tell if the tensor *name* belongs to an MTP layer of a model of so many *layers*; 0 for unknown."""
    layer = _LAYER.match(name)
    return bool(_MTP.search(name) or (layer and layers and int(layer.group(1)) >= layers))
