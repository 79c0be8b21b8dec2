"""Compare the quantization in a checkpoint's configuration with that of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.checkpoint import Checkpoint
from sparkwright.serve.preflight.finding import Finding

NONE = "none"
_PACKED = {"U8", "I8", "I32", "U32", "F8_E4M3", "F8_E5M2", "F4"}
_SCALES = re.compile(r"(?:weight_scale(?:_2|_inv)?|weight_global_scale|scales|input_scale|qzeros|_blocks)$")
_VISION = re.compile(r"(?:^|\.)(?:visual|vision_tower|vision_model|embed_vision|multi_modal_projector)\.")
# A method that the user names, and those of checkpoints that vLLM takes over for it.
_OVERRIDES = {
    "awq_marlin": {"awq"},
    "gptq_marlin": {"gptq"},
    "modelopt_fp4": {"modelopt"},
    "modelopt_mixed": {"modelopt"},
    "modelopt_mxfp8": {"modelopt"},
    "gpt_oss_mxfp4": {"mxfp4"},
    "auto_round": {"auto-round"},
    "inc": {"auto-round", "auto_round"},
}


@dataclass(frozen=True)
class Quantization:
    """The quantization of a checkpoint.

    Attributes:
        method: in vLLM's words, such as ``modelopt`` or ``compressed-tensors``; ``none`` without one.
        algorithm: the producer's name of the format, such as ``NVFP4``; empty where it names none.
        source: the file that says so.
        other: the method that a second file names, where it names another.
    """

    method: str = NONE
    algorithm: str = ""
    source: str = ""
    other: str = ""


def find_quantization(checkpoint: Checkpoint) -> Quantization:
    """Return the quantization that the configuration of *checkpoint* states."""
    for config in (checkpoint.config, checkpoint.text):
        stated = config.get("quantization_config") or config.get("compression_config")
        if isinstance(stated, dict) and stated.get("quant_method"):
            method = str(stated["quant_method"]).lower()
            algorithm = str(stated.get("quant_algo") or stated.get("format") or "")
            other = _modelopt(checkpoint.modelopt)
            differs = other if other not in {NONE, method} else ""
            return Quantization(method, algorithm, "config.json", differs)
    if _modelopt(checkpoint.modelopt) != NONE:
        algorithm = str(checkpoint.modelopt.get("quantization", {}).get("quant_algo", ""))
        return Quantization("modelopt", algorithm, "hf_quant_config.json")
    return Quantization()


def _modelopt(found: Mapping[str, Any]) -> str:
    inner = found.get("quantization")
    return "modelopt" if isinstance(inner, dict) and inner.get("quant_algo") else NONE


def check_quantization(recipe: Recipe, checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield findings where recipe, configuration and tensors of *checkpoint* disagree."""
    if not checkpoint.config:
        return
    found = find_quantization(checkpoint)
    yield from _by_recipe(recipe, checkpoint, found)
    yield from _by_tensors(checkpoint, found)
    if "SVD" in found.algorithm.upper():
        yield Finding(
            "quantization-known-failure",
            "refuse",
            f"{checkpoint.name} has the format {found.algorithm}",
            "vLLM's ModelOpt loader has no such format; users report that these checkpoints do not load",
            "use the NVFP4 checkpoint of the same model",
            liftable=True,
        )
    if vision := [t.name for t in checkpoint.tensors if _VISION.search(t.name) and _SCALES.search(t.name)]:
        yield Finding(
            "vision-quantized",
            "warn",
            f"the vision part of {checkpoint.name} is quantized",
            f"{vision[0]} and {len(vision) - 1} more; users report that such embedders fail to load",
            "use a checkpoint that keeps it in 16 bits, or serve text alone: language-model-only = true",
        )


def _by_recipe(recipe: Recipe, checkpoint: Checkpoint, found: Quantization) -> Iterator[Finding]:
    stated = f"{found.source or 'config.json'} says {_worded(found)}"
    if found.other:
        yield Finding(
            "quantization-files",
            "warn",
            f"{checkpoint.name} names two quantizations",
            f"config.json says {found.method}, hf_quant_config.json {found.other}",
            "vLLM takes config.json's; fetch the checkpoint again if that is not the intended one",
        )
    if recipe.weights and _family(recipe.weights) != _family(found.method):
        yield Finding(
            "quantization-recipe",
            "refuse",
            f"{checkpoint.name} is not quantized as the recipe says",
            f"the recipe's weights are {recipe.weights}, and {stated}",
            f'set weights = "{found.method}" in the recipe, or name the checkpoint that was meant',
            liftable=True,
        )
    asked = recipe.flags.get("quantization")
    if not asked:
        return
    allowed = {found.method, *(name for name, of in _OVERRIDES.items() if found.method in of)}
    online = found.method == NONE and not str(asked).startswith(
        ("modelopt", "compressed-tensors", "awq", "gptq")
    )
    if asked not in allowed and not online:
        yield Finding(
            "quantization-flag",
            "refuse",
            f"--quantization {asked} does not fit {checkpoint.name}",
            stated,
            "leave `quantization` out: vLLM reads it from the checkpoint",
            liftable=True,
        )


def _by_tensors(checkpoint: Checkpoint, found: Quantization) -> Iterator[Finding]:
    tensors = list(checkpoint.tensors)
    if not tensors:
        return
    packed = [t for t in tensors if t.dtype in _PACKED and len(t.shape) > 1]
    scaled = [t for t in tensors if _SCALES.search(t.name)]
    if found.method == NONE and packed and scaled:
        yield Finding(
            "quantization-unstated",
            "refuse",
            f"{checkpoint.name} has quantized weights and no configuration that says so",
            f"{packed[0].name} is {packed[0].dtype}, and no configuration names a method",
            "fetch config.json and hf_quant_config.json of that checkpoint again",
            liftable=True,
        )
    if found.method != NONE and not packed and not scaled:
        yield Finding(
            "quantization-absent",
            "refuse",
            f"{checkpoint.name} is not quantized, but {found.source} says {_worded(found)}",
            f"none of its {len(tensors)} tensors is packed or has a scale",
            "fetch the weights that belong to that configuration",
            liftable=True,
        )


def _worded(found: Quantization) -> str:
    if found.method == NONE:
        return "nothing of quantization"
    return f"{found.method} ({found.algorithm})" if found.algorithm else found.method


def _family(method: str) -> str:
    return (
        method.lower().replace("_", "-").removesuffix("-fp4").removesuffix("-mixed").removesuffix("-marlin")
    )
