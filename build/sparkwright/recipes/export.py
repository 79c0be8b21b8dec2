"""A recipe as the command that serves it, and by a template in the format of sparkrun."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from sparkwright.base.errors import ConfigError
from sparkwright.recipes.recipe import PORT, Recipe, serve_arguments

_TEMPLATES = Path(__file__).with_name("templates")
# Flags that sparkrun's users change without editing a recipe.
_SETTINGS = (
    "kv-cache-dtype",
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "gpu-memory-utilization",
)


def export(recipe: Recipe, *, container: str = "") -> str:
    """Return *recipe*, with its use applied, in the format of sparkrun.

    Args:
        recipe: the recipe.
        container: the image that holds the wheel; empty for sparkrun's own default.

    Raises:
        ConfigError: the recipe's model is made up.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    if recipe.made_up:
        raise ConfigError(
            f"the recipe {recipe.name} cannot be exported",
            because="its model is generated here, and other tools cannot fetch it",
            next_step="export a recipe of a published model",
        )
    settings = {name.replace("-", "_"): recipe.flags[name] for name in _SETTINGS if name in recipe.flags}
    shown = {
        f"--{key.replace('_', '-')}": f"{{{key}}}" for key in ("host", "port", "served_model_name", *settings)
    }
    options = []
    for option in _options(serve_arguments(recipe, host="", port=PORT)[2:]):
        name, _, value = option.partition(" ")
        if name not in {"--tensor-parallel-size", "-tp"}:
            options.append(f"{name} {shown.get(name, value)}".rstrip())
    made = Environment(  # noqa: S701 - no HTML: what comes from outside is JSON, which YAML reads as it is meant
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = made.get_template("sparkrun.yaml")
    return template.render(recipe=recipe, container=container, settings=settings, options=options)


def command_line(recipe: Recipe, *, host: str = "0.0.0.0", port: int = PORT) -> str:  # noqa: S104 - shown, not bound
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
