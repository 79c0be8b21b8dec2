"""Has every layer of a DFlash drafter in the format of the speculators library its own window and causality?

Configurations go through upstream's own converter, and `_resolve_layer_attention`, from which models are
built for model runner V2, says what each of five layers makes of them. In training a full layer sees the
whole drafted block, and a sliding one its past, unless `sliding_window_non_causal` says that it sees the
block as well; where it says nothing, DFlash 2's sliding layers see the block.

Controls: drafters without windows, none of whose layers is causal, and all of whose layers are alike.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from probekit import expect
from vllm.model_executor.models import qwen3_dflash
from vllm.transformers_utils.configs.speculators import SpeculatorsConfig, algos

SIZES: dict[str, Any] = {
    "model_type": "qwen3", "head_dim": 32, "hidden_act": "silu", "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 4096, "num_attention_heads": 4, "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "vocab_size": 512,
}  # fmt: skip
MIXED = ["sliding_attention"] * 4 + ["full_attention"]
WINDOWS = {"layer_types": MIXED, "sliding_window": 20, "use_sliding_window": True}
BY_INDEX = {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 4}


class Layer(NamedTuple):
    """A layer's window in tokens, and its causality."""

    window: int | None
    causal: bool


SLIDES, SEES_BLOCK, FULL = Layer(20, causal=True), Layer(20, causal=False), Layer(None, causal=False)
CAUSAL = Layer(None, causal=True)
Case = tuple[str, dict[str, Any], dict[str, Any], list[Layer]]
CONTROLS: tuple[Case, ...] = (
    ("no windows", {}, {}, [FULL] * 5),
    ("no windows, a word on their causality", {}, {"sliding_window_non_causal": True}, [FULL] * 5),
    ("a window that no layer has", {"sliding_window": 8, "max_window_layers": 0}, {}, [FULL] * 5),
    ("layer types without windows", {"layer_types": ["full_attention"] * 5}, {}, [FULL] * 5),
    ("no layer is causal", WINDOWS, {"sliding_window_non_causal": True}, [SEES_BLOCK] * 4 + [FULL]),
    (
        "all layers slide",
        {**WINDOWS, "layer_types": ["sliding_attention"] * 5},
        {"sliding_window_non_causal": False},
        [SLIDES] * 5,
    ),
)
DEFECTS: tuple[Case, ...] = (
    ("windows", WINDOWS, {}, [SLIDES] * 4 + [FULL]),
    ("windows are causal", WINDOWS, {"sliding_window_non_causal": False}, [SLIDES] * 4 + [FULL]),
    ("windows without a switch", {"layer_types": MIXED, "sliding_window": 20}, {}, [SLIDES] * 4 + [FULL]),
    ("the full layer is first", {**WINDOWS, "layer_types": MIXED[::-1]}, {}, [FULL] + [SLIDES] * 4),
    ("no windows are causal", {}, {"sliding_window_non_causal": False}, [FULL] * 5),
    ("windows stand beside", {}, WINDOWS, [SLIDES] * 4 + [FULL]),
    ("windows stand beside, wider ones within", {**WINDOWS, "sliding_window": 50}, WINDOWS,
     [SLIDES] * 4 + [FULL]),
    (
        "none is causal, and they stand beside",
        {},
        {**WINDOWS, "sliding_window_non_causal": True},
        [SEES_BLOCK] * 4 + [FULL],
    ),
    ("null stands beside", WINDOWS, dict.fromkeys([*WINDOWS, "sliding_window_non_causal"]),
     [SLIDES] * 4 + [FULL]),
    ("switched off", {**WINDOWS, "use_sliding_window": False}, {}, [FULL] * 5),
    ("switched off beside", WINDOWS, {"use_sliding_window": False}, [FULL] * 5),
    ("by an index", BY_INDEX, {}, [FULL] * 4 + [SLIDES]),
    ("by an index beside", {}, {**BY_INDEX, "max_window_layers": 1}, [FULL] + [SLIDES] * 4),
    ("by an index of none", {}, {**BY_INDEX, "max_window_layers": 0}, [SLIDES] * 5),
    ("an index without a window", {"use_sliding_window": True, "max_window_layers": 1}, {}, [FULL] * 5),
    ("an index beside layer types", {**WINDOWS, "max_window_layers": 1}, {}, [SLIDES] * 4 + [FULL]),
    ("all causal by their own word", WINDOWS, {"causal": True}, [SLIDES] * 4 + [CAUSAL]),
    ("their own word is over the other", WINDOWS, {"causal": True, "sliding_window_non_causal": True},
     [SLIDES] * 4 + [CAUSAL]),
    ("all slide by one word", {}, {"use_swa": True, "swa_window_size": 20}, [SEES_BLOCK] * 5),
)  # fmt: skip


def resolved(kind: str, within: dict[str, Any], beside: dict[str, Any]) -> list[Layer] | str:
    """Return what upstream makes of each layer, or its refusal."""
    given = {
        "speculators_model_type": kind,
        "transformer_layer_config": {**SIZES, **within},
        "mask_token_id": 511,
        "aux_hidden_state_layer_ids": [2, 4, 7],
        **beside,
    }
    config: Any = SpeculatorsConfig(**SpeculatorsConfig.extract_transformers_pre_trained_config(given))
    runner = mock.patch.object(
        qwen3_dflash, "get_current_vllm_config", return_value=SimpleNamespace(use_v2_model_runner=True)
    )
    try:
        with runner:
            layers = [Layer(*qwen3_dflash._resolve_layer_attention(config, layer)) for layer in range(5)]  # noqa: SLF001
    except ValueError as error:
        return repr(error)
    mixed = qwen3_dflash.dflash_has_any_non_causal(config)
    return layers if mixed == (not all(layer.causal for layer in layers)) else "a backend for other causality"


def trained(kind: str, beside: dict[str, Any], wanted: list[Layer]) -> list[Layer]:
    """Return the layers that the library trains, from those of *wanted*, which are DFlash's."""
    silent = beside.get("sliding_window_non_causal") is None and "causal" not in beside
    return [SEES_BLOCK if kind == "dflash2" and silent and layer == SLIDES else layer for layer in wanted]


def probe() -> None:
    """Controls first; then every configuration, so that the message has all that are resolved otherwise."""
    expect({"dflash", "dflash2"} <= set(algos.SUPPORTED_SPECULATORS_TYPES), "no converter for DFlash")
    for cases in (CONTROLS, DEFECTS):
        wrong = [
            f"{what} ({kind})"
            for what, within, beside, wanted in cases
            for kind in ("dflash", "dflash2")
            if resolved(kind, within, beside) != trained(kind, beside, wanted)
        ]
        expect(not wrong, f"{len(wrong)} configurations are resolved otherwise: {', '.join(wrong)}")
