"""The lists of FlashInfer's kernels, and the build files that its generators write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkwright.base.errors import ConfigError, NativeBuildError, UnknownNameError
from sparkwright.companion.model import CompanionSpec, load_companion
from sparkwright.companion.ninja import read_ninja
from sparkwright.recipes.recipe import load_recipe, recipes

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "patchsets" / "companions").glob("*.toml"))
LIST = """
format = 1
flashinfer = { filename = "flashinfer_python-1.2-py3-none-any.whl", sha256 = "%s", size = 1 }
paths = ["include"]
[tvm-ffi]
[modules.one]
generator = "a.b:make"
why = "it is called"
[modules.two]
generator = "a.b:make"
arguments = { kind = "torch.uint8", heads = 2, fast = false }
arches = ["12.1a"]
why = "it is called"
[modules.three]
generator = "a.b:make"
why = "it is called"
[recipes]
"*" = ["one"]
chat = ["two"]
""" % ("0" * 64)


def written(folder: Path, text: str = LIST) -> CompanionSpec:
    (folder / "list.toml").write_text(text)
    return load_companion(folder / "list.toml")


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_shipped_list_names_shipped_recipes_and_no_module_for_nothing(path: Path) -> None:
    spec = load_companion(path)
    assert set(spec.recipes) - {"*"} <= set(recipes())
    assert {name for wanted in spec.recipes.values() for name in wanted} | {"topk"} >= set(spec.modules)
    assert set(spec.tvm_ffi) == {"aarch64", "x86_64"}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_shipped_recipe_with_nvfp4_weights_is_listed(path: Path) -> None:
    spec = load_companion(path)
    served = {name: load_recipe(name) for name in recipes()}
    of_series = {name: one for name, one in served.items() if path.stem in one.series}
    quantised = {name for name, one in of_series.items() if one.about and one.about.precision == "nvfp4"}
    assert len(quantised) > 10
    assert quantised <= {name for name, wanted in spec.recipes.items() if "gemm-fp4" in wanted}
    elsewhere = {name for name in quantised if "moe-backend" in of_series[name].flags}
    assert elsewhere
    assert not elsewhere & {name for name, wanted in spec.recipes.items() if "moe" in wanted}


def test_a_recipe_needs_its_own_modules_and_those_of_every_recipe(tmp_path: Path) -> None:
    spec = written(tmp_path)
    assert spec.version == "1.2"
    assert spec.chosen("12.1a", recipes=["chat"]) == ["one", "two"]
    assert spec.chosen("12.1a", recipes=["unlisted"]) == ["one"]
    assert spec.chosen("12.1a") == ["one", "two"]
    assert spec.chosen("12.1a", modules=["three"]) == ["three"]
    assert spec.chosen("12.1a", recipes=["chat"], modules=["three"]) == ["one", "two", "three"]


def test_a_module_for_other_cards_is_left_out_unless_it_is_named(tmp_path: Path) -> None:
    spec = written(tmp_path)
    assert spec.chosen("9.0a", recipes=["chat"]) == ["one"]
    with pytest.raises(UnknownNameError, match=r"not for 9\.0a"):
        spec.chosen("9.0a", modules=["two"])
    with pytest.raises(UnknownNameError, match="four"):
        spec.chosen("9.0a", modules=["four"])


def test_a_list_is_refused_that_is_missing_or_names_an_unknown_module(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_companion(tmp_path / "none.toml")
    with pytest.raises(UnknownNameError, match="is incomplete"):
        written(tmp_path, LIST.replace('["two"]', '["two", "four"]'))


# Build files ------------------------------------------------------------------------------

NINJA = """\
ninja_required_version = 1.3
cuda = /cuda
nvcc = $cuda/bin/nvcc
launcher =
common = -DA=1 $
    -I/data
cuda_cflags = $common $
    -O3

rule cuda_compile
  command = $launcher $nvcc -MF $out.d $cuda_cflags -c $in -o $out
  depfile = $out.d
  deps = gcc

rule link
  command = c++ $in -L$cuda/lib64 -o $out

# a comment
build /b/a.o: cuda_compile /s/a.cu
build /b/b.o: cuda_compile /s/b.cu
  cuda_cflags = ${common} -O1
build /b/m.so: link /b/a.o /b/b.o
default /b/m.so
"""


def commands(text: str = NINJA) -> Iterator[str]:
    return (" ".join(one.argv) for one in read_ninja(text, "m"))


def test_commands_are_those_that_ninja_would_run() -> None:
    assert list(commands()) == [
        "/cuda/bin/nvcc -MF /b/a.o.d -DA=1 -I/data -O3 -c /s/a.cu -o /b/a.o",
        "/cuda/bin/nvcc -MF /b/b.o.d -DA=1 -I/data -O1 -c /s/b.cu -o /b/b.o",
        "c++ /b/a.o /b/b.o -L/cuda/lib64 -o /b/m.so",
    ]
    assert [(one.rule, one.inputs, one.output) for one in read_ninja(NINJA, "m")][2] == (
        "link",
        ("/b/a.o", "/b/b.o"),
        "/b/m.so",
    )


def test_a_dollar_and_a_quoted_word_stay_what_they_are() -> None:
    text = NINJA.replace("-DA=1", "'-DA=x y' -DB=$$C")
    assert read_ninja(text, "m")[0].argv[3:5] == ("-DA=x y", "-DB=$C")


@pytest.mark.parametrize(
    ("old", "new", "because"),
    [
        ("build /b/a.o: cuda_compile", "build /b/a.o: unknown", "unknown /s/a.cu"),
        ("/s/a.cu\n", "/s/a.cu | /s/a.h\n", "/s/a.h"),
        ("default /b/m.so", "include other.ninja", "include other.ninja"),
        ("common = -DA=1", "common = $cuda_cflags", "name each other"),
    ],
)
def test_what_is_not_understood_is_refused(old: str, new: str, because: str) -> None:
    assert old in NINJA
    with pytest.raises(NativeBuildError, match="module m cannot be read") as caught:
        list(commands(NINJA.replace(old, new)))
    assert because in caught.value.because
