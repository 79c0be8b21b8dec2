"""``sparkwright companion`` on the lists of this checkout, and ``serve --dry-run`` with a companion."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import companion_kit as kit
import pytest
import wheelkit
from command import call
from kit import write_program

from sparkwright.base.errors import ConfigError, NotEnoughMemoryError, NotInStoreError, UnknownNameError
from sparkwright.base.machine import MachineSnapshot
from sparkwright.cli.main import main
from sparkwright.companion.model import load_companion
from sparkwright.companion.wheel import RECORD, companion_version
from sparkwright.engine.flashinfer import CUBIN
from sparkwright.native.host import this_machine
from sparkwright.native.model import Target

ROOT = Path(__file__).resolve().parents[3]
TAG = f"manylinux_2_28_{this_machine()}"
SPEC = load_companion(ROOT / "patchsets" / "companions" / "0.33.toml")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel of vLLM, on a machine with a card of 12.1."""
    program = write_program(
        tmp_path / "bin" / "nvidia-smi",
        "case $1 in *compute-apps*) ;; *=compute_cap) echo 12.1;; "
        "*) echo 'NVIDIA GB10, 12.1, 580.95.05, [N/A], [N/A], Enabled';; esac",
    )
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("SPARKWRIGHT_HOME", str(tmp_path / "store"))
    monkeypatch.chdir(ROOT)
    return wheelkit.plain_wheel(tmp_path / "dist", "vllm", "0.33.0+spark.1", tag=f"py3-none-{TAG}")


@pytest.fixture
def plan(wheel: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The plan of a recipe, as JSON or text."""

    def ask(*words: str, as_json: bool = True) -> Any:
        assert main(["serve", *words, "--dry-run", "--wheel", str(wheel), *["--json"][:as_json]]) == 0
        shown = capsys.readouterr().out
        return json.loads(shown) if as_json else shown

    return ask


def add_companion(folder: Path, *modules: str) -> str:
    """Put a companion with *modules* of the list into *folder*; return its name."""
    target = Target(this_machine(), "12.1a")
    usual = kit.content([], target).record
    record = {
        **usual,
        "flashinfer": {**usual["flashinfer"], "version": SPEC.version},
        "modules": {name: {"listed": name, "sha256": "0" * 64, "size": 0, "arches": {}} for name in modules},
        "recipes": {name: [*SPEC.needed("12.1a", one)] for name, one in SPEC.served().items()},
    }
    version = companion_version(SPEC.version, "13.0", record)
    info = f"flashinfer_jit_cache_sm121a-{version}.dist-info"
    files = wheelkit.with_record({f"{info}/{RECORD}": json.dumps(record).encode()}, info)
    return wheelkit.pack(folder / f"flashinfer_jit_cache_sm121a-{version}-py3-none-{TAG}.whl", files).name


def test_kernels_that_would_be_compiled_are_named_with_the_command_that_builds_them(
    plan: Callable[..., Any], tmp_path: Path
) -> None:
    found = plan("qwen3.6-27b-dflash")
    assert (found["companion"], found["compiled"]) == ("", ["sampling", "gemm-fp4"])
    command = f"companion --series 0.33 --platform {this_machine()} --arch 12.1a --recipe qwen3.6-27b"
    assert command in found["next_step"]
    partly = add_companion(tmp_path / "dist", "sampling")
    found = plan("qwen3.6-27b-dflash")
    assert (found["companion"], found["compiled"]) == (partly, ["gemm-fp4"])
    text = plan("qwen3.6-27b-dflash", as_json=False)
    assert f"kernels  {partly}\ncompiled gemm-fp4: by FlashInfer, while" in text
    unlocked = plan("qwen3.6-27b-dflash", "--unlocked")
    assert (unlocked["companion"], unlocked["compiled"]) == ("", ["sampling", "gemm-fp4"])
    assert "--unlocked" in unlocked["next_step"]
    # Its cache is of FP8, and it names no backend; the one above names Triton.
    assert plan("qwen3.6-27b-mtp")["compiled"][:3] == ["gemm-fp4", "attention-fp8-256", "xqa-fp8-256-6-1"]


def test_with_a_complete_companion_nothing_would_be_compiled(
    plan: Callable[..., Any], tmp_path: Path
) -> None:
    whole = add_companion(tmp_path / "dist", "sampling", "gemm-fp4")
    found = plan("qwen3.6-27b-dflash")
    assert (found["companion"], found["compiled"], found["next_step"]) == (whole, [], "")
    assert "compiled" not in plan("qwen3.6-27b-dflash", as_json=False).partition("flag ")[0]


def test_preflight_names_the_kernels_that_a_wheel_is_installed_without(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(recipe: str = "qwen3.6-27b-dflash") -> list[tuple[str, str]]:
        main(["doctor", recipe, "--wheel", str(wheel), "--json"])
        found = json.loads(capsys.readouterr().out)["findings"]
        return [(one["because"], one["next_step"]) for one in found if one["check"] in {"jit", "nvcc"}]

    ((because, next_step),) = told()
    assert "no companion for this card was found that holds sampling, gemm-fp4" in because
    assert (
        f"companion --series 0.33 --platform {this_machine()} --arch 12.1a --recipe qwen3.6-27b-df"
        in next_step
    )
    add_companion(tmp_path / "dist", "sampling")
    ((because, next_step),) = told()
    assert "holds gemm-fp4" in because
    add_companion(tmp_path / "dist", "sampling", "gemm-fp4")
    assert told() == []
    ((because, next_step),) = told("llama-3.3-70b")
    assert "holds attention-fp8-128, xqa-fp8-128-8-1" in because
    assert "--recipe llama-3.3-70b" in next_step


def test_vllm_is_told_of_the_companion_only_where_it_has_all_that_the_recipe_needs(
    plan: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.33, told that cubins are there, decodes a cache of FP8 by XQA, and could not compile that."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # nvidia-smi alone: no compiler
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))  # not one of this machine
    add_companion(tmp_path / "dist", *SPEC.chosen("12.1a"))
    known, unknown = plan("qwen3.8-27b-mtp"), plan("qwen3.8-27b-dflash2")
    told = [CUBIN in {one["name"] for one in found["variables"]} for found in (known, unknown)]
    assert (known["compiled"], told) == ([], [True, False])
    assert unknown["compiled"] == ["attention-dflash2"]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return call(*words, "--root", ROOT, "--offline", cwd=Path.cwd(), **variables)


def planned(*words: str) -> subprocess.CompletedProcess[str]:
    return run("companion", "--dry-run", *words)


def test_the_plan_shows_what_recipes_need_and_what_that_takes() -> None:
    done = planned("--series", "0.33", "--recipe", "qwen3.6-27b-dflash", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["recipes"] == {"qwen3.6-27b-dflash": ["sampling", "gemm-fp4"]}
    assert list(found["modules"]) == ["sampling", "gemm-fp4"]
    cost = found["modules"]["gemm-fp4"]["cost"]
    assert (cost["units"], 0 < cost["measured"] <= cost["units"]) == (17, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--arch", "12.1"], "--arch 12.1a"),
        (["--arch", "12.0"], "--arch 12.0f"),
        (["--arch", "card"], "'card' is no architecture"),
        (["--platform", "riscv64"], "known: aarch64, x86_64"),
    ],
)
def test_a_card_or_machine_that_no_server_asks_for_is_refused(words: list[str], told: str) -> None:
    done = planned("--series", "0.33", "--module", "sampling", *words)
    assert (done.returncode, done.stdout, told in done.stderr) == (ConfigError.exit_code, "", True)


def test_the_plan_tells_minutes_that_were_measured_from_estimates() -> None:
    measured = planned("--series", "0.33", "--module", "sampling", "--module", "gemm-fp4").stdout
    mixed = planned("--series", "0.24", "--module", "sampling", "--module", "moe").stdout
    assert ("estimated" in measured, "74 of them estimated" in mixed) == (False, True)


@pytest.mark.parametrize("series", ["", "0.24", "0.33"])
def test_every_series_has_a_list(series: str) -> None:
    done = planned(*(["--series", series] if series else []), "--json")
    assert "sampling" in json.loads(done.stdout)["modules"]


def test_kernels_that_do_not_fit_are_named_with_the_command_for_a_larger_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sparkwright.cli.audit.look", lambda: MachineSnapshot(2, 8192, 4096))
    words = ["companion", "--series", "0.33", "--module", "gemm-fp4", "--root", str(ROOT)]
    assert main([*words, "--module", "sampling", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["modules"]
    assert {name: one["fits"] for name, one in found.items()} == {"sampling": True, "gemm-fp4": False}
    assert main([*words, "--offline"]) == NotEnoughMemoryError.exit_code
    told = capsys.readouterr().err
    assert "gemm-fp4: a unit takes" in told
    assert "companion --series 0.33 --platform aarch64 --arch 12.1a --module gemm-fp4" in told


def test_unknown_names_and_series_are_refused() -> None:
    asked = ("--series", "0.33", "--module", "nothing")
    assert planned(*asked).returncode == UnknownNameError.exit_code
    done = planned("--series", "0.33", "--recipe", "nothing")
    assert done.returncode == UnknownNameError.exit_code
    assert "there is no recipe 'nothing'" in done.stderr
    assert planned("--series", "0.99").returncode in {
        ConfigError.exit_code,
        UnknownNameError.exit_code,
    }


def test_a_companion_is_audited_by_the_list_of_its_own_series(tmp_path: Path) -> None:
    def of_flashinfer(version: str) -> Path:
        usual = kit.content([]).record
        record = {**usual, "flashinfer": {**usual["flashinfer"], "version": version}}
        info = f"flashinfer_jit_cache_sm121a-{version}.dist-info"
        files = wheelkit.with_record(
            {f"{info}/sparkwright/companion.json": json.dumps(record).encode()}, info
        )
        machine = kit.TARGET.machine
        return wheelkit.pack(
            tmp_path / f"flashinfer_jit_cache_sm121a-{version}-py3-none-manylinux_2_28_{machine}.whl", files
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
