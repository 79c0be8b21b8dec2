"""Write a recipe of the user's own, from another one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.recipes.recipe import load_recipe, recipe_path

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

# They say something of another model.
_OTHERS = ("evidence", "reference", "band", "about", "notes")


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
    text = tomlkit.dumps(document)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / f"{name}.toml"
        written.write_text(text, encoding="utf-8")
        _ = load_recipe(written)  # what is written follows the format
    return text


def _leave_speculation_out(document: TOMLDocument) -> None:
    document.pop("drafter", None)
    document.pop("speculative", None)
    reasons: Any = document.get("why", {})
    for name in [name for name in reasons if name.startswith("speculative.")]:
        del reasons[name]
