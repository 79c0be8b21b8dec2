"""A recipe's optional keys: old files stay valid, and uses are applied on top of them."""

from pathlib import Path

import pytest

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.recipes.recipe import load_recipe, served_recipe

OLD = """
format = 1
name = "mine"
title = "Mine"
model = "some/model"
drafter = "some/drafter"

[flags]
max-num-seqs = 4
kv-cache-dtype = "auto"

[speculative]
method = "dflash"
num_speculative_tokens = 7
"""
USES = """
[why]
max-num-seqs = "few users"

[uses.many]
title = "for 64 requests at a time"
flags = { max_num_seqs = 64 }
environment = { VLLM_LOGGING_LEVEL = "INFO" }
speculative = { num_speculative_tokens = 3 }
why = { max-num-seqs = "many users" }

[uses.shared]
title = "without speculation"
speculation = false
"""


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_use_is_laid_over(write):
    recipe = load_recipe(write(OLD + USES), "many")
    assert recipe.flags == {"max-num-seqs": 64, "kv-cache-dtype": "auto"}
    assert recipe.environment == {"VLLM_LOGGING_LEVEL": "INFO"}
    assert recipe.speculative == {"method": "dflash", "num_speculative_tokens": 3}
    assert recipe.why["max-num-seqs"] == "many users"
    assert recipe.title == "Mine; for 64 requests at a time"


def test_unknown_use_is_named(write):
    with pytest.raises(UnknownNameError, match=r"no use of the recipe .* 'single'") as raised:
        load_recipe(write(OLD + USES), "single")
    assert raised.value.next_step == "known: many, shared"


def test_a_folder_and_a_name_that_no_disk_takes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match="is a directory"):
        load_recipe(tmp_path / "folder.toml")
    with pytest.raises(UnknownNameError, match="there is no recipe"):
        load_recipe(f"{'x' * 300}.toml")


def test_use_cannot_take_reserved_flags(write):
    text = OLD + '[uses.many]\ntitle = "t"\nflags = { port = 1 }\n'
    with pytest.raises(ConfigError, match="does not follow") as raised:
        load_recipe(write(text))
    assert "port" in raised.value.because


@pytest.mark.parametrize(
    "values",
    [
        "[flags]\nx = inf",
        "[flags]\nx = [{ a = nan }]",
        "[flags]\nx = 2026-01-01",
        "[speculative]\nx = inf",
        "[uses.many.flags]\nx = inf",
    ],
)
def test_values_that_no_command_line_holds_are_refused(write, values):
    with pytest.raises(ConfigError, match="is a date, or is not finite"):
        load_recipe(write('format = 1\nname = "n"\ntitle = "t"\nmodel = "m"\n' + values))


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PATH", "A=B"])
def test_variables_that_load_code_are_refused(write, name):
    of_use = f'[uses.many]\ntitle = "t"\nenvironment = {{ "{name}" = "/x" }}\n'
    for text in (f'[environment]\n"{name}" = "/x"\n', of_use):
        with pytest.raises(ConfigError, match="does not follow") as raised:
            load_recipe(write(OLD + text))
        assert repr(name) in raised.value.because


@pytest.mark.parametrize("name", ["PYTHONDONTWRITEBYTECODE", "VLLM_LD_X", "TRITON_PTXAS_PATH", "OLD_PATH"])
def test_other_variables_are_taken(write, name):
    assert load_recipe(write(OLD + f'[environment]\n{name} = "1"\n')).environment == {name: "1"}


@pytest.mark.parametrize("key", ["model", "drafter"])
def test_a_model_that_would_be_an_option_is_refused(write, key):
    with pytest.raises(ConfigError, match="does not follow") as raised:
        load_recipe(write(OLD.replace(f"some/{key}", "--config=/x.yaml")))
    assert "read as an option" in raised.value.because


def test_a_recipe_is_served_for_one_user_unless_another_use_is_named() -> None:
    name = "qwen3.6-27b-dflash"
    assert served_recipe(name) == load_recipe(name, "single")
    assert served_recipe(name, "many") == load_recipe(name, "many")
    assert served_recipe("smoke") == load_recipe("smoke")  # it has no uses


def test_reasons_and_titles_that_are_not_stated_are_the_shared_ones(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'format = 1\nname = "own"\ntitle = "Own"\nmodel = "a/b"\n'
        '[flags]\nkv-cache-dtype = "fp8"\nmax_num_seqs = 3\nswap-space = 4\nasync-scheduling = true\n'
        '[why]\nasync-scheduling = "own"\n'
        "[uses.many]\nflags = { max-num-seqs = 64 }\n"
        '[uses.shared]\ntitle = "a few"\n'
    )
    recipe = load_recipe(path)
    assert recipe.why["kv-cache-dtype"] == "half the bytes of 16 bits"
    assert recipe.why["max-num-seqs"].startswith("requests at a time")
    assert recipe.why["async-scheduling"] == "own"
    assert "swap-space" not in recipe.why
    assert [use.title for use in recipe.uses.values()] == ["64 requests at a time", "a few"]
    many = load_recipe(path, "many")
    assert many.why["max-num-seqs"] == "as many as the sweep of verify measures"
