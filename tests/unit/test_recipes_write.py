"""A recipe of the user's own is a valid file, without what belongs to another model."""

from pathlib import Path

import pytest

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.recipes import load_recipe
from sparkwright.recipes.write import new_recipe


def test_another_model_leaves_out_what_is_said_of_the_first(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(
        new_recipe("mine", "qwen3.6-27b-dflash", model="my/model", drafter="my/drafter"), encoding="utf-8"
    )
    mine, base = load_recipe(path), load_recipe("qwen3.6-27b-dflash")
    assert (mine.name, mine.model, mine.drafter) == ("mine", "my/model", "my/drafter")
    assert (mine.evidence, mine.reference, mine.band, mine.notes, mine.about) == ((), (), "", (), None)
    assert (mine.flags, mine.uses, mine.why) == (base.flags, base.uses, base.why)


def test_same_model_keeps_its_facts(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(new_recipe("mine", "qwen3.6-27b-mtp"), encoding="utf-8")
    assert load_recipe(path).evidence == load_recipe("qwen3.6-27b-mtp").evidence


def test_without_a_drafter_nothing_drafts(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(new_recipe("mine", "qwen3.6-27b-dflash", drafter=""), encoding="utf-8")
    mine = load_recipe(path)
    assert (mine.drafter, mine.speculative) == ("", {})
    assert not [name for name in mine.why if name.startswith("speculative.")]


def test_unknown_base_and_a_bad_file_are_refused(tmp_path: Path):
    with pytest.raises(UnknownNameError):
        new_recipe("mine", "no-such-recipe")
    bad = tmp_path / "bad.toml"
    bad.write_text('format = 1\nname = "bad"\ntitle = "t"\nmodel = "m"\nnonsense = 1\n', encoding="utf-8")
    with pytest.raises(ConfigError):
        new_recipe("mine", str(bad))
