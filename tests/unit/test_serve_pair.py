"""The judge of the serving proof on a GPU fires on each planted fault, and is silent on the healthy twin."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import serve_pair
from pair import install, models, sessions
from world import ended, wait_until

CARRIES = ["dflash-query-buffers", "tie-weights"]
VERSION = "0.24.0+spark.0123abcd"
NATIVE = ["_C_stable_libtorch", "spinloop"]
BUILD_CARRY = {
    "name": "native-sm121a",
    "outcome": "applied",
    "paths": ["CMakeLists.txt", "cmake/utils.cmake"],
}
SOURCE_CARRY = {
    "name": "flash-attn-sm121a",
    "outcome": "left-out",
    "source": "vllm-flash-attn",
    "paths": [],
}


# --- what is installed


def lay_out(
    root: Path,
    carries: list[str] = CARRIES,
    version: str = VERSION,
    native: list[str] | None = None,
    others: list[dict[str, Any]] | None = None,
) -> install.Installed:
    """An installation with a file for each carry, as `pip` or an unpacked wheel leaves it.

    Its extensions are upstream's but for those in *native*; *others* are further entries of its carries.
    """
    info = root / f"vllm-{version}.dist-info"
    (root / "vllm").mkdir(parents=True)
    (info / "sparkwright").mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (root / "vllm" / "__init__.py").write_text("")
    for name in carries:
        (root / "vllm" / f"{name}.py").write_text(f"carry = {name!r}\n")
    described = [{"name": name, "outcome": "applied", "paths": [f"vllm/{name}.py"]} for name in carries]
    described += others or []
    providers = []
    for name in ("_C_stable_libtorch", "_vllm_fa2_C", "spinloop"):
        file = root / "vllm" / f"{name}.abi3.so"
        file.write_bytes(f"ELF {name}".encode())
        by = "compiled" if name in (native or []) else "upstream-wheel"
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        providers.append({"member": f"vllm/{file.name}", "provider": by, "sha256": sha256})
    if carries:
        (info / "sparkwright" / "providers.json").write_text(json.dumps(providers))
        (info / "sparkwright" / "carries.json").write_text(json.dumps({"carries": described}))
    rows = [
        f"{file.relative_to(root)},{install.digest(file)},{file.stat().st_size}\n"
        for file in sorted(root.rglob("*"))
        if file.is_file()
    ]
    (info / "RECORD").write_text("".join(rows) + f"{info.name}/RECORD,,\n")
    return install.find([str(root)])


def failed(checks: list[install.Check]) -> list[str]:
    return [check.name for check in checks if not check.ok]


def test_the_digest_is_spelled_as_in_record(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert install.digest(tmp_path / "empty") == "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"


def test_a_healthy_installation_passes(tmp_path: Path) -> None:
    patched = lay_out(tmp_path / "patched")
    assert failed(install.inspect(patched, VERSION, CARRIES, [])) == []
    assert sorted(install.carried_files(patched)) == [f"vllm/{name}.py" for name in CARRIES]
    stock = lay_out(tmp_path / "stock", carries=[], version="0.24.0")
    assert failed(install.inspect(stock, "0.24.0", [], [])) == []


def test_what_was_left_out_on_purpose_has_to_be_named(tmp_path: Path) -> None:
    patched = lay_out(tmp_path)
    (tmp_path / "vllm" / "__init__.py").unlink()
    assert failed(install.inspect(patched, VERSION, CARRIES, [])) == ["files are the wheel's"]
    assert failed(install.inspect(patched, VERSION, CARRIES, ["vllm/__init__"])) == []


def test_faults_of_an_installation_are_found(tmp_path: Path) -> None:
    patched = lay_out(tmp_path)
    assert failed(install.inspect(patched, "0.24.0", CARRIES, [])) == ["version"]
    assert failed(install.inspect(patched, VERSION, [], [])) == ["carries"]
    assert failed(install.inspect(patched, VERSION, [*CARRIES, "uma-clamp"], [])) == ["carries"]
    (tmp_path / "vllm" / "stray.py").write_text("")
    assert failed(install.inspect(patched, VERSION, CARRIES, [])) == ["no other Python files"]
    (tmp_path / "vllm" / "stray.py").unlink()
    (tmp_path / "vllm" / "tie-weights.py").write_text("# upstream's\n")
    assert failed(install.inspect(patched, VERSION, CARRIES, [])) == ["files are the wheel's"]


def test_a_carry_that_was_not_applied_fails(tmp_path: Path) -> None:
    patched = lay_out(tmp_path)
    file = patched.info / "sparkwright" / "carries.json"
    file.write_text(file.read_text().replace("applied", "refused", 1))
    assert "carries" in failed(install.inspect(patched, VERSION, CARRIES, []))


def inspect_native(installed: install.Installed, **given: list[str]) -> list[str]:
    asked = {"carries": [*CARRIES, "native-sm121a"], "native": NATIVE, "left_out": ["flash-attn-sm121a"]}
    asked |= given
    return failed(install.inspect(installed, VERSION, pruned=[], **asked))


def test_a_wheel_with_binaries_of_ours_passes_with_carries_that_ship_no_file(tmp_path: Path) -> None:
    installed = lay_out(tmp_path, native=NATIVE, others=[BUILD_CARRY, SOURCE_CARRY])
    assert inspect_native(installed) == []
    assert sorted(install.carried_files(installed)) == [f"vllm/{name}.py" for name in CARRIES]
    assert sorted(install.native_binaries(installed)) == [f"vllm/{name}.abi3.so" for name in NATIVE]


def test_a_dependencys_paths_are_not_taken_for_the_wheels(tmp_path: Path) -> None:
    applied = SOURCE_CARRY | {"outcome": "applied", "paths": ["vllm/__init__.py"]}
    installed = lay_out(tmp_path, native=NATIVE, others=[applied])
    wanted = [*CARRIES, "flash-attn-sm121a"]
    assert inspect_native(installed, carries=wanted, left_out=[]) == []
    assert "vllm/__init__.py" not in install.carried_files(installed)


def test_faults_about_whose_binaries_they_are_are_found(tmp_path: Path) -> None:
    installed = lay_out(tmp_path, native=NATIVE, others=[BUILD_CARRY, SOURCE_CARRY])
    assert inspect_native(installed, native=[]) == ["native binaries"]
    assert inspect_native(installed, native=NATIVE[:1]) == ["native binaries"]
    assert inspect_native(installed, native=[*NATIVE, "_vllm_fa2_C"]) == ["native binaries"]
    assert inspect_native(installed, left_out=[]) == ["carries"]
    assert inspect_native(installed, carries=[*CARRIES, "native-sm121a", "flash-attn-sm121a"]) == ["carries"]
    providers = installed.info / "sparkwright" / "providers.json"
    stated = json.loads(providers.read_text())
    stated[0]["sha256"] = "0" * 64
    providers.write_text(json.dumps(stated))
    assert inspect_native(installed) == ["files are the wheel's", "native binaries"]


def test_a_carry_that_is_only_compiled_needs_binaries_of_ours(tmp_path: Path) -> None:
    installed = lay_out(tmp_path, others=[BUILD_CARRY])
    assert inspect_native(installed, native=[], left_out=[]) == ["carries"]


def test_two_installations_at_once_are_refused(tmp_path: Path) -> None:
    lay_out(tmp_path)
    (tmp_path / "vllm-0.24.0.dist-info").mkdir()
    (tmp_path / "vllm-0.24.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.24.0\n")
    with pytest.raises(LookupError, match="exactly one"):
        install.find([str(tmp_path)])
    with pytest.raises(LookupError, match="none"):
        install.find([str(tmp_path / "nowhere")])


# --- what booted, and how it ended


def boot(installed: install.Installed, run: str = "v1-graphs", **view: Any) -> dict[str, Any]:
    runner, drafter, sampler = serve_pair.RUNNERS[run[:2]]
    seen = {
        "vllm": VERSION,
        "vllm_file": str(installed.root / "vllm/__init__.py"),
        "runner": runner,
        "drafter": drafter,
        "rejection_sampler": sampler,
        "capture_sizes": [4, 8, 256, 272],
        "captured": 30,
        "graph_memory_estimate": 1 << 30,
        "drafter_rows": {"positions": 512, "_slot_mapping_buffer": 512},
        "card": "a",
        "attention": {},
        "cudagraph_mode": "FULL",
    }
    carried = install.carried_files(installed).items()
    modules = {path: [str(installed.root / path), digest] for path, digest in carried}
    native = install.native_binaries(installed).items()
    binaries = {
        path: {"files": [[str(installed.root / path), digest]], "before": "_C" in path}
        for path, digest in native
    }
    return {
        "kind": "boot",
        "run": run,
        "seconds": 9.0,
        "view": seen | view,
        "others": [],
        "modules": modules,
        "binaries": binaries,
        "canary": True,
    }


def options(out: Path, **given: Any) -> argparse.Namespace:
    defaults = {"version": VERSION, "carries": CARRIES, "levels": [1, 17], "max_num_seqs": 65}
    defaults |= {"cards": 1, "cache": "auto", "windows": False}
    return argparse.Namespace(out=out, **defaults | given)


def check_boot(installed: install.Installed, line: dict[str, Any]) -> list[str]:
    args = options(installed.root)
    return failed(serve_pair.boot_checks(line["run"], line, args, installed))


def test_a_healthy_boot_passes_on_both_runners(tmp_path: Path) -> None:
    installed = lay_out(tmp_path)
    assert check_boot(installed, boot(installed)) == []
    assert check_boot(installed, boot(installed, "v2-graphs", drafter_rows={})) == []
    rows = {"positions": 260, "_slot_mapping_buffer": 260}
    assert (
        check_boot(installed, boot(installed, "v1-eager", capture_sizes=[], captured=0, drafter_rows=rows))
        == []
    )


@pytest.mark.parametrize(
    ("view", "check"),
    [
        ({"runner": serve_pair.RUNNERS["v2"][0]}, "model runner"),
        ({"drafter": "builtins.NoneType"}, "drafter"),
        ({"rejection_sampler": "builtins.NoneType"}, "rejection sampler"),
        ({"vllm": "0.24.0"}, "vllm.__version__"),
        ({"vllm_file": "/elsewhere/vllm/__init__.py"}, "imported from"),
        ({"captured": 0}, "graphs captured"),
        ({"graph_memory_estimate": -1}, "graph memory estimate"),
        ({"drafter_rows": {"positions": 260, "_slot_mapping_buffer": 512}}, "drafter's rows"),
        ({"drafter_rows": {}}, "drafter's rows"),
    ],
)
def test_each_fault_of_a_boot_is_found(tmp_path: Path, view: dict[str, Any], check: str) -> None:
    installed = lay_out(tmp_path)
    assert check_boot(installed, boot(installed, **view)) == [check]


@pytest.mark.parametrize(
    ("others", "wrong"),
    [
        ([{"card": "b"}], []),
        ([], ["cards"]),
        ([{"card": "a"}], ["cards"]),
        ([{"card": "b", "captured": 0}], ["alike"]),
        ([{"card": "b"}, {"card": "c"}], ["cards"]),
    ],
)
def test_two_cards_have_to_boot_alike(tmp_path: Path, others: list[dict[str, Any]], wrong: list[str]) -> None:
    line = boot(lay_out(tmp_path))
    line["others"] = [line["view"] | other for other in others]
    assert failed(serve_pair.card_checks(line, 2)) == wrong


def test_an_engine_on_two_cards_does_without_custom_all_reduce() -> None:
    asked = serve_pair.engine_options(options(Path(), cards=2, cache="nvfp4"))
    assert asked["engine"] == {
        "kv_cache_dtype": "nvfp4", "attention_backend": "TRITON_ATTN", "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp", "disable_custom_all_reduce": True,
    }  # fmt: skip
    assert serve_pair.engine_options(options(Path())) == {
        "engine": {"kv_cache_dtype": "auto"},
        "speculative": {},
    }


def test_a_module_from_elsewhere_or_with_other_contents_is_found(tmp_path: Path) -> None:
    installed = lay_out(tmp_path)
    line = boot(installed)
    file, digest = line["modules"]["vllm/tie-weights.py"]
    for other in (["/elsewhere.py", digest], [file, "sha256=other"]):
        line["modules"]["vllm/tie-weights.py"] = other
        assert check_boot(installed, line) == ["carried files imported"]


def test_a_binary_that_is_not_the_installed_one_or_is_not_used_is_found(tmp_path: Path) -> None:
    installed = lay_out(tmp_path, native=NATIVE)
    assert check_boot(installed, boot(installed)) == []
    ours, ours_too = (f"vllm/{name}.abi3.so" for name in NATIVE)
    file = boot(installed)["binaries"][ours]["files"][0]
    for planted in (
        {ours: {"files": [["/elsewhere/" + ours, file[1]]], "before": True}},
        {ours: {"files": [[file[0], "sha256=other"]], "before": True}},
        {ours: {"files": [file, ["/elsewhere/" + ours, file[1]]], "before": True}},
        {ours: {"files": [], "before": True}},
        {ours: {"files": [file], "before": False}},
    ):
        line = boot(installed)
        line["binaries"] |= planted
        assert check_boot(installed, line) == ["native binaries mapped"]
    line = boot(installed)
    del line["binaries"][ours_too]
    assert check_boot(installed, line) == ["native binaries mapped"]


def judge(tmp_path: Path, lines: list[dict[str, Any]], log: str = "", status: int | None = 0) -> list[str]:
    installed = lay_out(tmp_path / "site")
    (tmp_path / "lines.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in [boot(installed), *lines])
    )
    (tmp_path / "v1-graphs.log").write_text(log)
    return failed(serve_pair.run_checks("v1-graphs", status, options(tmp_path), installed))


def level(c: int, *found: str) -> dict[str, Any]:
    return {"kind": "level", "run": "v1-graphs", "c": c, "faults": list(found)}


END = {"kind": "end", "run": "v1-graphs", "errored": False}


@pytest.mark.parametrize(
    ("lines", "log", "status", "found"),
    [
        ([level(1), level(17), END], "INFO all is well", 0, []),
        ([level(1), level(17, "gone wrong"), END], "", 0, ["c=17"]),
        ([level(1), END], "", 0, ["c=17"]),
        ([level(1), level(17)], "", 0, ["came to its end"]),
        ([level(1), level(17), END | {"errored": True}], "", 0, ["came to its end"]),
        ([level(1), level(17), END], "", 1, ["came to its end"]),
        ([level(1), level(17), END], "", None, ["came to its end"]),
        ([level(1), level(17), END], "CUDA error: an illegal memory access", 0, ["log"]),
        ([level(1), level(17), END], "vllm.v1.engine.exceptions.EngineDeadError", 0, ["log"]),
        ([level(1), level(17), END | {"run": "v2-graphs"}], "", 0, ["came to its end"]),
    ],
)
def test_a_run_is_judged_by_its_lines_log_and_status(
    tmp_path: Path, lines: list[dict[str, Any]], log: str, status: int | None, found: list[str]
) -> None:
    assert judge(tmp_path, lines, log, status) == found


def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, seconds: int) -> int | None:
    """Run `execute` with a shell script in the engine's place; `$3` is the specification."""
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{body}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sessions, "PYTHON", str(fake))
    args = options(tmp_path, levels=[], boot_seconds=seconds, gpu_memory_utilization=0.5)
    return serve_pair.execute("v2-eager", args, tmp_path, lay_out(tmp_path / "site"))


def test_an_engines_lines_are_kept_and_its_status_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = f"""test $VLLM_USE_V2_MODEL_RUNNER = 1 || exit 9
test -f "$3" || exit 8
echo '{{"kind": "end"}}' >> {tmp_path}/lines.jsonl
echo said; exit 3"""
    assert engine(tmp_path, monkeypatch, body, seconds=30) == 3
    assert capsys.readouterr().out == "v2-eager: exit status 3\n"
    assert (tmp_path / "v2-eager.log").read_text().endswith("\n\nsaid\n")


def test_an_engine_that_hangs_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine(tmp_path, monkeypatch, "sleep 300 & echo $!; wait", seconds=1) is None
    orphan = int((tmp_path / "v2-eager.log").read_text().split()[-1])
    # A signal is sent at once, but its receiver ends only when it next runs, and is reaped after that.
    assert wait_until(lambda: ended(orphan))


def test_models_are_folders_with_a_configuration_each(tmp_path: Path) -> None:
    target, drafter = (
        json.loads((path / "config.json").read_text()) for path in models.write_models(tmp_path)
    )
    assert target["architectures"] == ["Qwen3ForCausalLM"]
    assert max(drafter["dflash_config"]["target_layer_ids"]) < target["num_hidden_layers"]
    assert drafter["dflash_config"]["mask_token_id"] < drafter["vocab_size"] == target["vocab_size"]
    assert drafter["hidden_size"] == target["hidden_size"]


@pytest.mark.parametrize(
    ("text", "expected"), [("raise SystemExit(3)", 3), ("import time; time.sleep(60)", None)]
)
def test_an_engine_ends_by_itself_or_is_ended_with_what_it_started(tmp_path, text, expected):
    (tmp_path / "engine_of_the_test.py").write_text(f"print('begun', flush=True)\n{text}\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    log = tmp_path / "log"
    assert sessions.run_engine("engine_of_the_test", {}, log, env, 3) == expected
    assert log.read_text().endswith("\n\nbegun\n")
