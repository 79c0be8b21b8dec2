"""A recipe of the user's own is a valid file, without what belongs to another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.recipes import Recipe, load_recipe
from sparkwright.recipes.write import new_recipe

NAME = "qwen3.6-27b-dflash"


@pytest.fixture
def mine(tmp_path: Path) -> Callable[..., Recipe]:
    def write(base: str, **changes: str) -> Recipe:
        path = tmp_path / "mine.toml"
        path.write_text(new_recipe("mine", base, **changes), encoding="utf-8")
        return load_recipe(path)

    return write


def test_another_model_leaves_out_what_is_said_of_the_first(mine):
    found, base = mine(NAME, model="my/model", drafter="my/drafter"), load_recipe(NAME)
    assert (found.name, found.model, found.drafter) == ("mine", "my/model", "my/drafter")
    assert (found.evidence, found.reference, found.band, found.notes, found.about) == ((), (), "", (), None)
    assert (found.flags, found.uses, found.why) == (base.flags, base.uses, base.why)


def test_same_model_keeps_its_facts(mine):
    assert mine("qwen3.6-27b-mtp").evidence == load_recipe("qwen3.6-27b-mtp").evidence


def test_without_a_drafter_nothing_drafts(mine):
    found = mine(NAME, drafter="")
    assert (found.drafter, found.speculative) == ("", {})
    assert not [name for name in found.why if name.startswith("speculative.")]


def test_unknown_base_and_a_bad_file_are_refused(tmp_path: Path):
    with pytest.raises(UnknownNameError):
        new_recipe("mine", "no-such-recipe")
    bad = tmp_path / "bad.toml"
    bad.write_text('format = 1\nname = "bad"\ntitle = "t"\nmodel = "m"\nnonsense = 1\n', encoding="utf-8")
    with pytest.raises(ConfigError):
        new_recipe("mine", str(bad))
