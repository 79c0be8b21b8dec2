"""Machine, card, compilers and wheel: each planted fault fires, and the healthy twin is silent."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import zipfile
from dataclasses import replace

import pytest
from checkpoint_kit import DENSE, write_checkpoint
from preflight_kit import ENGINE, GB10, GIB, H200, recipe, spark, start

from sparkwright.base import card
from sparkwright.base.errors import ArchiveError, ServerError
from sparkwright.engine.installed import (
    REGISTRY,
    files_digest,
    read_installed,
    read_wheel,
    runs_on,
)
from sparkwright.recipes import load_recipe
from sparkwright.serve.preflight import EngineFacts, HostFacts, inspect_start, read_host, run_preflight
from sparkwright.serve.preflight.machine import cache_folders, is_taken, parse_card, writable

SPARK_ENGINE = replace(ENGINE, architectures=frozenset({"Qwen3ForCausalLM"}))


@pytest.fixture
def model(tmp_path):
    return write_checkpoint(tmp_path / "model", DENSE)


def levels(served, host=None, **keys) -> dict[str, str]:
    return {one.check: one.level for one in run_preflight(start(served, host, **keys))}


def test_a_healthy_spark_is_silent(model):
    assert levels(recipe(model, capability="12.1"), engine=SPARK_ENGINE) == {}


# The card -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"driver": "575.57.08"}, {"driver": "refuse"}),
        ({"driver": "610.43.02"}, {}),
        ({"driver": "[N/A]"}, {}),
        ({"mode": "Prohibited"}, {"compute-mode": "refuse"}),
        ({"mode": "Exclusive_Process"}, {}),
        ({"persistence": "Disabled"}, {"persistence": "note"}),
        ({"persistence": ""}, {}),
    ],
)
def test_the_cards_settings(model, change, expected):
    assert levels(recipe(model), spark(card=replace(GB10, **change))) == expected


def test_other_programs_on_the_card(model):
    busy = spark(processes=("412, python, 30000 MiB",))
    assert levels(recipe(model), busy) == {"card-processes": "warn"}
    exclusive = replace(busy, card=replace(GB10, mode="Exclusive_Process"))
    assert levels(recipe(model), exclusive)["compute-mode"] == "refuse"


def test_the_card_of_the_recipe(model):
    engine = EngineFacts(version="0.24.0")
    assert levels(recipe(model, capability="12.1"), spark(card=H200), engine=engine) == {"capability": "warn"}
    assert levels(recipe(model, capability="12.1"), spark(card=None), engine=engine)["card"] == "refuse"
    assert "card" not in levels(recipe(model), spark(card=None), engine=engine)


def test_what_a_gb10_says_is_read():
    spark_says = ("NVIDIA GB10", "12.1", "580.95.05", "[N/A]", "Not Supported", "Default", "Enabled")
    card = parse_card(spark_says)
    assert (card.total, card.free, card.mode, card.persistence) == (-1, -1, "Default", "Enabled")
    assert HostFacts(card=card).unified
    hopper = parse_card(("NVIDIA H200", "9.0", "580.95.05", "143771 MiB", "143000 MiB", "Default", "[N/A]"))
    assert (hopper.total, hopper.persistence) == (143771 << 20, "")
    assert parse_card(()) is None


def test_nvidia_smi_is_asked(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $1 in *compute-apps*) echo '7, python, [N/A]';; "
        "*) echo 'NVIDIA GB10, 12.1, 580.95.05, [N/A], [N/A], Default, Enabled';; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(card.shutil, "which", lambda *_, **__: str(program))
    found = read_host({"PATH": "/nowhere"}, models=tmp_path)
    assert (found.card.name, found.card.total, found.processes) == ("NVIDIA GB10", -1, ("7, python, [N/A]",))
    assert found.memory().kind == "unified"


def test_this_machine_is_read(tmp_path):
    found = read_host({"HOME": str(tmp_path), "PATH": ""}, models=tmp_path / "hub")
    assert found.meminfo["MemTotal"] > found.meminfo["MemAvailable"] > 0
    assert found.disk_free > 0
    assert found.unwritable == {}


# Ports, caches and disk -----------------------------------------------------------------------------


def test_a_port_that_is_taken(model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_taken("127.0.0.1", port)
        facts = read_host({"HOME": str(tmp_path)}, models=tmp_path, ports=(port,))
        host = spark(taken=facts.taken)
        assert levels(recipe(model), host, port=port) == {"port": "refuse"}
    assert not is_taken("127.0.0.1", port)
    assert levels(recipe(model), port=port) == {}


def test_caches_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").touch()
    assert not writable(tmp_path / "file" / "below")
    assert writable(tmp_path / "new" / "below")
    folders = cache_folders({"HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "file" / "t")})
    assert [name for name, folder in folders.items() if not writable(folder)] == ["Triton"]
    facts = read_host({"HOME": str(tmp_path / "file")}, models=tmp_path)
    assert set(facts.unwritable) == {"FlashInfer", "Triton", "vLLM"}
    assert levels(recipe(model), spark(unwritable={"Triton": "/x"})) == {"cache": "warn"}


def test_caches_are_where_their_variables_say():
    folders = cache_folders(
        {
            "HOME": "/h",
            "FLASHINFER_WORKSPACE_BASE": "/f",
            "VLLM_CACHE_ROOT": "/v",
            "TORCHINDUCTOR_CACHE_DIR": "/i",
        }
    )
    assert {name: str(path) for name, path in folders.items()} == {
        "FlashInfer": "/f/.cache/flashinfer",
        "Triton": "/h/.triton/cache",
        "vLLM": "/v",
        "torch.compile": "/i",
    }


def test_disk_for_the_rest_of_a_model(tmp_path):
    shards = [{"a": ("BF16", (1 << 20, 1 << 10))}, {"b": ("BF16", (1 << 20, 1 << 10))}]
    folder = write_checkpoint(tmp_path / "m", DENSE, shards)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert levels(recipe(folder), spark(disk_free=3 * GIB)) == {"shard-missing": "refuse", "disk": "refuse"}
    assert levels(recipe(folder), spark(disk_free=5 * GIB)) == {"shard-missing": "refuse"}
    online = {"HOME": "/nonexistent"}
    absent = levels(recipe("org/absent"), spark(disk_free=20 * GIB), environment=online)
    assert absent == {"disk": "warn", "model-fetched": "note"}


# The network ----------------------------------------------------------------------------------------


def test_a_model_that_is_not_here(tmp_path):
    assert levels(recipe("org/absent")) == {"model-missing": "refuse"}
    assert levels(recipe(tmp_path / "absent"), environment={}) == {"model-missing": "refuse"}
    assert levels(recipe("a/relative/folder"), environment={}) == {"model-missing": "refuse"}
    assert levels(recipe("org/absent"), environment={}) == {"model-fetched": "note"}


def test_a_start_without_dns(model, tmp_path):
    blobs = tmp_path / "hub" / "models--org--m" / "snapshots" / "main"
    write_checkpoint(blobs, DENSE)
    home = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HOME": "/nonexistent"}
    assert levels(recipe("org/m"), environment=home) == {"offline": "note"}
    assert levels(recipe("org/m"), environment={**home, "HF_HUB_OFFLINE": "1"}) == {}
    assert levels(recipe("org/m", environment={"HF_HUB_OFFLINE": "1"}), environment=home) == {}
    assert levels(recipe(model), environment={}) == {}


# Compilers ------------------------------------------------------------------------------------------


def test_kernels_that_are_compiled_late(model):
    bare = replace(ENGINE, packages={"flashinfer-python": "0.6.1"})
    assert levels(recipe(model), engine=bare) == {"jit": "note"}
    assert levels(recipe(model), spark(tools={}), engine=bare) == {"nvcc": "warn"}
    assert levels(recipe(model), spark(nvcc=(12, 8)), engine=bare) == {"nvcc": "warn"}
    assert levels(recipe(model), spark(nvcc=(12, 9)), engine=bare) == {"jit": "note"}
    assert levels(recipe(model), spark(tools={})) == {}  # the companion is there
    assert levels(recipe(model), spark(tools={}), engine=EngineFacts(packages={"torch": "2.11"})) == {}


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
    looks = {**ENGINE.packages, "flashinfer-python": "0.7.2.post1"}
    engine = replace(ENGINE, companion_arch=arch, companion_lacks=lacks, packages=looks)
    served = recipe(model, name="m")
    assert levels(served, engine=engine) == ({"jit": "note"} if because else {})
    found = run_preflight(start(served, spark(tools={}), engine=engine))
    assert [one.check for one in found] == (["nvcc"] if because else [])
    assert all(because in one.because for one in found)
    # Without the sampler's kernel, and only then, vLLM's own sampler is a way out.
    other_sampler = "sampling" in because or "9.0a" in because
    assert all(("SAMPLER=0" in one.next_step) == other_sampler for one in found)


def test_the_command_for_missing_kernels_names_series_machine_and_card(model):
    bare = replace(ENGINE, packages={"flashinfer-python": "0.6.1"})
    (found,) = run_preflight(start(recipe(model, name="m"), engine=bare))
    assert "build --series 0.24 --platform aarch64 --arch 12.1a --recipe m)" in found.next_step
    (found,) = run_preflight(start(recipe(model, name="m"), engine=replace(bare, version="")))
    assert "build --platform aarch64 --arch 12.1a --recipe m)" in found.next_step


FP8 = {"kv-cache-dtype": "fp8"}
BARE = {"flashinfer-python": "0.7.2.post1"}


def fp8_levels(model, host=None, *, packages=BARE, lacks=None, **keys):
    keys = {"flags": FP8, "capability": "12.1", "name": "m", **keys}
    engine = replace(ENGINE, packages=packages, companion_arch="12.1a", companion_lacks=lacks or {})
    return levels(recipe(model, **keys), host or spark(tools={}), engine=engine)


def test_an_fp8_cache_is_refused_where_flashinfer_has_no_kernel_for_it(model):
    refused = {"fp8-kv-fallback": "refuse", "nvcc": "warn"}
    assert fp8_levels(model) == refused
    assert fp8_levels(model, spark(nvcc=(12, 8))) == refused, "nvcc does not know the card"
    assert fp8_levels(model, flags={**FP8, "attention-backend": "FLASHINFER"}) == refused
    for name in ("attention-fp8-256", "attention-dflash2"):
        assert fp8_levels(model, packages=ENGINE.packages, lacks={"m": (name,)}) == refused


@pytest.mark.parametrize(
    "keys",
    [
        {"flags": {**FP8, "attention-backend": "TRITON_ATTN"}},
        {"flags": {"kv-cache-dtype": "auto"}},
        {"host": spark(tools={}, card=H200), "capability": "9.0"},
        {"host": spark(nvcc=(13, 0))},
        {"traits": ("mla",)},
        {"packages": ENGINE.packages, "lacks": {"m": ("sampling",)}},
        {"packages": ENGINE.packages, "lacks": {"m": ()}},
        {"packages": {}},
    ],
    ids=str,
)
def test_an_fp8_cache_is_served_where_another_backend_or_a_kernel_is_there(model, keys):
    assert "fp8-kv-fallback" not in fp8_levels(model, **keys)


def test_gemma_and_gpt_oss_are_left_to_triton(tmp_path):
    for name in ("Gemma4ForConditionalGeneration", "Gemma3ForCausalLM", "GptOssForCausalLM"):
        other = write_checkpoint(tmp_path / name, {**DENSE, "architectures": [name]})
        assert "fp8-kv-fallback" not in fp8_levels(other)


def test_a_companion_for_another_card_that_flashinfer_would_load(model):
    def found(**changes):
        return levels(recipe(model), engine=replace(ENGINE, **changes))

    assert found(companion_arch="9.0a") == {"companion": "refuse"}
    assert found(companion_arch="12.1a") == {}
    later = {**ENGINE.packages, "flashinfer-python": "0.7.2.post1"}
    assert found(companion_arch="9.0a", packages=later) == {"jit": "note"}


@pytest.mark.parametrize(
    ("name", "value", "fires"),
    [
        ("FLASHINFER_CUDA_ARCH_LIST", "9.0a 10.0a", True),
        ("FLASHINFER_CUDA_ARCH_LIST", "12.1a", False),
        ("FLASHINFER_CUDA_ARCH_LIST", "9.0a 12.1f", False),
        ("TORCH_CUDA_ARCH_LIST", "8.9;12.0", True),
        ("TORCH_CUDA_ARCH_LIST", "8.9;12.1+PTX", False),
        ("CUTE_DSL_ARCH", "sm_100a", True),
        ("CUTE_DSL_ARCH", "sm_121a", False),
    ],
)
def test_architectures_of_compilers(model, name, value, fires):
    bare = replace(ENGINE, packages={"torch": "2.11.0"})
    served = recipe(model, environment={name: value})
    assert levels(served, engine=bare) == ({"jit-architecture": "warn"} if fires else {})
    assert levels(served) == ({"jit-architecture": "note"} if fires else {})


def test_tritons_ptxas(model, tmp_path):
    ptxas = tmp_path / "ptxas"
    served = recipe(model, environment={"TRITON_PTXAS_PATH": str(ptxas)})
    assert levels(served) == {"ptxas": "refuse"}
    ptxas.touch(0o755)
    assert levels(served) == {}


def test_the_release_of_nvcc_is_read(tmp_path):
    program = tmp_path / "bin" / "nvcc"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    program.chmod(0o755)
    found = read_host({"CUDA_HOME": str(tmp_path), "PATH": ""}, models=tmp_path)
    assert (found.tools["nvcc"], found.nvcc) == (str(program), (13, 0))
    program.write_text("#!/bin/sh\nexit 1\n")
    assert read_host({"CUDA_HOME": str(tmp_path), "PATH": ""}, models=tmp_path).nvcc == ()


def test_options_that_do_not_work_together(model):
    served = recipe(model, flags={"kv-cache-dtype": "fp8", "attention-backend": "FLASH_ATTN"})
    assert levels(served) == {"rule flash-attn-fp8-kv": "refuse"}
    assert levels(served, engine=replace(ENGINE, version="0.33.0")) == {}


def test_the_generated_pair_of_the_smoke_recipe():
    request = start(load_recipe("smoke"))
    report = inspect_start(request)
    assert report.findings == ()
    rows = {row.part: row for row in report.rows}
    assert rows["weights"].source == "made up when the server starts"
    # Eight layers and two of the drafter, four heads of 128 in 16 bits, 65,536 tokens.
    assert rows["KV cache, one request of 65,536 tokens"].gib == 10 * 2 * 4 * 128 * 2 * 65536 / GIB


# The wheel ------------------------------------------------------------------------------------------


def test_a_wheel_for_another_machine_or_card(model):
    other = replace(ENGINE, machine="x86_64", version="0.33.0+spark.2")
    assert levels(recipe(model), engine=other) == {"wheel-machine": "refuse"}
    (finding,) = run_preflight(start(recipe(model), engine=other))
    assert "make wheel PLATFORM=aarch64 SERIES=0.33" in finding.next_step
    assert levels(recipe(model), spark(card=H200)) == {"wheel-card": "refuse"}
    assert levels(recipe(model), spark(card=H200), engine=replace(ENGINE, codes=frozenset())) == {}


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


def test_an_architecture_that_the_release_has_not(model):
    engine = replace(SPARK_ENGINE, architectures=frozenset({"LlamaForCausalLM"}))
    assert levels(recipe(model), engine=engine) == {"architecture": "warn"}
    assert levels(recipe(model), engine=SPARK_ENGINE) == {}


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
    assert found.packages["flashinfer-jit-cache"] == ""
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
    request = start(recipe(model), engine=None, python=tmp_path / "absent")
    assert {one.check: one.level for one in run_preflight(request)} == {"engine": "refuse"}


# The loader -----------------------------------------------------------------------------------------


def test_a_loader_that_is_not_installed(model):
    served = recipe(model, flags={"load-format": "instanttensor"})
    without = replace(ENGINE, packages={**ENGINE.packages, "instanttensor": ""})
    assert levels(served, engine=without) == {"loader": "refuse"}
    assert (
        levels(served, engine=replace(ENGINE, packages={**ENGINE.packages, "instanttensor": "0.2.2"})) == {}
    )
    assert levels(served) == {}  # packages of a wheel are not known
    assert levels(recipe(model), engine=without) == {}
