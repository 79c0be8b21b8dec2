"""The wheel that is served where none is named: of the present build spec, else of the highest revision."""

import os
from pathlib import Path

import pytest
from channel_kit import small_wheel

from sparkwright.base.errors import ConfigError
from sparkwright.cli.service import _wheel
from sparkwright.engine import offered
from sparkwright.engine.offered import built_wheel, is_present, present_specs
from sparkwright.pipeline.checkout import open_checkout
from sparkwright.recipes.recipe import load_recipe

ROOT = Path(__file__).parents[3]
NOWHERE = {}
# In the order in which they were made; what was made last is what nobody means.
MADE = (
    ("0.33.0+spark.1.aaaaaaaa", "aarch64"),
    ("0.24.0+spark.11.bbbbbbbb", "aarch64"),
    ("0.24.0+spark.12.cccccccc", "x86_64"),
    ("0.24.0+spark.12.dddddddd", "aarch64"),
    ("0.24.0+spark.9.eeeeeeee", "aarch64"),
)


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A folder with wheels of two series and machines."""
    for age, (version, machine) in enumerate(MADE):
        path = small_wheel(tmp_path, version, tag=f"py3-none-manylinux_2_28_{machine}")
        os.utime(path, (1e9 + age, 1e9 + age))
    return tmp_path


def test_the_present_build_spec_comes_before_a_higher_revision_and_a_younger_file(dist: Path) -> None:
    present = {"0.24": ("bbbbbbbb" * 8,)}
    chosen = built_wheel(dist, "aarch64", ("0.24",), present)
    assert "spark.11." in chosen.wheel.name
    assert chosen.why == "the present build spec of series 0.24"


def test_without_it_the_highest_revision_comes_before_a_younger_file(dist: Path) -> None:
    chosen = built_wheel(dist, "aarch64", ("0.24",), {"0.24": ("f" * 64,)})
    assert "spark.12.dddddddd" in chosen.wheel.name
    assert chosen.why.startswith("the highest revision of series 0.24; 'sparkwright wheel --series 0.24'")
    assert built_wheel(dist, "aarch64", ("0.24",), NOWHERE).why == "the highest revision of series 0.24"
    assert "x86_64" in built_wheel(dist, "x86_64", (), NOWHERE).wheel.name


def test_the_preferred_series_is_the_default_one_and_then_the_first(dist: Path) -> None:
    specs = {"0.33": ("f" * 64,), "0.24": ("f" * 64,)}
    assert "0.33.0" in built_wheel(dist, "aarch64", ("0.24", "0.33"), specs).wheel.name
    assert "0.33.0" in built_wheel(dist, "aarch64", (), specs).wheel.name
    assert "0.24.0" in built_wheel(dist, "aarch64", ("0.24", "0.33"), NOWHERE).wheel.name
    assert "0.33.0" in built_wheel(dist, "aarch64", ("0.33",), NOWHERE).wheel.name


def test_of_one_revision_kernels_for_the_card_come_first_and_then_the_youngest(tmp_path: Path) -> None:
    made = ("sm121a.aaaaaaaa", "mixed.5.sm121a.bbbbbbbb.stock.fa2", "cccccccc", "dddddddd")
    paths = [small_wheel(tmp_path, f"0.24.0+spark.12.{rest}", tag="py3-none-linux_aarch64") for rest in made]
    for age, path in enumerate(paths):
        os.utime(path, (1e9 + age, 1e9 + age))
    for expected in (paths[0], paths[1], paths[3], paths[2]):
        assert built_wheel(tmp_path, "aarch64", ("0.24",), NOWHERE).wheel == expected
        expected.unlink()


def test_a_checkout_describes_a_wheel_of_each_series_with_and_without_own_kernels() -> None:
    present = present_specs(ROOT, "aarch64")
    assert next(iter(present)) == open_checkout(ROOT).series
    for series, (stock, native) in present.items():
        checkout = open_checkout(ROOT, series)
        assert stock == checkout.build_spec().digest != native
        release = checkout.lock.release.version
        assert is_present(f"{release}+spark.1.{stock[:12]}", present)
        assert is_present(f"{release}+spark.1.sm121a.{native[:12]}", present)
        assert not is_present(f"{release}+spark.1.{'a' * 12}", present)
        assert not is_present("0.19.0", present)


def test_what_is_missing_is_built_in_minutes_and_by_its_series(dist: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no wheel of series 0\.33 for this machine, which is x86_64"
    ) as caught:
        built_wheel(dist, "x86_64", ("0.33",), NOWHERE)
    assert "sparkwright wheel --platform x86_64 --series 0.33 --kernels upstream" in caught.value.next_step
    assert "--url" not in caught.value.next_step, "serve and service have none"


def test_what_is_missing_is_built_of_the_default_series_if_the_recipe_is_for_it(tmp_path: Path) -> None:
    specs = {"1.3": ("f" * 64,), "1.2": ("f" * 64,)}
    build = "sparkwright wheel --platform aarch64{} --kernels upstream"
    for wanted, named in (
        (("1.2", "1.3"), build.format(" --series 1.3")),
        (("1.2",), build.format(" --series 1.2")),
        ((), build.format("")),
        (("9.9",), "take a series that there is: --series 1.3 or 1.2"),
    ):
        with pytest.raises(ConfigError) as caught:
            built_wheel(tmp_path, "aarch64", wanted, specs)
        assert named in caught.value.next_step


def test_a_service_takes_the_wheel_of_its_recipe_where_none_is_named(dist, monkeypatch):
    monkeypatch.setattr(offered, "machine", lambda: "aarch64")
    monkeypatch.setenv("SPARKWRIGHT_DIST", str(dist))
    monkeypatch.chdir(dist)
    asked = {"wheel": None, "series": ""}
    assert "0.33.0" in _wheel(asked, load_recipe("laguna-s-2.1-dflash"), "", offline=True).wheel.name
    assert "0.24.0" in _wheel(asked, load_recipe("qwen3.6-27b-nvfp4-kv-dflash"), "", offline=True).wheel.name
