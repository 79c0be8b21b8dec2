"""Findings about a model's files: missing, cut off or not fetched, quantized otherwise, and chat templates.

vLLM stops over a template that is named and missing, and no chat works with a broken one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkwright.recipes import Recipe
from sparkwright.serve.preflight.checkpoint import (
    NONE,
    Checkpoint,
    Quantization,
    find_quantization,
)
from sparkwright.serve.preflight.finding import Finding, finding, listed

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
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
_MOST = 4 << 20
_LITERAL = frozenset("{}\n")  # what vLLM takes a template itself by, where no file of that name is
_BUNDLED = "template_"  # names of the templates in vLLM's own folder


def check_files(checkpoint: Checkpoint, *, weights: bool = True, tokenizer: bool = True) -> Iterator[Finding]:
    """Yield findings about the files of *checkpoint*.

    Args:
        checkpoint: the facts.
        weights: true if weights are read; not for vLLM's dummies.
        tokenizer: true if it needs a tokenizer of its own, which a drafter does not.
    """
    model = checkpoint.name
    pointers = [shard.name for shard in checkpoint.shards if shard.pointer and weights]
    if pointers := [*pointers, *checkpoint.pointers]:
        yield finding("lfs-pointer", model=model, files=listed(pointers))
    yield from _config(checkpoint)
    if weights:
        yield from _shards(checkpoint)
        yield from _index(checkpoint)
    if tokenizer and not checkpoint.has_vocabulary:
        files = listed(checkpoint.tokenizer) or "no file of one"
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
        yield finding("gguf", model=model, files=listed(checkpoint.gguf))
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
            row = "shard-size" if shard.size < shard.expected else "shard-size/long"
            yield finding(row, file=shard.name, model=model, size=shard.size, expected=shard.expected)
    if missing := missing_shards(checkpoint):
        row = "shard-missing" if len(missing) > 1 else "shard-missing/one"
        yield finding(row, model=model, count=len(missing), files=listed(missing))
    if not (checkpoint.shards or checkpoint.gguf or checkpoint.other_weights or checkpoint.index):
        yield finding("no-weights", model=model, folder=checkpoint.folder)


def _index(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Compare the index with the headers of the files that are there and whole."""
    readable = {shard.name: shard for shard in checkpoint.shards if not (shard.problem or shard.pointer)}
    held = {name: {tensor.name for tensor in shard.tensors} for name, shard in readable.items()}
    index = checkpoint.index
    if absent := [tensor for tensor, name in index.items() if name in held and tensor not in held[name]]:
        facts = {"count": len(absent), "all": len(index), "tensors": listed(absent)}
        yield finding("index", model=checkpoint.name, **facts)


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
    flag = recipe.flags.get("quantization")
    allowed = {None, "", method, *(name for name, of in _OVERRIDES.items() if method in of)}
    online = method == NONE and not str(flag).startswith(("modelopt", "compressed-tensors", "awq", "gptq"))
    if flag not in allowed and not online:
        yield finding("quantization-flag", flag=flag, model=model, stated=stated)


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


# Chat templates --------------------------------------------------------------------------------------------


def check_template(recipe: Recipe) -> Iterator[Finding]:
    """Yield findings about the chat template that *recipe* names, a file or the template itself."""
    given = recipe.flags.get("chat-template")
    if not isinstance(given, str) or not given:
        return
    text, why = _template(given)
    if why:
        yield finding("chat-template", place=given, why=why)
    elif text and (fault := _fault(text)):
        place = given if text != given else "the flag chat-template"
        yield finding("chat-template/broken", place=place, why=fault)


def _template(given: str) -> tuple[str, str]:
    """Return the template that a flag names or is, and why vLLM cannot take it; of vLLM's own neither."""
    path = Path(given)
    try:
        there = path.exists()
    except (OSError, ValueError):  # such as a whole template, which is too long for a name
        there = False
    if _LITERAL & {*given} and not there:
        return given, ""
    if there and not path.is_file():
        return "", "it is no file"
    if not path.is_absolute():
        why = "a relative path is looked up in the working folder of the server, which each start makes"
        return "", "" if given.startswith(_BUNDLED) else why
    try:
        with path.open("rb") as file:
            return file.read(_MOST).decode(), ""
    except FileNotFoundError:
        return "", "there is no such file"
    except (OSError, UnicodeDecodeError) as error:
        return "", f"it cannot be read: {error}"


def _fault(text: str) -> str:
    """Return why the template *text* does not parse as transformers parses it; empty if it does."""
    from jinja2 import Environment, TemplateSyntaxError, nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        """The tag by which transformers marks what an assistant said."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own form

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    environment = Environment(  # noqa: S701 - nothing is rendered
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    try:
        environment.parse(text)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "it is nested too deep"
    return ""
