"""``sparkwright companion`` on the lists of this checkout, and on an environment with a small FlashInfer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparkwright.base.errors import CompanionError, ConfigError, NotInStoreError, UnknownNameError
from sparkwright.companion.model import load_companion

ROOT = Path(__file__).resolve().parents[3]
FLASHINFER = """
import os, pathlib
class Spec:
    def __init__(self, name):
        self.name, self.aot_path = name, pathlib.Path(os.environ.get("FINISHED", "/none"), name)
        self.is_aot = self.aot_path.is_file()
def gen_sampling_module():
    return Spec("sampling")
def gen_topk_module():
    return Spec("topk")
def gen_gemm_sm120_module_cutlass_fp4():
    return Spec("gemm")
def _gen_batch_prefill_primary_module(**arguments):
    return Spec(f"attention_{arguments['head_dim_qk']}")
def gen_xqa_module(**arguments):
    return Spec(f"xqa_{arguments['q_seq_len']}")
"""
MODULES = ("sampling", "topk", "gemm", "xqa", "attention/modules")


def companion(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "sparkwright", "companion", *words, "--root", str(ROOT), "--offline"],
        env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An interpreter whose environment has a FlashInfer of the list's version."""
    version = load_companion(ROOT / "patchsets" / "companions" / "0.33.toml").version
    files = {
        "flashinfer/__init__.py": "",
        "flashinfer/version.py": f"__version__ = {version!r}\n",
        "flashinfer/jit/__init__.py": "",
        "flashinfer/jit/attention/__init__.py": "",
        **{f"flashinfer/jit/{name}.py": FLASHINFER for name in MODULES},
        "tvm_ffi/__init__.py": "",
        "torch.py": "bfloat16, float8_e4m3fn, int32 = 'bf16', 'e4m3', 'i32'\n",
    }
    for path, text in files.items():
        (tmp_path / "site" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / path).write_text(text)
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport runpy, sys\nsys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "sys.argv = sys.argv[2:]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    program.chmod(0o755)
    return program


def test_the_list_shows_what_recipes_need() -> None:
    done = companion("list", "--series", "0.33", "--recipe", "qwen3.6-27b-dflash", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["modules"]) == ["sampling", "gemm-fp4"]


@pytest.mark.parametrize("series", ["", "0.24", "0.33"])
def test_every_series_has_a_list(series: str) -> None:
    done = companion("list", *(["--series", series] if series else []), "--json")
    assert "sampling" in json.loads(done.stdout)["modules"]


def test_a_kernel_that_would_be_compiled_is_an_error_and_a_finished_one_is_not(environment, tmp_path):
    asked = ("check", "--series", "0.33", "--python", str(environment), "--arch", "12.1a", "--json")
    (tmp_path / "sampling").write_bytes(b"")
    finished = {"FINISHED": str(tmp_path)}
    done = companion(*asked, "--module", "sampling", **finished)
    assert (done.returncode, json.loads(done.stdout)["missing"]) == (0, [])
    done = companion(*asked, "--module", "sampling", "--module", "topk", **finished)
    assert done.returncode == CompanionError.exit_code
    assert json.loads(done.stdout)["missing"] == ["topk"]
    assert "1 of 2 kernel modules" in done.stderr


def test_a_recipe_is_not_complete_with_a_kernel_whose_arguments_are_not_known(environment, tmp_path):
    for name in ("sampling", "gemm", "attention_256", *(f"xqa_{step}" for step in range(1, 10))):
        (tmp_path / name).write_bytes(b"")

    def missing(recipe: str) -> tuple[int, list[str]]:
        words = ("--python", str(environment), "--arch", "12.1a", "--recipe", recipe, "--json")
        done = companion("check", "--series", "0.33", *words, FINISHED=str(tmp_path))
        return done.returncode, json.loads(done.stdout)["missing"]

    assert missing("qwen3.8-27b-mtp") == (0, [])
    unknown = ["attention-dflash2"]
    assert missing("qwen3.8-27b-dflash2") == (CompanionError.exit_code, unknown)
    done = companion("list", "--series", "0.33", "--recipe", "qwen3.8-27b-dflash2", "--json")
    ahead = {name: one["ahead"] for name, one in json.loads(done.stdout)["modules"].items()}
    assert [name for name, one in ahead.items() if not one] == unknown


def test_unknown_names_and_series_are_refused(environment: Path) -> None:
    asked = ("--series", "0.33", "--module", "nothing")
    assert companion("list", *asked).returncode == UnknownNameError.exit_code
    done = companion("list", "--series", "0.33", "--recipe", "nothing")
    assert done.returncode == UnknownNameError.exit_code
    assert "there is no recipe 'nothing'" in done.stderr
    assert companion("list", "--series", "0.99").returncode in {
        ConfigError.exit_code,
        UnknownNameError.exit_code,
    }


def test_a_companion_is_audited_by_the_list_of_its_own_series(tmp_path: Path) -> None:
    import companion_kit as kit
    import wheelkit

    def of_flashinfer(version: str) -> Path:
        record = {**kit.content([]).record, "flashinfer": {"version": version}}
        info = f"flashinfer_jit_cache-{version}.dist-info"
        files = wheelkit.with_record(
            {f"{info}/sparkwright/companion.json": json.dumps(record).encode()}, info
        )
        machine = kit.TARGET.machine
        return wheelkit.pack(
            tmp_path / f"flashinfer_jit_cache-{version}-py3-none-manylinux_2_28_{machine}.whl", files
        )

    wheel = of_flashinfer(load_companion(ROOT / "patchsets" / "companions" / "0.33.toml").version)
    empty = {"SPARKWRIGHT_HOME": str(tmp_path / "store")}
    other = companion("audit", str(wheel), "--series", "0.24", **empty)
    assert other.returncode == CompanionError.exit_code
    assert f"sparkwright companion audit {wheel} --series 0.33" in other.stderr
    own = companion("audit", str(wheel), "--series", "0.33", **empty)
    assert own.returncode == NotInStoreError.exit_code, (
        "it goes on to the libraries, which an empty store lacks"
    )
    unknown = companion("audit", str(of_flashinfer("9.9")), "--series", "0.24", **empty)
    assert "has that FlashInfer" in unknown.stderr
