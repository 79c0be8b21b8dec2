"""The page of recipes has the tables that the recipes which ship give."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> Any:
    found = importlib.util.spec_from_file_location("recipes_page", ROOT / "scripts" / "recipes_page.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_repositorys_page_is_what_the_script_writes(script: Any) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text, "run: python scripts/recipes_page.py"


def test_a_stale_page_is_written_anew_and_one_without_places_is_refused(script: Any) -> None:
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text.replace("`qwen3.6-27b-dflash`", "`gone`")) == text
    with pytest.raises(ValueError, match="no place"):
        script.page("# Recipes\n")
