"""Write a recipe of the user's own, from another one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.base.config import to_builtins
from sparkwright.recipes.recipe import Recipe, load_recipe, recipe_path

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

# They say something of another model.
_OTHERS = ("evidence", "reference", "band", "about", "evaluation", "notes")


def new_recipe(name: str, base: str, *, model: str = "", drafter: str | None = None) -> str:
    """Return the text of a recipe *name* like *base*.

    Args:
        name: of the new recipe.
        base: name or path of the other one.
        model: another model; empty for the same.
        drafter: another drafter, empty for no speculation; `None` for the same.

    Raises:
        UnknownNameError: there is no such recipe.
        ConfigError: the result is no recipe.
    """
    import tomlkit

    document = tomlkit.parse(recipe_path(base).read_text(encoding="utf-8"))
    document["title"] = f"{document['title']}, as {name}"
    document["name"] = name
    if model and model != document["model"]:
        for key in _OTHERS:
            document.pop(key, None)
        document["title"] = f"{model}, by the flags of {base}"
        document["model"] = model
        document.pop("weights", None)
    if drafter is not None:
        document["drafter"] = drafter
        if not drafter:
            _leave_speculation_out(document)
    return _valid(tomlkit.dumps(document), name)


def recipe_text(recipe: Recipe, comment: str = "") -> str:
    """Return the text of *recipe* as a file of its own, without fields that have their defaults.

    Args:
        recipe: the recipe.
        comment: lines to begin the file with, without ``#``.

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
    return [_without_empty(one) for one in value] if isinstance(value, list | tuple) else value


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


def _leave_speculation_out(document: TOMLDocument) -> None:
    document.pop("drafter", None)
    document.pop("speculative", None)
    reasons: Any = document.get("why", {})
    for name in [name for name in reasons if name.startswith("speculative.")]:
        del reasons[name]
