"""An extension whose own build narrows the architectures: `plan` and `wheel` name it beforehand."""

import contextlib
import dataclasses
import os
import signal
import sys
from typing import Any

import msgspec
import psutil
import pytest
from killed import stopped
from native_kit import HERE, PROGRAM, Member, make_wheel, native_tables, offer, offer_toolkit, with_native
from world import World

from sparkwright.base.errors import ToolError
from sparkwright.lock.model import ExtensionSpec
from sparkwright.native.host import find_compiler
from sparkwright.native.model import Target

# It writes commands down, as CMake does. The project's list of architectures is the file ``archs``.
CMAKE = """\
import json, os
work = os.path.dirname(os.getcwd())
asked = os.environ["TORCH_CUDA_ARCH_LIST"]
with open(work + "/source/csrc/archs") as stream:
    known = stream.read().split()
code = "sm_" + asked.replace(".", "") if asked in known else "compute_80,sm_80"
file, output = work + "/source/csrc/ops.c", "CMakeFiles/_C.dir/ops.c.o"
command = f"gcc -DCODE=code=[{code}] -fPIC -ffile-prefix-map={work}=/sparkwright -o {output} -c {file}"
with open("compile_commands.json", "w") as stream:
    json.dump([{"file": file, "output": output, "command": command}], stream)
"""
NINJA = "print(': && gcc -shared -o _C.abi3.so CMakeFiles/_C.dir/ops.c.o && :')\n"
STEP = "compile _C"
PTX = "upstream's build makes compute_80, sm_80 of it and nothing for 9.0a: the driver compiles it from PTX"


def lacking() -> str:
    """Return why nothing can be compiled here; empty if it can."""
    try:
        find_compiler(Target(HERE, "12.1a"))
    except ToolError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


@pytest.fixture
def compiling(world: World) -> World:
    """A lock whose CMake and ninja answer as above, and a carry that adds the card to the project's list."""
    toolkit = offer_toolkit(world.index)
    programs = {"cmake": ("cmake/data/bin/cmake", CMAKE), "ninja": ("ninja-1.13.0.data/scripts/ninja", NINJA)}
    for name, (path, text) in programs.items():
        script = Member(f"#!{sys.executable}\n{text}".encode(), PROGRAM)
        filename = toolkit.builder[HERE][name].filename.replace("_pkg-", "_own-")
        toolkit.builder[HERE][name] = offer(world.index, filename, make_wheel({path: script}))
    native = native_tables(toolkit, sources={}, extensions={"_C": ExtensionSpec(member="vllm/_C.abi3.so")})
    lock = world.release.lock
    world.pin(dataclasses.replace(world.release, lock=with_native(lock, native)))
    files: dict[str, str | None] = {"csrc/ops.c": "int ops(void) { return 1; }\n", "csrc/archs": "12.1a\n"}
    world.carry("card", files, scope="build")
    world.record_proofs()
    return world


def planned(world: World, arch: str) -> dict[str, Any]:
    """Return the plan for *arch*, with its steps by name."""
    told = world.good("wheel", "--plan", "--json", "--arch", arch, "--platform", HERE).json
    return {**told, "steps": {step["name"]: step for step in told["steps"]}}


def built(world: World, arch: str, *words: str) -> str:
    """Return what building the wheel for *arch* says, which ends at a stand-in that is no ELF file."""
    ran = world.call("wheel", "--arch", arch, "--platform", HERE, "--allow-unproved", "card", *words)
    assert "vllm-rs cannot be inspected" in ran.err, ran.said
    return ran.said


def test_code_for_another_architecture_is_told(compiling: World) -> None:
    before = planned(compiling, "9.0a")
    assert before["steps"][STEP]["warning"] == ""
    assert f"_C: {PTX}" in built(compiling, "9.0a")
    after = planned(compiling, "9.0a")
    assert after["steps"][STEP]["code"] == {"compute_80": 1, "sm_80": 1}
    assert after["steps"][STEP]["warning"].startswith(PTX)
    assert f"{STEP}: {PTX}" in compiling.good("wheel", "--plan", "--arch", "9.0a", "--platform", HERE).out


def test_code_for_the_card_is_not_remarked(compiling: World) -> None:
    assert "upstream's build makes" not in built(compiling, "12.1a")
    after = planned(compiling, "12.1a")
    assert after["steps"][STEP]["code"] == {"sm_121a": 1}
    assert {step["warning"] for step in after["steps"].values()} == {""}


def test_an_extension_that_the_project_lacks_is_upstreams_and_nothing_is_compiled_again(
    compiling: World,
) -> None:
    lock = compiling.release.lock
    assert lock.native is not None
    listed = {**lock.native.extensions, "_Q": ExtensionSpec(member="vllm/_Q.abi3.so")}
    native = msgspec.structs.replace(lock.native, extensions=listed)
    compiling.pin(dataclasses.replace(compiling.release, lock=with_native(lock, native)))
    compiling.record_proofs()
    for word in ("made", "found"):
        built(compiling, "12.1a")
        assert compiling.steps()["compile units"] == word
    assert planned(compiling, "12.1a")["steps"]["compile _Q"]["detail"].startswith("upstream's own: ")


def has_compiler(pid: int) -> bool:
    """Tell if the compiler of the unit that never ends is below *pid*."""
    for one in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            # CMake, and what looks for a compiler, start others before.
            if one.name() == "cc1" and any(word.endswith("/ops.c") for word in one.cmdline()):
                return True
    return False


def test_a_build_ends_by_a_signal_at_once_with_all_of_its_compilers(compiling: World) -> None:
    endless = compiling.folder / "endless"
    os.mkfifo(endless)
    compiling.carry("slow", {"csrc/ops.c": f'#include "{endless}"\n', "csrc/archs": "12.1a\n"}, scope="build")
    compiling.list_carries(["slow"])
    run = compiling.start("wheel", "--arch", "12.1a", "--platform", HERE, "--allow-unproved", "slow")
    assert stopped(run, signal.SIGTERM, lambda: has_compiler(run.pid)).status == -signal.SIGTERM
