"""FlashInfer's kernels: when vLLM is told to take them, how many compilers run, and a recipe's companion."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import companion_kit as kit
import pytest
from preflight_kit import recipe

from sparkwright.base.errors import DigestError
from sparkwright.base.machine import look
from sparkwright.companion.wheel import write_companion
from sparkwright.engine import flashinfer
from sparkwright.engine.environment import Environment
from sparkwright.engine.flashinfer import (
    COMPILER_GIB,
    CUBIN,
    LISTS,
    choose_companion,
    compilers_at_once,
    cubin_variables,
    environment_path,
    installed_variables,
    jobs_variable,
    with_companion,
)
from sparkwright.engine.installed import EngineFacts
from sparkwright.engine.runtime import ExactRequirements
from sparkwright.native.model import Target
from sparkwright.publish.index import publish
from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.run import ServeOptions, server_variables
from sparkwright.store.paths import Store

WITHOUT = ExactRequirements("flashinfer-python==0.7.2 --hash=sha256:0\n")
WITH = ExactRequirements(f"{WITHOUT.text}flashinfer-cubin==0.6.12 --hash=sha256:0\n")


def programs(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch(0o755)
    return folder


@pytest.fixture(autouse=True)
def no_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has no CUDA in its usual place."""
    monkeypatch.setattr(flashinfer, "_CUDA", tmp_path / "cuda")


@pytest.mark.parametrize("there", [(), ("nvcc",), ("ninja",)])
def test_a_companion_is_told_where_a_compiler_is_missing(tmp_path: Path, there: tuple[str, ...]) -> None:
    path = {"PATH": str(programs(tmp_path / "bin", *there))}
    assert cubin_variables(WITHOUT, path, capability="9.0", complete=True) == {CUBIN: "1"}


def test_a_companion_is_not_told_where_it_would_be_compiled_or_cubins_are_found(tmp_path: Path) -> None:
    bare = {"PATH": str(tmp_path)}
    both = {"PATH": str(programs(tmp_path / "bin", "nvcc", "ninja"))}

    def told(
        requirements: ExactRequirements, environment: dict[str, str], *, complete: bool
    ) -> dict[str, str]:
        return cubin_variables(requirements, environment, capability="9.0", complete=complete)

    assert told(WITHOUT, both, complete=True) == {}
    assert told(WITH, bare, complete=True) == {}
    assert told(WITHOUT, bare, complete=False) == {}, "a missing kernel could not be compiled"
    assert told(WITHOUT, {**bare, CUBIN: "0"}, complete=True) == {}, "the user decided"


@pytest.mark.parametrize(
    ("there", "complete", "expected"),
    [
        (("nvcc", "ninja"), False, {CUBIN: "1"}),
        (("nvcc", "ninja"), True, {CUBIN: "1"}),
        ((), True, {CUBIN: "1"}),
        (("nvcc",), False, {}),
        (("ninja",), False, {}),
    ],
)
def test_on_a_spark_xqa_is_told_wherever_it_can_be_had(tmp_path, there, complete, expected):
    path = {"PATH": str(programs(tmp_path / "bin", *there))}
    assert cubin_variables(WITHOUT, path, capability="12.1", complete=complete) == expected
    assert cubin_variables(WITH, path, capability="12.1", complete=complete) == {}, "0.24 has cubins"
    assert cubin_variables(ExactRequirements(), path, capability="12.1", complete=complete) == {}


def test_the_runtimes_ninja_counts_and_nvcc_of_the_named_toolkit_alone(tmp_path: Path) -> None:
    locked = ExactRequirements(f"{WITHOUT.text}ninja==1.13.2 --hash=sha256:0\n")
    path = {"PATH": str(programs(tmp_path / "bin", "nvcc"))}
    assert cubin_variables(locked, path, capability="12.1", complete=False) == {CUBIN: "1"}
    named = {**path, "CUDA_HOME": str(tmp_path / "other")}
    assert cubin_variables(locked, named, capability="12.1", complete=False) == {}
    (tmp_path / "cuda").mkdir()
    programs(tmp_path / "cuda" / "bin", "nvcc")
    usual = {"PATH": str(tmp_path)}
    assert cubin_variables(locked, usual, capability="12.1", complete=False) == {CUBIN: "1"}


def test_an_installed_environment_is_told_the_same(tmp_path: Path) -> None:
    python = programs(tmp_path / "env", "python", "ninja") / "python"
    path = {"PATH": str(programs(tmp_path / "bin", "nvcc"))}
    engine = EngineFacts(version="0.33.0", packages={"flashinfer-python": "0.7.2.post1"})
    assert installed_variables(engine, "r", "12.1", path, python) == {CUBIN: "1"}
    assert installed_variables(engine, "r", "9.0", path, python) == {}
    bare = {"PATH": str(tmp_path)}
    for version, told in (("0.7.2.post1+cu130.k1", {CUBIN: "1"}), ("0.7.2+cu130.k1", {})):
        packages = {**engine.packages, "flashinfer-jit-cache": version}
        beside = replace(engine, packages=packages, companion_arch="12.1a", companion_lacks={"r": ()})
        assert installed_variables(beside, "r", "12.1", bare, python) == told
    whole = replace(engine, packages={**engine.packages, "flashinfer-cubin": "0.6.12"})
    assert installed_variables(whole, "r", "12.1", path, python) == {}


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
        made = Environment(Path("python"), "", "", {CUBIN: "1"})
        return server_variables(recipe, ServeOptions(), tmp_path, made).get(CUBIN)

    assert told() == "1"
    assert told(**{CUBIN: "0"}) is None


GB10 = {"cores": 20, "available_gib": 116, "total_gib": 121.69, "shared": True}


@pytest.mark.parametrize(("share", "expected"), [(0.5, 4), (0.7, 2), (0.8, 1), (0.9, 1), (0.99, 1)])
def test_what_a_server_leaves_of_a_sparks_memory_holds_all_compilers(share: float, expected: int) -> None:
    served = recipe(flags={"gpu-memory-utilization": share})
    assert compilers_at_once(served, **GB10) == expected
    assert expected == 1 or share * GB10["total_gib"] + expected * COMPILER_GIB < GB10["available_gib"]


def test_a_card_with_its_own_memory_leaves_the_hosts() -> None:
    host = GB10 | {"shared": False}
    assert compilers_at_once(recipe(), **host) == 10
    assert compilers_at_once(recipe(), **host | {"cores": 8}) == 8


@pytest.mark.parametrize(("memory", "shared"), [("[N/A]", True), ("Not Supported", True), ("81559", False)])
def test_it_is_set_with_a_card_and_unless_the_user_did(monkeypatch, memory, shared):
    rooms: list[dict[str, Any]] = []
    monkeypatch.setattr(flashinfer, "compilers_at_once", lambda _, **room: rooms.append(room) or 3)
    monkeypatch.setattr(flashinfer, "card_fields", lambda *_: (memory,))
    monkeypatch.setattr(flashinfer, "card_capability", lambda: "12.1")
    assert jobs_variable(recipe(), {}) == {"MAX_JOBS": "3"}
    assert rooms[0]["shared"] == shared
    assert jobs_variable(recipe(), {"MAX_JOBS": "8"}) == {}
    monkeypatch.setattr(flashinfer, "card_capability", lambda: "")
    assert jobs_variable(recipe(), {}) == {}


@pytest.mark.parametrize(("limit", "expected"), [("max", 10), (str(24 << 30), 1)])
def test_the_limit_of_a_control_group_bounds_it(monkeypatch, tmp_path, limit, expected):
    files = {
        "proc/meminfo": f"MemTotal: {128 << 20} kB\nMemAvailable: {120 << 20} kB\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": limit,
        "sys/fs/cgroup/box/memory.current": str(1 << 30),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(flashinfer, "look", lambda: look(tmp_path, affinity=20))
    monkeypatch.setattr(flashinfer, "card_fields", lambda *_: ("81559",))
    monkeypatch.setattr(flashinfer, "card_capability", lambda: "9.0")
    assert jobs_variable(recipe(), {}) == {"MAX_JOBS": str(expected)}


RECIPE = Recipe(format=1, name="r", title="R", model="m")
EXPERTS = Recipe(format=1, name="experts", title="E", model="some/Experts-NVFP4")
_LIST = """\
format = 1
flashinfer = {{ filename = "flashinfer_python-1.2.3-py3-none-any.whl", sha256 = "{zeros}", size = 1 }}
paths = ["csrc"]
[tvm-ffi]
[modules.sampling]
generator = "flashinfer.jit.sampling:gen"
why = "it samples"
[modules.moe]
generator = "flashinfer.jit.moe:gen"
why = "experts"
arches = ["12.1a"]
[needs]
every = ["sampling"]
linear = []
experts = ["moe"]
attention = {{}}
[models]
experts = {{ experts = true }}
"""


@pytest.fixture
def patchsets(tmp_path: Path) -> Path:
    folder = tmp_path / "patchsets"
    (folder / LISTS).mkdir(parents=True)
    (folder / LISTS / "0.33.toml").write_text(_LIST.format(zeros="0" * 64))
    return folder


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return tmp_path / f"vllm-0.33.0+spark.2.01234567-cp38-abi3-manylinux_2_28_{kit.TARGET.machine}.whl"


def companion(store: Store, folder: Path, *names: str, target: Target = kit.TARGET) -> Path:
    modules = [kit.module(store, kit.library(folder, name), name=name) for name in names]
    return write_companion(store, kit.content(modules, target), folder / "dist").path


def test_the_companion_with_the_recipes_kernels_is_chosen(store, tmp_path, wheel, patchsets):
    made = companion(store, tmp_path, "sampling")
    found = choose_companion(wheel, RECIPE, "12.1", [made.parent, made.parent], patchsets)
    assert (found.wheel, found.missing) == (made, ())


def test_the_kernels_that_the_companion_lacks_are_named(store, tmp_path, wheel, patchsets):
    made = companion(store, tmp_path, "sampling")
    found = choose_companion(wheel, EXPERTS, "12.1", [made.parent], patchsets)
    assert (found.wheel, found.missing, found.listed) == (made, ("moe",), True)
    assert not choose_companion(wheel, RECIPE, "12.1", [made.parent], patchsets).listed
    other = choose_companion(wheel, RECIPE, "9.0", [made.parent], patchsets)
    assert (other.wheel, other.missing) == (None, ("sampling",))
    gone = choose_companion(wheel, RECIPE, "12.1", [tmp_path / "gone"], patchsets)
    assert gone.missing == ("sampling",)


def test_nothing_is_needed_without_a_card_or_a_list(store, tmp_path, wheel, patchsets):
    made = companion(store, tmp_path, "sampling")
    for capability, lists in (("", patchsets), ("12.1", None), ("12.1", tmp_path / "empty")):
        found = choose_companion(wheel, RECIPE, capability, [made.parent], lists)
        assert (found.wheel, found.missing) == (None, ())


def test_it_is_required_by_its_digest(store: Store, tmp_path: Path) -> None:
    from sparkwright.base.digests import sha256_file

    made = companion(store, tmp_path, "sampling")
    copied = tmp_path / "with space" / made.name
    copied.parent.mkdir()
    shutil.copyfile(made, copied)
    text = with_companion(ExactRequirements("a==1\n"), copied).text
    assert text.startswith("a==1\nflashinfer-jit-cache-sm121a @ file:///")
    assert "with%20space" in text
    assert text.endswith(f" --hash=sha256:{sha256_file(made)}\n")


def test_it_is_not_installed_if_the_index_beside_it_lists_other_bytes(store: Store, tmp_path: Path) -> None:
    made = companion(store, tmp_path, "sampling")
    publish(made.parent)
    assert made.name in with_companion(ExactRequirements(), made).text.replace("%2B", "+")
    made.write_bytes(made.read_bytes() + b"x")
    with pytest.raises(DigestError, match="is not the file that the index"):
        with_companion(ExactRequirements(), made)
