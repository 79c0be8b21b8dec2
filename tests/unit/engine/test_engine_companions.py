"""A recipe's companion is found among wheels and installed by its digest; one that lacks kernels is not."""

import shutil
from pathlib import Path

import companion_kit as kit
import pytest

from sparkwright.companion.wheel import write_companion
from sparkwright.engine.flashinfer import LISTS, choose_companion, with_companion
from sparkwright.engine.runtime import ExactRequirements
from sparkwright.native.model import Target
from sparkwright.recipes.recipe import Recipe
from sparkwright.store.paths import Store

RECIPE = Recipe(format=1, name="r", title="R", model="m")
_LIST = """\
format = 1
flashinfer = {{ filename = "flashinfer_python-1.2.3-py3-none-any.whl", sha256 = "{zeros}", size = 1 }}
paths = ["csrc"]
[tvm-ffi]
[modules.sampling]
generator = "flashinfer.jit.sampling:gen"
why = "it samples"
[modules.moe]
generator = "flashinfer.jit.moe:gen"
why = "experts"
arches = ["12.1a"]
[recipes]
"*" = ["sampling"]
experts = ["moe"]
"""


@pytest.fixture
def patchsets(tmp_path: Path) -> Path:
    folder = tmp_path / "patchsets"
    (folder / LISTS).mkdir(parents=True)
    (folder / LISTS / "0.33.toml").write_text(_LIST.format(zeros="0" * 64))
    return folder


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return tmp_path / f"vllm-0.33.0+spark.2.01234567-cp38-abi3-manylinux_2_28_{kit.TARGET.machine}.whl"


def companion(store: Store, folder: Path, *names: str, target: Target = kit.TARGET) -> Path:
    modules = [kit.module(store, kit.library(folder, name), name=name) for name in names]
    return write_companion(store, kit.content(modules, target), folder / "dist").path


def test_the_companion_with_the_recipes_kernels_is_chosen(store, tmp_path, wheel, patchsets):
    made = companion(store, tmp_path, "sampling")
    found = choose_companion(wheel, RECIPE, "12.1", [made.parent, made.parent], patchsets)
    assert (found.wheel, found.missing) == (made, ())


def test_the_kernels_that_the_companion_lacks_are_named(store, tmp_path, wheel, patchsets):
    made = companion(store, tmp_path, "sampling")
    experts = Recipe(format=1, name="experts", title="E", model="m")
    found = choose_companion(wheel, experts, "12.1", [made.parent], patchsets)
    assert (found.wheel, found.missing) == (made, ("moe",))
    other = choose_companion(wheel, RECIPE, "9.0", [made.parent], patchsets)
    assert (other.wheel, other.missing) == (None, ("sampling",))
    gone = choose_companion(wheel, RECIPE, "12.1", [tmp_path / "gone"], patchsets)
    assert gone.missing == ("sampling",)


def test_nothing_is_needed_without_a_card_or_a_list(store, tmp_path, wheel, patchsets):
    made = companion(store, tmp_path, "sampling")
    for capability, lists in (("", patchsets), ("12.1", None), ("12.1", tmp_path / "empty")):
        found = choose_companion(wheel, RECIPE, capability, [made.parent], lists)
        assert (found.wheel, found.missing) == (None, ())


def test_it_is_required_by_its_digest(store: Store, tmp_path: Path) -> None:
    from sparkwright.base.digests import sha256_file

    made = companion(store, tmp_path, "sampling")
    copied = tmp_path / "with space" / made.name
    copied.parent.mkdir()
    shutil.copyfile(made, copied)
    text = with_companion(ExactRequirements("a==1\n"), copied).text
    assert text.startswith("a==1\nflashinfer-jit-cache @ file:///")
    assert "with%20space" in text
    assert text.endswith(f" --hash=sha256:{sha256_file(made)}\n")
