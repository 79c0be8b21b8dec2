"""Each series' own ``has_flashinfer()``, by the variables that `serve` sets beside a companion."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import shutil
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sparkwright.pipeline import BuildOptions, open_job
from sparkwright.serve.flashinfer import CUBIN, companion_variables
from sparkwright.serve.runtime import ExactRequirements

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
SERIES = ("0.24", "0.33")
SOURCE = "vllm/utils/flashinfer.py"
ASKED = ("_flashinfer_nvcc_path", "has_flashinfer_cubin", "has_flashinfer")

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


@functools.cache
def source(series: str) -> str:
    with open_job(ROOT, BuildOptions(series=series)) as job:
        return job.repository.blob(job.repository.files(job.pristine.tree, [SOURCE])[SOURCE].blob).decode()


def has_flashinfer(series: str, toolkit: Path) -> Callable[[], bool]:
    """Return the release's own function, with a folder of its own in place of ``/usr/local/cuda``."""
    quiet = SimpleNamespace(debug_once=lambda *_: None, warning_once=lambda *_: None)
    envs = SimpleNamespace(**{CUBIN: bool(int(os.environ.get(CUBIN, "0")))})
    names: dict[str, Any] = {"_DEFAULT_CUDA_HOME": str(toolkit), "logger": quiet, "envs": envs}
    names |= {"functools": functools, "importlib": importlib, "shutil": shutil, "os": os}
    nodes = ast.parse(source(series)).body
    kept = [one for one in nodes if isinstance(one, ast.FunctionDef) and one.name in ASKED]
    exec(compile(ast.Module(kept, []), SOURCE, "exec"), names)  # noqa: S102 - upstream's own text
    found: Callable[[], bool] = names["has_flashinfer"]
    return found


def locked(series: str) -> ExactRequirements:
    path = ROOT / "patchsets" / f"{series}-aarch64.requirements.txt"
    return ExactRequirements(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def sources() -> None:
    """Read both before PATH is taken away: git is on it."""
    for series in SERIES:
        source(series)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with FlashInfer alone, and no compiler on PATH."""
    folder = tmp_path / "site-packages"
    (folder / "flashinfer").mkdir(parents=True)
    (folder / "flashinfer" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(folder)])
    for name in ("CUDA_HOME", "CUDA_PATH", CUBIN):
        monkeypatch.delenv(name, raising=False)
    importlib.invalidate_caches()
    return folder


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("tools", [*product((True, False), repeat=2)], ids=str)
def test_vllm_takes_flashinfers_kernels_with_a_whole_companion(
    packages: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    series: str,
    tools: tuple[bool, bool],
) -> None:
    requirements, bin_folder = locked(series), tmp_path / "bin"
    bin_folder.mkdir()
    for name, there in zip(("nvcc", "ninja"), tools, strict=True):
        if there:
            (bin_folder / name).touch(0o755)
    monkeypatch.setenv("PATH", str(bin_folder))
    if "flashinfer-cubin" in requirements.text:
        (packages / "flashinfer_cubin").mkdir()
        (packages / "flashinfer_cubin" / "__init__.py").touch()
    alone = has_flashinfer(series, tmp_path / "cuda")()
    assert alone == (series == "0.24" or all(tools)), "without the variable"
    for name, value in companion_variables(requirements, os.environ, complete=True).items():
        monkeypatch.setenv(name, value)
    assert has_flashinfer(series, tmp_path / "cuda")()
    assert (CUBIN in os.environ) == (not alone), "set only where it changes the answer"


def test_the_lock_of_033_has_no_cubins_and_that_of_024_has() -> None:
    found = {series: "flashinfer-cubin" in locked(series).text for series in SERIES}
    assert found == {"0.24": True, "0.33": False}
