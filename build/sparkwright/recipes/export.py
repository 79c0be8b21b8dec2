"""Recipes in the formats of other tools: vLLM's catalogue of recipes, and sparkrun.

Both are YAML. Scalars are written as JSON, which YAML reads as they are meant.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from typing import TYPE_CHECKING, Any, Literal

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.recipe import serve_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkwright.recipes.recipe import About, Recipe

Format = Literal["vllm", "sparkrun"]

_PORT = 8000
_TOOLS = ("enable-auto-tool-choice", "tool-call-parser")
_REASONING = ("reasoning-parser",)
_BITS = {"bf16": 16, "fp8": 8, "nvfp4": 4.5, "mxfp4": 4.25, "int4": 4.5}
_SPARE = 1.2  # the catalogue's own formula: weights and a fifth
# Flags that sparkrun's users change without editing a recipe.
_SETTINGS = (
    "kv-cache-dtype",
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "gpu-memory-utilization",
)
_SPARKRUN_TYPES = {"bf16": "bfloat16"}


def export(recipe: Recipe, to: Format, *, date: str = "", container: str = "") -> str:
    """Return *recipe* in the format of another tool.

    Args:
        recipe: the recipe, with its use applied.
        to: the other tool.
        date: for the catalogue, the day of the entry in ISO 8601.
        container: for sparkrun, the image that holds the wheel; empty for its own default.

    Raises:
        ConfigError: the format wants facts of the model that the recipe does not state.
    """
    if recipe.made_up:
        raise ConfigError(
            f"the recipe {recipe.name} cannot be exported",
            because="its model is generated here, and other tools cannot fetch it",
            next_step="export a recipe of a published model",
        )
    tables = _vllm(recipe, date) if to == "vllm" else _sparkrun(recipe, container)
    return "\n".join([f"# {recipe.title}", *_yaml(tables)]) + "\n"


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


# vLLM's catalogue ----------------------------------------------------------------------------------------


def _vllm(recipe: Recipe, date: str) -> dict[str, Any]:
    about, version = _required_about(recipe), min(recipe.series, key=_ordered, default="0.24")
    strategy = "single_node_tp" if recipe.nodes == 1 else "multi_node_tp"
    features = _features(recipe)
    taken = {*_TOOLS, *_REASONING, "tensor-parallel-size"}  # the strategy decides the last one
    rest = tuple(word for name in recipe.flags if name not in taken for word in _flag_words(recipe, name))
    provider = recipe.model.partition("/")[0]
    return {
        "meta": {
            "title": recipe.model.rpartition("/")[2],
            "slug": re.sub(r"[^a-z0-9.]+", "-", recipe.model.rpartition("/")[2].lower()),
            "provider": provider,
            "description": recipe.title,
            "date_added": _Plain(date),
            "date_updated": _Plain(date),
            "difficulty": "beginner" if recipe.nodes == 1 else "advanced",
            "tasks": ["text"],
            **({"hardware": {"dgx_spark_gb10": "verified"}} if recipe.grade == "served" else {}),
        },
        "model": {
            "model_id": recipe.model,
            "min_vllm_version": f"{version}.0",
            "architecture": "dense" if about.active in {"", about.parameters} else "moe",
            "parameter_count": about.parameters,
            "active_parameters": about.active or about.parameters,
            "context_length": about.context,
            "base_args": list(rest),
            "base_env": dict(recipe.environment),
        },
        "features": features,
        "opt_in_features": ["spec_decoding"] if "spec_decoding" in features else [],
        "variants": {
            "default": {
                "precision": about.precision,
                "vram_minimum_gb": _least_memory(about),
                "description": f"The checkpoint that {recipe.name} serves.",
            }
        },
        "compatible_strategies": [strategy],
        "hardware_overrides": {},
        "strategy_overrides": {strategy: {"tp": 1}} if recipe.nodes == 1 else {},
        "guide": _Block(_guide(recipe)),
    }


def _ordered(series: str) -> tuple[int, ...]:
    return tuple(map(int, series.split(".")))


def _required_about(recipe: Recipe) -> About:
    about = recipe.about
    if about is None or not (about.parameters and about.context):
        raise ConfigError(
            f"the recipe {recipe.name} cannot be exported to vLLM's catalogue",
            because="the catalogue wants the model's parameters, context and precision",
            next_step="state them in the recipe's [about]",
        )
    return about


def _features(recipe: Recipe) -> dict[str, Any]:
    features: dict[str, Any] = {}
    for name, flags, description in (
        ("tool_calling", _TOOLS, "Calls of tools, parsed into the answer's own field."),
        ("reasoning", _REASONING, "Reasoning, apart from the answer."),
    ):
        words = [word for flag in flags if flag in recipe.flags for word in _flag_words(recipe, flag)]
        if words:
            features[name] = {"description": description, "args": words}
    if recipe.speculative:
        config = {**recipe.speculative, **({"model": recipe.drafter} if recipe.drafter else {})}
        features["spec_decoding"] = {
            "description": f"Drafted tokens by {recipe.speculative.get('method', 'the drafter')}.",
            "args": ["--speculative-config", json.dumps(config)],
        }
    return features


def _flag_words(recipe: Recipe, name: str) -> tuple[str, ...]:
    import msgspec

    alone = msgspec.structs.replace(recipe, flags={name: recipe.flags[name]}, speculative={})
    whole, without = (
        serve_arguments(one, host="", port=0) for one in (alone, msgspec.structs.replace(alone, flags={}))
    )
    return whole[len(without) :]


def _least_memory(about: About) -> int:
    """Return the catalogue's least memory in 10^9 bytes: parameters at their bits, and a fifth more."""
    number, unit = float(about.parameters[:-1]), about.parameters[-1]
    billions = number * {"B": 1, "M": 0.001, "T": 1000}[unit]
    return math.ceil(billions * _BITS[about.precision] / 8 * _SPARE)


def _guide(recipe: Recipe) -> str:
    notes = "\n".join(f"- {note}" for note in recipe.limits)
    scores = "\n".join(f"- {one}" for one in recipe.evaluation)
    sources = "\n".join(f"- {one.source}" for one in recipe.evidence)
    parts = [f"## Launch command\n\n```bash\n{command_line(recipe)}\n```"]
    parts += [f"## Troubleshooting\n\n{notes}"] if notes else []
    parts += [f"## Lowest scores of lm-evaluation-harness\n\n{scores}"] if scores else []
    parts += [f"## References\n\n{sources}"] if sources else []
    return "\n\n".join(parts)


# YAML ----------------------------------------------------------------------------------------------------


class _Block(str):
    """A text of several lines, written as it is."""

    __slots__ = ()


class _Plain(str):
    """A scalar without quotes, such as a date."""

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
    return value if isinstance(value, _Plain) else json.dumps(value, ensure_ascii=False)
