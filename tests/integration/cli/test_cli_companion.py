"""``sparkwright companion`` on the lists of this checkout."""

import json
import subprocess
from pathlib import Path

import pytest
from command import call

from sparkwright.base.errors import ConfigError, NotInStoreError, UnknownNameError
from sparkwright.companion.model import load_companion

ROOT = Path(__file__).resolve().parents[3]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return call(*words, "--root", ROOT, "--offline", cwd=Path.cwd(), **variables)


def listed(*words: str) -> subprocess.CompletedProcess[str]:
    return run("companion", "--list", *words)


def test_the_list_shows_what_recipes_need() -> None:
    done = listed("--series", "0.33", "--recipe", "qwen3.6-27b-dflash", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["modules"]) == ["sampling", "gemm-fp4"]


@pytest.mark.parametrize("series", ["", "0.24", "0.33"])
def test_every_series_has_a_list(series: str) -> None:
    done = listed(*(["--series", series] if series else []), "--json")
    assert "sampling" in json.loads(done.stdout)["modules"]


def test_a_kernel_whose_arguments_are_not_known_is_listed_as_left() -> None:
    done = listed("--series", "0.33", "--recipe", "qwen3.8-27b-dflash2", "--json")
    ahead = {name: one["ahead"] for name, one in json.loads(done.stdout)["modules"].items()}
    assert [name for name, one in ahead.items() if not one] == ["attention-dflash2"]


def test_unknown_names_and_series_are_refused() -> None:
    asked = ("--series", "0.33", "--module", "nothing")
    assert listed(*asked).returncode == UnknownNameError.exit_code
    done = listed("--series", "0.33", "--recipe", "nothing")
    assert done.returncode == UnknownNameError.exit_code
    assert "there is no recipe 'nothing'" in done.stderr
    assert listed("--series", "0.99").returncode in {
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

    wheel = of_flashinfer(load_companion(ROOT / "patchsets" / "companions" / "0.24.toml").version)
    empty = {"SPARKWRIGHT_HOME": str(tmp_path / "store")}
    own = run("audit", str(wheel), **empty)
    assert own.returncode == NotInStoreError.exit_code, (
        "it goes on to the libraries, which an empty store lacks"
    )
    unknown = run("audit", str(of_flashinfer("9.9")), **empty)
    assert unknown.returncode == ConfigError.exit_code
    assert "has that FlashInfer" in unknown.stderr
