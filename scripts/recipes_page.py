"""Write the tables of docs/recipes.md from the recipes that ship: python scripts/recipes_page.py."""

from __future__ import annotations

from pathlib import Path

from sparkwright.recipes import GRADES, Recipe, recipes

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"
_BEGIN, _END = "<!-- {} begin -->", "<!-- {} end -->"


def tables() -> dict[str, str]:
    """Return every table by the name of its place."""
    return {
        "recipes": _table(
            ("recipe", "model", "drafter", "KV cache", "machines", "uses", "series", "evidence"),
            [_recipe(one) for one in recipes().values()],
        ),
        "grades": _table(("grade", "what it says"), [(f"`{grade}`", said) for grade, said in GRADES.items()]),
    }


def _recipe(recipe: Recipe) -> tuple[str, ...]:
    page = recipe.about.page if recipe.about is not None else ""
    return (
        f"`{recipe.name}`",
        f"[{recipe.model}]({page})" if page else recipe.model,
        recipe.drafter or str(recipe.speculative.get("method", "none")),
        str(recipe.flags.get("kv-cache-dtype", "auto")),
        str(recipe.nodes),
        ", ".join(recipe.uses) or "none",
        ", ".join(recipe.series) or "any",
        recipe.standing,
    )


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def page(text: str) -> str:
    """Return the page *text* with its tables as they should be.

    Raises:
        ValueError: the place of a table is missing.
    """
    for name, table in tables().items():
        begin, end = _BEGIN.format(name), _END.format(name)
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"the page has no place for the table {name!r}")
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
