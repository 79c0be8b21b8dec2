"""Findings about a model's files: missing, cut off or not fetched, and quantized otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkwright.base.text import few
from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.checkpoint import (
    NONE,
    Checkpoint,
    Quantization,
    find_quantization,
)
from sparkwright.serve.preflight.finding import Finding, finding

_SHOWN = 3
_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_PACKED = {"U8", "I8", "I32", "U32", "F8_E4M3", "F8_E5M2", "F4"}
_SCALES = re.compile(r"(?:weight_scale(?:_2|_inv)?|weight_global_scale|scales|input_scale|qzeros|_blocks)$")
_VISION = re.compile(r"(?:^|\.)(?:visual|vision_tower|vision_model|embed_vision|multi_modal_projector)\.")


def check_files(checkpoint: Checkpoint, *, weights: bool = True, tokenizer: bool = True) -> Iterator[Finding]:
    """Yield findings about the files of *checkpoint*.

    vLLM's dummies have no *weights*, and a drafter needs no *tokenizer* of its own.
    """
    model = checkpoint.name
    pointers = [shard.name for shard in checkpoint.shards if shard.pointer and weights]
    if pointers := [*pointers, *checkpoint.pointers]:
        yield finding("lfs-pointer", model=model, files=few(pointers, _SHOWN))
    yield from _config(checkpoint)
    if weights:
        yield from _shards(checkpoint)
    if tokenizer and not checkpoint.has_vocabulary:
        files = few(checkpoint.tokenizer, _SHOWN) or "no file of one"
        yield finding("tokenizer", model=model, folder=checkpoint.folder, files=files)


def missing_shards(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of files of weights that are named and are not there."""
    present = {shard.name for shard in checkpoint.shards}
    named = set(checkpoint.index.values())
    for name in present if not named else ():
        if match := _NUMBERED.fullmatch(name):
            stem, _, count = match.groups()
            named |= {f"{stem}-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1)}
    return tuple(sorted(named - present))


def _config(checkpoint: Checkpoint) -> Iterator[Finding]:
    model = checkpoint.name
    for name, why in checkpoint.unreadable.items():
        yield finding("unreadable", name=name, model=model, why=why)
    if checkpoint.gguf and not checkpoint.shards:
        yield finding("gguf", model=model, files=few(checkpoint.gguf, _SHOWN))
    elif not (checkpoint.config or checkpoint.mistral) and not {"config.json"} & {
        *checkpoint.unreadable,
        *checkpoint.pointers,
    }:
        yield finding("no-config", model=model, folder=checkpoint.folder)


def _shards(checkpoint: Checkpoint) -> Iterator[Finding]:
    model = checkpoint.name
    for shard in checkpoint.shards:
        if shard.problem:
            yield finding("shard-damaged", file=shard.name, model=model, why=shard.problem)
        elif not shard.pointer and shard.size != shard.expected:
            sizes = {"size": shard.size, "expected": shard.expected}
            yield finding("shard-size", file=shard.name, model=model, **sizes)
    if missing := missing_shards(checkpoint):
        yield finding("shard-missing", model=model, files=few(missing, _SHOWN))
    if not (checkpoint.shards or checkpoint.gguf or checkpoint.other_weights or checkpoint.index):
        yield finding("no-weights", model=model, folder=checkpoint.folder)


# Quantization ----------------------------------------------------------------------------------------------


def check_quantization(recipe: Recipe, checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield findings where recipe, configuration and tensors of *checkpoint* disagree."""
    if not checkpoint.config:
        return
    found, model = find_quantization(checkpoint), checkpoint.name
    yield from _by_recipe(recipe, model, found)
    yield from _by_tensors(checkpoint, found)
    if "SVD" in found.algorithm.upper():
        yield finding("quantization-known-failure", model=model, format=found.algorithm)
    if vision := [t.name for t in checkpoint.tensors if _VISION.search(t.name) and _SCALES.search(t.name)]:
        yield finding("vision-quantized", model=model, tensor=vision[0], more=len(vision) - 1)


def _by_recipe(recipe: Recipe, model: str, found: Quantization) -> Iterator[Finding]:
    method, stated = found.method, _stated(found)
    if recipe.weights and _family(recipe.weights) != _family(method):
        facts = {"weights": recipe.weights, "stated": stated, "method": method}
        yield finding("quantization-recipe", model=model, **facts)


def _by_tensors(checkpoint: Checkpoint, found: Quantization) -> Iterator[Finding]:
    tensors = list(checkpoint.tensors)
    packed = [t for t in tensors if t.dtype in _PACKED and len(t.shape) > 1]
    scaled = [t for t in tensors if _SCALES.search(t.name)]
    if found.method == NONE and packed and scaled:
        first = packed[0]
        yield finding("quantization-unstated", model=checkpoint.name, tensor=first.name, dtype=first.dtype)
    if tensors and found.method != NONE and not packed and not scaled:
        facts = {"stated": _stated(found), "count": len(tensors)}
        yield finding("quantization-absent", model=checkpoint.name, **facts)


def _stated(found: Quantization) -> str:
    algorithm = f" ({found.algorithm})" if found.algorithm else ""
    said = "nothing of quantization" if found.method == NONE else f"{found.method}{algorithm}"
    return f"{found.source or 'config.json'} says {said}"


def _family(method: str) -> str:
    return (
        method.lower().replace("_", "-").removesuffix("-fp4").removesuffix("-mixed").removesuffix("-marlin")
    )
