"""Write a recipe as a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import ConfigError
from sparkwright.recipes.recipe import Recipe, load_recipe


def recipe_text(recipe: Recipe, comment: str = "") -> str:
    """Return the text of *recipe* as a file of its own, without fields that have their defaults.

    It begins with *comment*, lines without ``#``.

    Raises:
        ConfigError: the result is no recipe.
    """
    import tomlkit

    document = tomlkit.document()
    for line in comment.splitlines():
        document.add(tomlkit.comment(line))
    usual = to_builtins(Recipe(format=recipe.format, name="", title="", model=""))
    told = {name: value for name, value in to_builtins(recipe).items() if value != usual.get(name)}
    plain = {"format": recipe.format, **told}
    for name, value in sorted(plain.items(), key=lambda one: _is_table(one[1])):
        document.add(name, tomlkit.item(_without_empty(value)))
    return _valid(tomlkit.dumps(document), recipe.name)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _without_empty(value: Any) -> Any:
    """Return *value* without absent values, for which TOML has no word."""
    if isinstance(value, dict):
        return {name: _without_empty(one) for name, one in value.items() if one is not None}
    if not isinstance(value, list | tuple):
        return value
    if None in value:
        raise ConfigError(
            "a list with null cannot be in a recipe",
            because=f"TOML has no word for it: {value!r}",
            next_step="leave the option out, or give it at each start with --set",
        )
    return [_without_empty(one) for one in value]


def _valid(text: str, name: str) -> str:
    """Return *text* if it follows the format of recipes.

    Raises:
        ConfigError: it does not.
    """
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / f"{name}.toml"
        written.write_text(text, encoding="utf-8")
        _ = load_recipe(written)
    return text
