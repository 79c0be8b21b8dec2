"""The machine is sampled where it can be; generated models are complete; environments are made once."""

import asyncio
import json
import os
from pathlib import Path

import preflight_kit
import psutil
import pytest
import wheelkit
from kit import write_program

from sparkwright.base.errors import IncompatibleOptionsError, NotInStoreError, ServerError
from sparkwright.base.machine import MachineSnapshot, Pressure, card_capability, card_memory_gib
from sparkwright.engine.installed import read_installed
from sparkwright.engine.runtime import make_environment
from sparkwright.engine.server import host
from sparkwright.engine.server.compiling import FlashInferBuild
from sparkwright.engine.server.launch import start_server
from sparkwright.recipes.recipe import load_recipe


def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, status: int = 0) -> None:
    """Put a program in place of ``nvidia-smi``."""
    smi(monkeypatch, tmp_path, f"echo '{says}'\nexit {status}")


def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    write_program(tmp_path / "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def sampled(pid: int | None = None) -> host.HostSample:
    return asyncio.run(host.sample_host(pid))


def test_a_sample_holds_what_the_card_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    card(monkeypatch, tmp_path, "2411, 38.42, 61")
    sample = sampled(os.getpid())
    assert (sample.gpu_clock_mhz, sample.gpu_power_w, sample.gpu_temperature_c) == (2411, 38.42, 61)
    assert sample.memory_available_mib > 0
    assert sample.server_rss_mib > 1


@pytest.mark.parametrize(
    ("says", "status", "expected"),
    [
        ("[N/A], 4.1, [Not Supported]", 0, (-1, 4.1, -1)),
        ("No devices were found", 6, (-1, -1, -1)),
        ("", 0, (-1, -1, -1)),
    ],
)
def test_what_a_card_does_not_say_is_absent(monkeypatch, tmp_path, says, status, expected):
    card(monkeypatch, tmp_path, says, status)
    sample = sampled()
    assert (sample.gpu_clock_mhz, sample.gpu_power_w, sample.gpu_temperature_c) == expected
    assert sample.server_rss_mib == -1


def test_without_a_card_all_but_memory_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sample = sampled(2**22 + 1)  # no process has such an id
    assert (sample.gpu_clock_mhz, sample.server_rss_mib) == (-1, -1)
    assert sample.memory_available_mib > 0
    assert card_memory_gib() == -1
    assert card_capability() == ""


def test_memory_that_card_and_host_share_is_the_hosts(monkeypatch, tmp_path):
    card(monkeypatch, tmp_path, "[N/A]")
    assert card_memory_gib() == psutil.virtual_memory().total / (1 << 30) > 0
    card(monkeypatch, tmp_path, "81559")
    assert card_memory_gib() == pytest.approx(79.65, abs=0.01)


# Environments and recipes ------------------------------------------------------------------


def tiny_wheel(folder: Path, version: str, record: str = "", requires: str = "") -> Path:
    """A wheel called vllm that has nothing but a version and, if any, a record of carries, a requirement."""
    info = f"vllm-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" * bool(requires)
    files = {
        "vllm/__init__.py": b"",
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{info}/sparkwright/carries.json": record.encode()} if record else {}),
    }
    return wheelkit.pack(folder / f"vllm-{version}-py3-none-any.whl", wheelkit.with_record(files, info))


def made(wheel: Path, folder: Path, *, offline: bool = False) -> Path:
    return make_environment(wheel.name, folder, [wheel], offline=offline)


def test_an_environment_is_made_once(tmp_path):
    wheel = tiny_wheel(tmp_path, "0.24.0")
    python = made(wheel, tmp_path / "env")
    assert read_installed(python).version == "0.24.0"
    stamp = python.parent.parent / "ours"
    stamp.touch()
    assert made(wheel, tmp_path / "env") == python
    assert stamp.exists(), "it was taken as it is"


def test_a_removal_that_was_killed_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tiny_wheel(tmp_path, "0.24.0")
    python = made(wheel, tmp_path / "env")
    aside = python.rename(python.with_name("aside"))

    def killed(path: Path) -> None:
        raise KeyboardInterrupt(path)

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            made(wheel, tmp_path / "env")
    aside.rename(python)
    stamp = tmp_path / "env" / "ours"
    stamp.touch()
    made(wheel, tmp_path / "env")
    assert not stamp.exists(), "what was half removed is not taken for finished"


def test_a_finished_environment_needs_no_lock(tmp_path: Path) -> None:
    wheel = tiny_wheel(tmp_path, "0.24.0")
    python = made(wheel, tmp_path / "env")
    lock = tmp_path / "env.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()  # cannot be opened, like any file on a read-only disk
    assert made(wheel, tmp_path / "env") == python


def test_without_a_network_only_what_is_cached_is_installed(tmp_path):
    python = made(tiny_wheel(tmp_path, "0.24.0"), tmp_path / "env", offline=True)
    assert read_installed(python).version == "0.24.0"
    needy = tiny_wheel(tmp_path, "0.25.0", requires="no-such-distribution==9")
    with pytest.raises(NotInStoreError) as caught:
        made(needy, tmp_path / "needy", offline=True)
    assert caught.value.exit_code == 20
    assert needy.name in caught.value.what
    assert "no-such-distribution" in caught.value.because
    broken = tmp_path / "vllm-0.26.0-py3-none-any.whl"
    broken.write_bytes(b"no zip")
    with pytest.raises(ServerError):
        made(broken, tmp_path / "broken", offline=True)


def carried(**outcomes: str) -> str:
    """A wheel's record of carries, by the outcome of each."""
    carries = [{"name": name.replace("_", "-"), "outcome": outcome} for name, outcome in outcomes.items()]
    return json.dumps({"format": 1, "carries": carries})


def test_a_wheel_says_what_was_merged_into_it(tmp_path: Path) -> None:
    record = carried(
        tie_weights="applied",
        uma_clamp="conflict-in-tests-or-docs",
        nvfp4_kv_triton="superseded",
        native_sm121a="left-out",
    )
    python = made(tiny_wheel(tmp_path, "0.24.0+spark.01234567", record), tmp_path / "env")
    found = read_installed(python)
    assert found.version == "0.24.0+spark.01234567"
    assert found.carries == {"tie-weights", "uma-clamp"}


@pytest.mark.parametrize("record", ["{", "[]", '{"carries": [{"name": "x"}]}', '{"carries": null}'])
def test_a_broken_record_of_carries_is_an_error(tmp_path: Path, record: str) -> None:
    python = made(tiny_wheel(tmp_path, "0.24.0", record), tmp_path / "env")
    with pytest.raises(ServerError, match="record of carries"):
        read_installed(python)


def test_smoke_starts_on_generated_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    card(monkeypatch, tmp_path, "9.0")
    python = made(tiny_wheel(tmp_path, "0.24.0"), tmp_path / "env")
    recipe = load_recipe("smoke")
    this = start_server(recipe, folder=tmp_path / "run", python=python, api_key="secret", port=8123)
    argv, variables = this.launch.argv, this.launch.environment
    assert argv[:5] == (str(python), "-m", "vllm.entrypoints.cli.main", "serve", argv[4])
    assert json.loads(
        (tmp_path / "run" / "tiny-models" / "target" / "config.json").read_text(encoding="utf-8")
    )
    assert argv[4] == str(tmp_path / "run" / "tiny-models" / "target")
    speculative = json.loads(argv[argv.index("--speculative-config") + 1])
    assert speculative["model"] == str(tmp_path / "run" / "tiny-models" / "drafter")
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert "secret" not in argv, "every user of a machine sees arguments"
    assert this.endpoint.api_key == variables["VLLM_API_KEY"] == "secret"
    assert (this.model, this.launch.facts.max_num_seqs, this.launch.facts.version) == ("smoke", 64, "0.24.0")


def test_incompatible_options_are_refused_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    python = made(tiny_wheel(tmp_path, "0.24.0"), tmp_path / "env")
    speculative = {"method": "dflash", "num_speculative_tokens": 7}
    recipe = preflight_kit.recipe(drafter="c/d", flags={"kv-cache-dtype": "nvfp4"}, speculative=speculative)
    with pytest.raises(IncompatibleOptionsError):
        start_server(recipe, folder=tmp_path / "run", python=python)
    assert not (tmp_path / "run").exists()
    ours = tiny_wheel(tmp_path, "0.24.0+spark.01234567", carried(nvfp4_kv_triton="applied"))
    start_server(recipe, folder=tmp_path / "run", python=made(ours, tmp_path / "ours"))


@pytest.mark.parametrize(
    ("cases", "mask"),
    [
        (
            (
                "--query-gpu=clocks_event*) echo 0x0000000000000004;;\n"
                "*clocks_event*) echo '2411, 38.42, 61, 0x0000000000000024';;"
            ),
            0x24,
        ),
        ("*clocks_event*) echo 'not a valid field to query.'; exit 2;;\n*) echo '2411, 38.42, 61';;", -1),
    ],
    ids=["known", "unknown"],
)
def test_reasons_of_low_clocks_are_asked_of_drivers_that_know_them(monkeypatch, tmp_path, cases, mask):
    smi(monkeypatch, tmp_path, f"case $1 in\n{cases}\nesac")
    host._reasons_known.cache_clear()
    try:
        sample = sampled()
    finally:
        host._reasons_known.cache_clear()
    assert (sample.gpu_clock_mhz, sample.gpu_slowed_by) == (2411, mask)


def test_swap_and_pressure_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for pressure, shown in ((Pressure(some=12.5), 12.5), (None, -1)):
        monkeypatch.setattr(host, "look", lambda found=pressure: MachineSnapshot(1, 1, 1, found))
        sample = sampled()
        assert (sample.memory_pressure, sample.swap_used_mib >= 0) == (shown, True)


BLOCK = b"x" * 8192


def test_compilers_go_on_where_files_come_that_were_not_there(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "flashinfer" / "0.6" / "121a" / "moe"
    cache.mkdir(parents=True)
    (cache / "old.o").touch()
    build = FlashInferBuild({"FLASHINFER_WORKSPACE_BASE": str(tmp_path)})
    assert not build.look(5.0), "what was here before was not compiled now"
    (cache / "a.o").touch()
    assert not build.look(6.0), "looks that follow each other closely are one"
    assert build.look(10.0)
    (cache / "a.o").write_bytes(BLOCK)
    (cache / "moe.lock").touch()
    assert not build.look(15.0), "no new file of a kernel"
    (cache / "a.o").unlink()
    assert not build.look(20.0)
    (cache / "a.o").touch()
    assert not build.look(25.0), "it began again"
