"""When vLLM is told to take FlashInfer's kernels without their compilers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sparkwright.recipes import Recipe
from sparkwright.serve.flashinfer import CUBIN, companion_variables, environment_path
from sparkwright.serve.model import ServeOptions
from sparkwright.serve.run import server_variables
from sparkwright.serve.runtime import ExactRequirements

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT = ExactRequirements("flashinfer-python==0.7.2 --hash=sha256:0\n")
WITH = ExactRequirements(f"{WITHOUT.text}flashinfer-cubin==0.6.12 --hash=sha256:0\n")


def programs(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch(0o755)
    return folder


@pytest.mark.parametrize("there", [(), ("nvcc",), ("ninja",)])
def test_it_is_told_where_a_compiler_is_missing(tmp_path: Path, there: tuple[str, ...]) -> None:
    path = {"PATH": str(programs(tmp_path / "bin", *there))}
    assert companion_variables(WITHOUT, path, complete=True) == {CUBIN: "1"}


def test_it_is_not_told_where_it_would_compile_or_finds_cubins(tmp_path: Path) -> None:
    bare = {"PATH": str(tmp_path)}
    both = {"PATH": str(programs(tmp_path / "bin", "nvcc", "ninja"))}
    assert companion_variables(WITHOUT, both, complete=True) == {}
    assert companion_variables(WITH, bare, complete=True) == {}
    assert companion_variables(WITHOUT, bare, complete=False) == {}, "a missing kernel could not be compiled"
    assert companion_variables(WITHOUT, {**bare, CUBIN: "0"}, complete=True) == {}, "the user decided"


def test_the_environments_ninja_is_found(tmp_path: Path) -> None:
    python = programs(tmp_path / "env", "python", "ninja") / "python"
    found = environment_path(python, {"PATH": "/usr/bin"})
    assert found == {"PATH": f"{python.parent}{os.pathsep}/usr/bin"}
    assert environment_path(python, found) == {}
    bare = programs(tmp_path / "other", "python") / "python"
    assert environment_path(bare, {"PATH": "/usr/bin"}) == {}


def test_the_recipes_variable_counts_before_it(tmp_path: Path) -> None:
    def told(**environment: str) -> str | None:
        recipe = Recipe(format=1, name="r", title="R", model="m", environment=environment)
        return server_variables(recipe, ServeOptions(), tmp_path, installed={CUBIN: "1"}).get(CUBIN)

    assert told() == "1"
    assert told(**{CUBIN: "0"}) is None
