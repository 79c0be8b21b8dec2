"""Machine, card, compilers and wheel: each planted fault fires, and the healthy twin is silent."""

import json
import shutil
import socket
import sys
import zipfile
from dataclasses import replace

import pytest
from checkpoint_kit import DENSE, write_checkpoint
from preflight_kit import ENGINE, GB10, GIB, H200, recipe, spark, start

from sparkwright.base import machine
from sparkwright.base.errors import ArchiveError, ServerError
from sparkwright.engine.installed import (
    REGISTRY,
    EngineFacts,
    files_digest,
    read_installed,
    read_wheel,
    runs_on,
)
from sparkwright.recipes.recipe import load_recipe
from sparkwright.serve.preflight.machine import (
    HostFacts,
    check_room,
    is_taken,
    parse_card,
    parse_meminfo,
    read_host,
)
from sparkwright.serve.preflight.run import inspect_start, run_preflight


@pytest.fixture
def model(tmp_path):
    return write_checkpoint(tmp_path / "model", DENSE)


def levels(served, host=None, **keys) -> dict[str, str]:
    return {one.check: one.level for one in run_preflight(start(served, host, **keys))}


def on(**card_keys):
    return {"host": spark(card=replace(GB10, **card_keys))}


def by(**engine_keys):
    return {"engine": replace(ENGINE, **engine_keys)}


def env(**variables):
    return {"environment": {"HF_HUB_OFFLINE": "1", "HOME": "/nonexistent", **variables}}


BUSY = ("412, python, 30000 MiB",)
ANY, NO_VLLM = EngineFacts(version="0.24.0"), EngineFacts(packages={"torch": "2.11.0"})
QWEN3 = frozenset({"Qwen3ForCausalLM"})
BARE = {"flashinfer-python": "0.6.1"}
LATER = {**ENGINE.packages, "flashinfer-python": "0.7.2", "flashinfer-jit-cache": "0.7.2+cu130.k1"}
BARE_LATER = {"flashinfer-python": "0.7.2.post1"}
FP8 = {"flags": {"kv-cache-dtype": "fp8"}, "capability": "12.1", "name": "m"}
NONE, FALLBACK = {"host": spark(compiler="")}, {"fp8-kv-fallback": "refuse", "nvcc": "warn"}
LOADED = {"flags": {"load-format": "instanttensor"}}
CLASH = {"flags": {"kv-cache-dtype": "fp8", "attention-backend": "FLASH_ATTN"}}


def fp8(packages=None, lacks=None, **keys):
    packages = BARE_LATER if packages is None else packages
    return {**NONE, **by(packages=packages, companion_arch="12.1a", companion_lacks=lacks or {}), **keys}


# What is planted into a recipe, into a start on a healthy Spark, and what is found: nothing on healthy twins.
FAULTS = [
    ({"capability": "12.1"}, by(architectures=QWEN3), {}),
    # The card
    ({}, on(driver="575.57.08"), {"driver": "refuse"}),
    ({}, on(driver="610.43.02"), {}),
    ({}, on(driver="[N/A]"), {}),
    ({}, on(persistence="Disabled"), {"persistence": "note"}),
    ({}, on(persistence="Enabled"), {}),
    ({}, {"host": spark(processes=BUSY)}, {"card-processes": "warn"}),
    ({"capability": "12.1"}, {"host": spark(card=H200), "engine": ANY}, {"capability": "warn"}),
    ({"capability": "12.1"}, {"host": spark(card=None), "engine": ANY}, {"card": "refuse"}),
    ({}, {"host": spark(card=None), "engine": ANY}, {}),
    ({}, {"host": spark(glibc=(2, 31))}, {"glibc": "refuse"}),
    ({}, {"host": spark(glibc=(2, 34))}, {}),
    ({}, {"host": spark(lacks=("compiler",))}, {"compiler": "refuse"}),
    ({}, {"host": spark(lacks=("headers",))}, {"headers": "refuse"}),
    ({}, {"host": spark(card=None, lacks=("compiler", "headers")), "engine": ANY}, {}),
    # Models that are not here
    ({"model": "org/absent"}, {}, {"model-missing": "refuse"}),
    ({"model": "/nonexistent/absent"}, {"environment": {}}, {"model-missing": "refuse"}),
    ({"model": "a/relative/folder"}, {"environment": {}}, {"model-missing": "refuse"}),
    ({"model": "org/absent"}, {"environment": {}}, {"model-fetched": "note"}),
    # Kernels that are compiled late
    ({}, by(packages=BARE), {"jit": "note"}),
    ({}, {**NONE, **by(packages=BARE)}, {"nvcc": "warn"}),
    ({}, {"host": spark(nvcc=(12, 8)), **by(packages=BARE)}, {"nvcc": "warn"}),
    ({}, {"host": spark(nvcc=(12, 9)), **by(packages=BARE)}, {"jit": "note"}),
    ({}, NONE, {}),
    ({}, {**NONE, "engine": NO_VLLM}, {}),
    ({}, by(companion_arch="9.0a"), {"companion": "refuse"}),
    ({}, by(companion_arch="12.1a"), {}),
    ({}, by(companion_arch="9.0a", packages=LATER), {"jit": "note"}),
    # An FP8 cache that FlashInfer has no kernel for
    (FP8, fp8(), FALLBACK),
    (FP8, fp8(host=spark(nvcc=(12, 8))), FALLBACK),
    ({**FP8, "flags": {"kv-cache-dtype": "fp8", "attention-backend": "FLASHINFER"}}, fp8(), FALLBACK),
    (FP8, fp8(ENGINE.packages, {"m": ("attention-fp8-256",)}), FALLBACK),
    (FP8, fp8(ENGINE.packages, {"m": ("attention-dflash2",)}), FALLBACK),
    (
        {**FP8, "flags": {"kv-cache-dtype": "fp8", "attention-backend": "TRITON_ATTN"}},
        fp8(),
        {"nvcc": "warn"},
    ),
    ({**FP8, "flags": {"kv-cache-dtype": "auto"}}, fp8(), {"nvcc": "warn"}),
    (FP8, fp8(host=spark(nvcc=(13, 0))), {"jit": "note"}),
    ({**FP8, "traits": ("mla",)}, fp8(), {"nvcc": "warn"}),
    (FP8, fp8(ENGINE.packages, {"m": ("sampling",)}), {"nvcc": "warn"}),
    (FP8, fp8(ENGINE.packages, {"m": ()}), {}),
    (FP8, fp8({}), {}),
    # Architectures of compilers, without a companion and with one
    ({}, {**env(FLASHINFER_CUDA_ARCH_LIST="9.0a 10.0a"), "engine": NO_VLLM}, {"jit-architecture": "warn"}),
    ({}, env(FLASHINFER_CUDA_ARCH_LIST="9.0a 10.0a"), {}),
    ({}, {**env(FLASHINFER_CUDA_ARCH_LIST="12.1a"), "engine": NO_VLLM}, {}),
    ({}, {**env(FLASHINFER_CUDA_ARCH_LIST="9.0a 12.1f"), "engine": NO_VLLM}, {}),
    ({}, {**env(TORCH_CUDA_ARCH_LIST="8.9;12.0"), "engine": NO_VLLM}, {"jit-architecture": "warn"}),
    ({}, {**env(TORCH_CUDA_ARCH_LIST="8.9;12.1+PTX"), "engine": NO_VLLM}, {}),
    ({}, {**env(CUTE_DSL_ARCH="sm_100a"), "engine": NO_VLLM}, {"jit-architecture": "warn"}),
    ({}, {**env(CUTE_DSL_ARCH="sm_121a"), "engine": NO_VLLM}, {}),
    # The wheel, its options and its loader
    (CLASH, {}, {"rule flash-attn-fp8-kv": "refuse"}),
    (CLASH, by(version="0.33.0"), {}),
    ({}, by(machine="x86_64"), {"wheel-machine": "refuse"}),
    ({}, {"host": spark(card=H200)}, {"wheel-card": "refuse"}),
    ({}, {"host": spark(card=H200), **by(codes=frozenset())}, {}),
    ({}, by(architectures=frozenset({"LlamaForCausalLM"})), {"architecture": "warn"}),
    (LOADED, by(packages={**ENGINE.packages, "instanttensor": ""}), {"loader": "refuse"}),
    (LOADED, by(packages={**ENGINE.packages, "instanttensor": "0.2.2"}), {}),
    (LOADED, {}, {}),  # packages of a wheel are not known
    ({}, by(packages={**ENGINE.packages, "instanttensor": ""}), {}),
]


@pytest.mark.parametrize(("planted", "keys", "expected"), FAULTS)
def test_a_planted_fault_is_found_and_nothing_else(model, planted, keys, expected):
    assert levels(recipe(**{"model": model, **planted}), **keys) == expected


def test_a_port_that_is_taken(model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_taken("127.0.0.1", port)
        facts = read_host({"HOME": str(tmp_path)}, models=tmp_path, ports=(port,))
        host = spark(taken=facts.taken)
        assert levels(recipe(model), host, port=port) == {"port": "refuse"}
    assert not is_taken("127.0.0.1", port)
    assert levels(recipe(model), port=port) == {}


def test_what_triton_compiles_with_is_looked_for_as_it_does(tmp_path, monkeypatch):
    def lacks(**environment):
        return read_host({"HOME": str(tmp_path), **environment}, models=tmp_path).lacks

    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    assert lacks(PATH="") == ("compiler", "headers")
    (tmp_path / "Python.h").touch()
    (tmp_path / "clang").touch(mode=0o755)
    assert lacks(PATH=str(tmp_path)) == ()
    assert lacks(PATH=str(tmp_path), CC="other-cc") == ("compiler",)
    assert lacks(PATH="", CC=str(tmp_path / "clang")) == ()


def test_room_for_the_first_environment(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=5 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    (found,) = check_room(tmp_path / "not" / "there")
    assert (found.check, found.level, found.liftable) == ("room", "refuse", True)
    assert "5.0 GiB are free" in found.because
    (tmp_path / "made" / "lib" / "python3.12" / "site-packages" / "torch").mkdir(parents=True)
    assert not list(check_room(tmp_path)), "one is there, and may be this one's"
    usage = usage._replace(free=9 * GIB)
    assert not list(check_room(tmp_path / "not" / "there"))


def test_disk_for_the_rest_of_a_model(tmp_path):
    shards = [{"a": ("BF16", (1 << 20, 1 << 10))}, {"b": ("BF16", (1 << 20, 1 << 10))}]
    folder = write_checkpoint(tmp_path / "m", DENSE, shards)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert levels(recipe(folder), spark(disk_free=3 * GIB)) == {"shard-missing": "refuse", "disk": "refuse"}
    assert levels(recipe(folder), spark(disk_free=5 * GIB)) == {"shard-missing": "refuse"}
    online = {"HOME": "/nonexistent"}
    absent = levels(recipe("org/absent"), spark(disk_free=20 * GIB), environment=online)
    assert absent == {"disk": "warn", "model-fetched": "note"}


@pytest.mark.parametrize(
    ("arch", "lacks", "because"),
    [
        ("12.1a", {"m": (), "*": ()}, ""),
        ("12.1a", {"other": ("moe",), "*": ()}, ""),
        ("12.1a", {"m": ("gemm-fp4", "moe"), "*": ()}, "lacks gemm-fp4, moe"),
        ("12.1a", {"*": ("sampling",)}, "lacks sampling"),
        ("9.0a", {"m": (), "*": ()}, "is for 9.0a"),
    ],
)
def test_a_companion_without_the_kernels_of_the_recipe(model, arch, lacks, because):
    looks = {"flashinfer-python": "0.7.2.post1", "flashinfer-jit-cache": "0.7.2.post1+cu130.k1"}
    engine = replace(
        ENGINE, companion_arch=arch, companion_lacks=lacks, packages={**ENGINE.packages, **looks}
    )
    served = recipe(model, name="m")
    assert levels(served, engine=engine) == ({"jit": "note"} if because else {})
    found = run_preflight(start(served, spark(compiler=""), engine=engine))
    assert [one.check for one in found] == (["nvcc"] if because else [])
    assert all(because in one.because for one in found)
    # Without the sampler's kernel, and only then, vLLM's own sampler is a way out.
    other_sampler = "sampling" in because or "9.0a" in because
    assert all(("SAMPLER=0" in one.next_step) == other_sampler for one in found)


def test_a_companion_of_another_flashinfer_holds_nothing(model):
    other = {**ENGINE.packages, "flashinfer-jit-cache": "0.6.2+cu130.k1"}
    engine = replace(ENGINE, companion_arch="12.1a", companion_lacks={"m": ()}, packages=other)
    (found,) = run_preflight(start(recipe(model, name="m"), spark(compiler=""), engine=engine))
    assert (found.check, "is for FlashInfer 0.6.2, not 0.6.1" in found.because) == ("nvcc", True)


def test_the_command_for_missing_kernels_names_series_machine_and_card(model):
    bare = replace(ENGINE, packages={"flashinfer-python": "0.6.1"})
    (found,) = run_preflight(start(recipe(model, name="m"), engine=bare))
    assert "companion --series 0.24 --platform aarch64 --arch 12.1a --recipe m)" in found.next_step
    (found,) = run_preflight(start(recipe(model, name="m"), engine=replace(bare, version="")))
    assert "companion --platform aarch64 --arch 12.1a --recipe m)" in found.next_step


def test_gemma_and_gpt_oss_are_left_to_triton(tmp_path):
    for name in ("Gemma4ForConditionalGeneration", "Gemma3ForCausalLM", "GptOssForCausalLM"):
        other = write_checkpoint(tmp_path / name, {**DENSE, "architectures": [name]})
        assert "fp8-kv-fallback" not in levels(recipe(other, **FP8), **fp8())


def test_tritons_ptxas(model, tmp_path):
    ptxas = tmp_path / "ptxas"
    served = recipe(model, environment={"TRITON_PTXAS_PATH": str(ptxas)})
    assert levels(served) == {"ptxas": "refuse"}
    ptxas.touch(0o755)
    assert levels(served) == {}


def test_what_a_gb10_says_is_read():
    card = parse_card(("NVIDIA GB10", "12.1", "580.95.05", "[N/A]", "Not Supported", "Enabled"))
    assert (card.driver, card.total, card.free) == ("580.95.05", -1, -1)
    assert HostFacts(card=card).unified
    hopper = parse_card(("NVIDIA H200", "9.0", "580.95.05", "143771 MiB", "143000 MiB", "[N/A]"))
    assert (hopper.total, hopper.free) == (143771 << 20, 143000 << 20)
    assert parse_card(()) is None


def test_nvidia_smi_is_asked(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $1 in *compute-apps*) echo '7, python, [N/A]';; "
        "*) echo 'NVIDIA GB10, 12.1, 580.95.05, [N/A], [N/A], Enabled';; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(machine.shutil, "which", lambda *_, **__: str(program))
    found = read_host({"PATH": "/nowhere"}, models=tmp_path)
    assert (found.card.name, found.card.total, found.processes) == ("NVIDIA GB10", -1, ("7, python, [N/A]",))
    assert found.memory().kind == "unified"


def test_the_generated_pair_of_the_smoke_recipe():
    request = start(load_recipe("smoke"))
    report = inspect_start(request)
    assert report.findings == ()
    rows = {row.part: row for row in report.rows}
    assert rows["weights"].source == "made up when the server starts"
    # Eight layers and two of the drafter, four heads of 128 in 16 bits, 65,536 tokens.
    assert rows["KV cache, one request of 65,536 tokens"].gib == 10 * 2 * 4 * 128 * 2 * 65536 / GIB


@pytest.mark.parametrize(
    ("code", "capability", "runs"),
    [
        ("sm_121a", "12.1", True),
        ("sm_121a", "12.0", False),
        ("sm_120", "12.1", True),
        ("sm_120f", "12.1", True),
        ("sm_121", "12.0", False),
        ("sm_90a", "12.1", False),
        ("sm_80", "9.0", False),
        ("compute_80", "12.1", True),
        ("compute_90", "8.9", False),
        ("something", "12.1", True),
        ("sm_121a", "", True),
    ],
)
def test_device_code_runs_on_cards(code, capability, runs):
    assert runs_on(code, capability) is runs


def test_an_installed_vllm_is_read(tmp_path):
    """A stand-in that is installed as vLLM is: metadata, record, and a table of models."""
    record = tmp_path / "vllm-0.24.0+spark.1.dist-info"
    (record / "sparkwright").mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0+spark.1\n")
    carries = {"carries": [{"name": "a", "outcome": "applied"}, {"name": "b", "outcome": "left-out"}]}
    (record / "sparkwright" / "carries.json").write_text(json.dumps(carries))
    kernels = {
        "binaries": [{"kernels": "compiled", "asked": {"sm_121a": 3}}, {"kernels": "upstream", "asked": {}}]
    }
    (record / "sparkwright" / "kernels.json").write_text(json.dumps(kernels))
    registry = tmp_path / "vllm" / "model_executor" / "models" / "registry.py"
    registry.parent.mkdir(parents=True)
    registry.write_text(
        '_MODELS = {\n    "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),\n    "GptOssForCausalLM": (\n'
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = read_installed(python)
    assert (found.version, found.carries, found.codes) == (
        "0.24.0+spark.1",
        frozenset({"a"}),
        frozenset({"sm_121a"}),
    )
    assert found.architectures == {"Qwen3ForCausalLM", "GptOssForCausalLM"}
    assert (found.packages["flashinfer-jit-cache"], found.companion_arch) == ("", "")
    kernels = tmp_path / "flashinfer_jit_cache_sm121a-1.2+cu130.k1.dist-info"
    (kernels / "sparkwright").mkdir(parents=True)
    (kernels / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: flashinfer-jit-cache-sm121a\nVersion: 1.2+cu130.k1\n"
    )
    stated = {
        "target": {"machine": "aarch64", "arch": "12.1a"},
        "modules": {},
        "recipes": {"*": ["sampling"]},
    }
    (kernels / "sparkwright" / "companion.json").write_text(json.dumps(stated))
    beside = read_installed(python)
    assert beside.packages["flashinfer-jit-cache"] == "1.2+cu130.k1"
    assert (beside.companion_arch, beside.companion_lacks) == ("12.1a", {"*": ("sampling",)})
    for name in ("flashinfer-jit-cache", "flashinfer-jit-cache-sm90a", "flashinfer-jit-cache-sm120f"):
        other = tmp_path / f"{name.replace('-', '_')}-0.1.dist-info"
        other.mkdir()
        (other / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    assert read_installed(python) == beside, "others' packages of kernels say nothing of the companion"
    shutil.rmtree(record)
    with pytest.raises(ServerError, match="has no vLLM"):
        read_installed(python)


def test_a_wheel_and_its_installation_have_one_digest(tmp_path):
    wheel = tmp_path / "vllm-0.24.0-cp38-abi3-manylinux_2_28_aarch64.whl"
    lines = ["vllm/a.py,sha256=AAAA,3", "vllm/b.py,sha256=BBBB,4"]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(REGISTRY, '    "Qwen3ForCausalLM": (\n')
        archive.writestr(
            "vllm-0.24.0.dist-info/RECORD", "\n".join([*lines, "vllm-0.24.0.dist-info/RECORD,,"])
        )
    found = read_wheel(wheel)
    assert (found.version, found.machine) == ("0.24.0", "aarch64")
    assert found.architectures == {"Qwen3ForCausalLM"}
    added = [
        "../../bin/vllm,sha256=CCCC,9",
        "vllm/__pycache__/a.pyc,,",
        "vllm-0.24.0.dist-info/INSTALLER,sha256=D,3",
    ]
    assert files_digest("\n".join([*reversed(lines), *added])) == found.files
    assert files_digest("\n".join([lines[0], "vllm/b.py,sha256=other,4"])) != found.files
    assert files_digest("") == ""
    wheel.write_bytes(b"PK")
    with pytest.raises(ArchiveError):
        read_wheel(wheel)


def test_an_interpreter_without_vllm_is_refused(model, tmp_path):
    assert levels(recipe(model), engine=None, python=tmp_path / "absent") == {"engine": "refuse"}


def test_the_kernels_figures_of_memory_are_read_in_bytes():
    text = "MemTotal:  125829120 kB\nMemAvailable:   20971520 kB\nHugePages_Total:   0\n"
    assert parse_meminfo(text) == {"MemTotal": 120 << 30, "MemAvailable": 20 << 30}
