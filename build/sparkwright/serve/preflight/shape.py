"""Predict a model's memory: the cache that its layers keep for each request, and its loaded weights.

`model_shape` reads the configuration. It knows attention (full, in windows, latent), gated delta nets and
Mamba 2; other layers are unknown, and no memory is predicted for them. `loaded_weights` reads headers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.checkpoint import NONE, Checkpoint, Tensor, find_quantization

_FULL, _WINDOW, _STATE, _NONE = "full", "window", "state", "none"
_KINDS = {
    "full_attention": _FULL, "attention": _FULL, "global": _FULL, "*": _FULL,
    "sliding_attention": _WINDOW, "sliding_window": _WINDOW, "local": _WINDOW, "chunked_attention": _WINDOW,
    "linear_attention": _STATE, "mamba": _STATE, "mamba2": _STATE, "M": _STATE,
    "moe": _NONE, "mlp": _NONE, "E": _NONE, "-": _NONE,
}  # fmt: skip
_MOST_LAYERS = 10_000
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4}
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
class Attention:
    """Layers of attention of one kind.

    Attributes:
        window: tokens of a sliding window; 0 for all.
        latent: values of a token's compressed keys and values (MLA); 0 where there are heads.
    """

    layers: int
    kv_heads: int = 1
    head_size: int = 0
    window: int = 0
    latent: int = 0


@dataclass(frozen=True)
class States:
    """Layers that keep a state of fixed size for each request.

    Attributes:
        taps: earlier inputs that it keeps.
        temporal_bytes: bytes of each; 0 for the model's own type.
        mamba: true for Mamba 2, false for a gated delta net.
    """

    layers: int
    channels: int
    taps: int
    temporal: int
    temporal_bytes: int = 0
    mamba: bool = False

    def bytes(self, drafts: int, value: int, ranks: int = 1) -> int:
        """Return the bytes of one layer's state."""
        convolution = self.channels // ranks * (self.taps + drafts) * value
        return convolution + self.temporal // ranks * (self.temporal_bytes or value)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model.

    Attributes:
        inner: values between the two halves of the widest dense layer that a token passes.
        attention: layers of attention by kind; the first has the heads that vLLM plans with.
        longest: the longest context that the configuration allows; 0 where it does not say.
        unknown: what it could not read, in words; then attention and states are empty.
    """

    layers: int = 0
    hidden: int = 0
    inner: int = 0
    vocabulary: int = 0
    heads: int = 0
    attention: tuple[Attention, ...] = ()
    states: tuple[States, ...] = ()
    longest: int = 0
    unknown: str = ""

    @property
    def hybrid(self) -> bool:
        """Tell if some layers keep states."""
        return bool(self.states)

    @property
    def mla(self) -> bool:
        """Tell if attention reads a latent instead of keys and values."""
        return any(kind.latent for kind in self.attention)

    @property
    def traits(self) -> tuple[str, ...]:
        """Return the traits of a recipe that the sizes show."""
        return tuple(name for name, shown in (("hybrid", self.hybrid), ("mla", self.mla)) if shown)


class _UnknownError(Exception):
    """The configuration has layers that are not known here."""


def value_bytes(dtype: str) -> int:
    """Return the bytes of a value of *dtype*, as configurations name it; 2 for ``auto`` and unknown ones."""
    return _BYTES.get(dtype.removeprefix("torch."), 2)


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Return the sizes in the *config* of a language model; see `ModelShape.unknown`."""
    experts = whole_number(config, "moe_intermediate_size") * whole_number(config, "num_experts_per_tok")
    plain = ModelShape(
        layers=whole_number(config, "num_hidden_layers") or len(_pattern(config)),
        hidden=whole_number(config, "hidden_size"),
        inner=max(whole_number(config, "intermediate_size"), experts),
        vocabulary=whole_number(config, "vocab_size"),
        heads=whole_number(config, "num_attention_heads"),
        longest=_longest(config),
    )
    try:
        kinds = _kinds(config, plain.layers)
        attention = _attention(config, plain, kinds)
        states = _states(config, kinds.count(_STATE))
    except (_UnknownError, ZeroDivisionError, TypeError, ValueError) as error:
        return ModelShape(**{**vars(plain), "unknown": str(error) or "its sizes"})
    return ModelShape(**{**vars(plain), "attention": attention, "states": states})


def whole_number(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these keys that is a whole number, or a list's largest, but 0 at least."""
    for name in names:
        value = config.get(name)
        if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
            return max(0, *map(int, value))
        if isinstance(value, int) and not isinstance(value, bool):
            return max(0, value)
    return 0


def _longest(config: Mapping[str, Any]) -> int:
    """Return the longest context, with positions that the configuration itself stretches."""
    plain = whole_number(config, "max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, dict):
        return plain
    kind, factor = str(rope.get("rope_type") or rope.get("type") or ""), rope.get("factor")
    if kind not in {"yarn", "linear", "dynamic"} or not isinstance(factor, (int, float)):
        return plain
    original = whole_number(rope, "original_max_position_embeddings") if kind == "yarn" else 0
    return int((original or plain) * factor)


def _pattern(config: Mapping[str, Any]) -> list[str]:
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return list(pattern)
    found = config.get("layers_block_type") or config.get("layer_types") or []
    return [str(kind) for kind in found] if isinstance(found, list) else []


def _kinds(config: Mapping[str, Any], layers: int) -> list[str]:
    """Return the kind of each layer."""
    if not 0 < layers <= _MOST_LAYERS:
        raise _UnknownError("no number of layers that can be right")
    if pattern := _pattern(config):
        if strange := sorted({kind for kind in pattern if kind not in _KINDS}):
            raise _UnknownError(f"layers of the kind {', '.join(strange)}")
        kinds = [_KINDS[kind] for kind in pattern][:layers]
    elif every := whole_number(config, "full_attention_interval"):
        kinds = [_FULL if (index + 1) % every == 0 else _STATE for index in range(layers)]
    elif every := whole_number(config, "sliding_window_pattern", "_sliding_window_pattern"):
        kinds = [_FULL if (index + 1) % every == 0 else _WINDOW for index in range(layers)]
    elif any(name in config for name in ("attn_layer_period", "linear_attn_config", "mamba_d_state")):
        raise _UnknownError("layers whose order another key decides")
    else:
        windowed = whole_number(config, "sliding_window") and config.get("use_sliding_window") is not False
        kinds = [_WINDOW if windowed else _FULL] * layers
    # Gemma: the last layers read the keys and values of earlier ones.
    own = layers - whole_number(config, "num_kv_shared_layers")
    return kinds[:own]


def _attention(config: Mapping[str, Any], plain: ModelShape, kinds: list[str]) -> tuple[Attention, ...]:
    full, windowed = kinds.count(_FULL), kinds.count(_WINDOW)
    if whole_number(config, "index_topk") or whole_number(config, "compress_ratios"):
        raise _UnknownError("sparse attention with caches of its own")
    if rank := whole_number(config, "kv_lora_rank"):
        return (Attention(full, latent=rank + whole_number(config, "qk_rope_head_dim")),) if full else ()
    kv = whole_number(config, "num_key_value_heads", "num_attention_heads")
    size = whole_number(config, "head_dim") or (plain.hidden // plain.heads if plain.heads else 0)
    if full + windowed and not (kv and size):
        raise _UnknownError("neither heads nor their size")
    # Gemma 4: layers of full attention have larger and fewer heads than those with windows.
    wide = whole_number(config, "global_head_dim") or size
    few = whole_number(config, "num_global_key_value_heads") or kv
    window = whole_number(config, "sliding_window", "attention_chunk_size")
    found = [Attention(full, few, wide)] if full else []
    if windowed:
        found.append(Attention(windowed, kv, size, window))
    return tuple(found)


def _states(config: Mapping[str, Any], layers: int) -> tuple[States, ...]:
    if not layers:
        return ()
    keys, values, key_size, value_size = (
        whole_number(config, f"linear_{name}")
        for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    )
    if keys and values:
        return (
            States(
                layers=layers,
                channels=2 * keys * key_size + values * value_size,
                taps=whole_number(config, "linear_conv_kernel_dim") - 1,
                temporal=values * value_size * key_size,
                temporal_bytes=_state_bytes(config.get("mamba_ssm_dtype")),
            ),
        )
    heads, size = whole_number(config, "mamba_num_heads"), whole_number(config, "mamba_head_dim")
    if not (heads and size):
        raise _UnknownError("states of a size that no known key gives")
    state, groups = whole_number(config, "ssm_state_size"), whole_number(config, "n_groups", "mamba_n_groups")
    return (
        States(
            layers=layers,
            channels=heads * size + 2 * groups * state,
            taps=whole_number(config, "conv_kernel", "mamba_d_conv") - 1,
            temporal=heads * size * state,
            # Nemotron-H: 32 bits unless its configuration says otherwise (vllm models/config.py).
            temporal_bytes=_state_bytes(config.get("mamba_ssm_cache_dtype", "float32")),
            mamba=True,
        ),
    )


def _state_bytes(dtype: Any) -> int:
    return value_bytes(dtype) if isinstance(dtype, str) and re.search(r"float", dtype) else 0


# Weights ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedWeights:
    """Weights in memory.

    Attributes:
        by_dtype: bytes in the files that are loaded, by the format's name of their type.
        left_out: bytes in the files that are not loaded: MTP heads, encoders, tied output layers.
    """

    bytes: int
    by_dtype: Mapping[str, int]
    left_out: int


def model_dtype(recipe: Recipe, checkpoint: Checkpoint) -> str:
    """Return the type of the model's values: the recipe's, or the checkpoint's with 32 bits made 16."""
    asked = str(recipe.flags.get("dtype", "auto"))
    if asked != "auto":
        return asked
    stated = str(checkpoint.text.get("dtype") or checkpoint.text.get("torch_dtype") or "bfloat16")
    return "bfloat16" if value_bytes(stated) != value_bytes("bfloat16") else stated.removeprefix("torch.")


def loaded_weights(recipe: Recipe, checkpoint: Checkpoint, *, draft: bool = False) -> LoadedWeights:
    """Return what *checkpoint* takes in memory."""
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
