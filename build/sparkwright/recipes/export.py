"""Recipes in the format of sparkrun: YAML, with scalars as JSON, which YAML reads as they are meant."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.recipe import Recipe, serve_arguments

_PORT = 8000
# Flags that sparkrun's users change without editing a recipe.
_SETTINGS = (
    "kv-cache-dtype",
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "gpu-memory-utilization",
)
_SPARKRUN_TYPES = {"bf16": "bfloat16"}


def export(recipe: Recipe, *, container: str = "") -> str:
    """Return *recipe*, with its use applied, in the format of sparkrun.

    Args:
        recipe: the recipe.
        container: the image that holds the wheel; empty for sparkrun's own default.

    Raises:
        ConfigError: the recipe's model is made up.
    """
    if recipe.made_up:
        raise ConfigError(
            f"the recipe {recipe.name} cannot be exported",
            because="its model is generated here, and other tools cannot fetch it",
            next_step="export a recipe of a published model",
        )
    return "\n".join([f"# {recipe.title}", *_yaml(_sparkrun(recipe, container))]) + "\n"


def command_line(recipe: Recipe, *, host: str = "0.0.0.0", port: int = _PORT) -> str:  # noqa: S104 - shown, not bound
    """Return the command that serves *recipe*, with its variables, one option a line."""
    words = serve_arguments(recipe, host=host, port=port)
    variables = [f"{name}={shlex.quote(value)}" for name, value in recipe.environment.items()]
    return " \\\n  ".join([" ".join([*variables, "vllm", *words[:2]]), *_options(words[2:])])


def _options(words: tuple[str, ...]) -> Iterator[str]:
    """Yield each option with its values."""
    option: list[str] = []
    for word in words:
        if word.startswith("--") and option:
            yield shlex.join(option)
            option = []
        option.append(word)
    if option:
        yield shlex.join(option)


# sparkrun ------------------------------------------------------------------------------------------------


def _sparkrun(recipe: Recipe, container: str) -> dict[str, Any]:
    nodes = recipe.nodes
    words = serve_arguments(recipe, host="", port=_PORT)
    defaults: dict[str, Any] = {
        "host": "0.0.0.0",  # noqa: S104 - the default of sparkrun's recipes
        "port": _PORT,
        "served_model_name": recipe.name,
        "tensor_parallel": nodes,
    }
    shown = {"--host": "{host}", "--port": "{port}", "--served-model-name": "{served_model_name}"}
    for name in _SETTINGS:
        if name in recipe.flags:
            key = name.replace("-", "_")
            defaults[key], shown[f"--{name}"] = recipe.flags[name], f"{{{key}}}"
    lines = ["vllm serve {model}"]
    for option in _options(words[2:]):
        name, _, value = option.partition(" ")
        if name not in {"--tensor-parallel-size", "-tp"}:
            lines.append(f"{name} {shown.get(name, value)}".rstrip())
    lines.append("--tensor-parallel-size {tensor_parallel}")
    metadata: dict[str, Any] = {"description": recipe.title}
    if recipe.about is not None:
        metadata["model_dtype"] = _SPARKRUN_TYPES.get(recipe.about.precision, recipe.about.precision)
        metadata |= {"model_params": recipe.about.parameters} if recipe.about.parameters else {}
    if (kv := str(recipe.flags.get("kv-cache-dtype", "auto"))) != "auto":
        metadata["kv_dtype"] = kv
    return {
        "recipe_version": "2",
        "model": recipe.model,
        "runtime": "vllm-distributed",
        **({"container": container} if container else {}),
        "min_nodes": nodes,
        "max_nodes": nodes,
        "metadata": metadata,
        "defaults": defaults,
        **({"env": recipe.environment} if recipe.environment else {}),
        "command": _Block(" \\\n    ".join(lines)),
    }


# YAML ----------------------------------------------------------------------------------------------------


class _Block(str):
    """A text of several lines, written as it is."""

    __slots__ = ()


def _yaml(tables: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in tables.items():
        if isinstance(value, _Block):
            yield f"{indent}{key}: |"
            yield from (f"{indent}  {line}".rstrip() for line in value.splitlines())
        elif isinstance(value, dict) and value:
            yield f"{indent}{key}:"
            yield from _yaml(value, f"{indent}  ")
        elif isinstance(value, list) and value:
            yield f"{indent}{key}:"
            yield from (f"{indent}  - {_scalar(one)}" for one in value)
        else:
            yield f"{indent}{key}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
