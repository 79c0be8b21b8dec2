"""Each series' own choices: ``has_flashinfer()``, and the attention that the lists of companions are for."""

import ast
import functools
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Collection
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sparkwright.engine.flashinfer import CUBIN, cubin_variables
from sparkwright.engine.runtime import ExactRequirements
from sparkwright.pipeline.job import open_job
from sparkwright.pipeline.options import BuildOptions

ROOT = Path(__file__).parents[3]
SERIES = ("0.24", "0.33")
SOURCE = "vllm/utils/flashinfer.py"
PLATFORM, FLASH = "vllm/platforms/cuda.py", "vllm/v1/attention/backends/flash_attn.py"
ASKED = ("_flashinfer_nvcc_path", "has_flashinfer_cubin", "has_flashinfer")

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


@functools.cache
def source(series: str, path: str) -> str:
    with open_job(ROOT, BuildOptions(series=series)) as job:
        return job.repository.blob(job.repository.files(job.pristine.tree, [path])[path].blob).decode()


def taken(series: str, path: str, asked: Collection[str], names: dict[str, Any]) -> dict[str, Any]:
    """Return *names* with the release's own functions and methods called *asked* of the file *path*."""
    found = [one for one in ast.walk(ast.parse(source(series, path))) if isinstance(one, ast.FunctionDef)]
    kept = [one for one in found if one.name in asked]
    for one in kept:  # methods of a class are asked as functions; annotations name what is not imported here
        one.decorator_list, one.returns = [], None
        for argument in one.args.args:
            argument.annotation = None
    exec(compile(ast.Module(kept, []), path, "exec"), names)  # noqa: S102 - upstream's own text
    return names


def has_flashinfer(series: str, toolkit: Path) -> Callable[[], bool]:
    """Return the release's own function, with a folder of its own in place of ``/usr/local/cuda``."""
    quiet = SimpleNamespace(debug_once=lambda *_: None, warning_once=lambda *_: None)
    envs = SimpleNamespace(**{CUBIN: bool(int(os.environ.get(CUBIN, "0")))})
    names: dict[str, Any] = {"_DEFAULT_CUDA_HOME": str(toolkit), "logger": quiet, "envs": envs}
    names |= {"functools": functools, "importlib": importlib, "shutil": shutil, "os": os}
    nodes = ast.parse(source(series, SOURCE)).body
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
    for series, path in product(SERIES, (SOURCE, PLATFORM, FLASH)):
        source(series, path)


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
    packages, tmp_path, monkeypatch, series, tools
):
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
    told = cubin_variables(requirements, os.environ, capability="12.1", complete=True)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert has_flashinfer(series, tmp_path / "cuda")()
    assert (CUBIN in os.environ) == (series == "0.33"), "set only where there are no cubins"


def test_the_lock_of_033_has_no_cubins_and_that_of_024_has() -> None:
    found = {series: "flashinfer-cubin" in locked(series).text for series in SERIES}
    assert found == {"0.24": True, "0.33": False}


class Named:
    """Whatever is asked of it, its name."""

    def __getattr__(self, name: str) -> str:
        return name


class Card:
    """The platform of a card of family 12.x."""

    major = 12

    def is_device_capability_family(self, family: int) -> bool:
        return family == 120

    def is_device_capability(self, capability: int) -> bool:
        return False

    def is_xpu(self) -> bool:
        return False


@pytest.mark.parametrize("series", SERIES)
def test_a_cache_of_fp8_is_given_to_flashinfer_on_12x(series: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "vllm.utils", "vllm.utils.torch_utils", "vllm.v1", "vllm.v1.kv_cache_interface"):
        module = ModuleType(name)
        module.__dict__["is_quantized_kv_cache"] = lambda dtype: dtype.startswith("fp8")
        monkeypatch.setitem(sys.modules, name, module)
    order = taken(series, PLATFORM, {"_get_backend_priorities"}, {"AttentionBackendEnum": Named()})
    names = order["_get_backend_priorities"](use_mla=False, device_capability=Card(), kv_cache_dtype="fp8")
    assert names[:2] == ["FLASH_ATTN", "FLASHINFER"]

    given = {"current_platform": Card(), "get_flash_attn_version": lambda **_: 2}
    if series == "0.33":
        path = "vllm/v1/attention/backends/fa_utils.py"
        given |= taken(series, path, {"flash_attn_supports_kv_cache_dtype"}, dict(given))
        given["is_quantized_kv_cache"] = lambda dtype: dtype.startswith("fp8")
    backend = SimpleNamespace(supported_kv_cache_dtypes=["auto", "bfloat16", "fp8"])
    takes = taken(series, FLASH, {"supports_kv_cache_dtype"}, given)["supports_kv_cache_dtype"]
    assert [takes(backend, dtype) for dtype in ("bfloat16", "fp8")] == [True, False]


@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("cubins", ["found", ""])
def test_only_033_decodes_by_xqa_and_where_it_finds_cubins(series: str, cubins: str) -> None:
    given: dict[str, Any] = {"current_platform": Card(), "has_nvidia_artifactory": lambda: bool(cubins)}
    given["envs"] = SimpleNamespace(VLLM_BATCH_INVARIANT=False)
    supports = taken(series, SOURCE, {"supports_trtllm_attention"}, given)["supports_trtllm_attention"]
    if series == "0.24":
        assert supports() is False
    else:
        assert (supports(is_prefill=False), supports(is_prefill=True)) == (bool(cubins), False)
