"""Real kernels of vLLM compiled for the Spark: two extensions and one CUDA unit, and what came of them."""

import os
import platform
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.base.errors import CompileError, ToolError
from sparkwright.base.events import subscribe
from sparkwright.base.process import run
from sparkwright.git import FileEntry, patch_tree
from sparkwright.merge import merge_patchset
from sparkwright.native.build import (
    Builder,
    build_extension,
    compile_units,
    configured,
    device_code,
    forecast,
)
from sparkwright.native.host import find_compiler
from sparkwright.native.inspection import (
    Surroundings,
    find_surroundings,
    inspect,
    resolve,
)
from sparkwright.native.model import Target
from sparkwright.native.sources import gather_sources
from sparkwright.native.toolchain import prepare_toolchain
from sparkwright.pipeline.job import open_job
from sparkwright.pipeline.kernels import inputs_of, not_native
from sparkwright.pipeline.options import BuildOptions
from sparkwright.pipeline.state import BuildState
from sparkwright.store import open_store
from sparkwright.wheel.source import HEADER_SIZE, machine_of

ROOT = Path(__file__).parents[2]
KERNEL = "csrc/libtorch_stable/permute_cols.cu"
TARGET = Target("aarch64", "12.1a")
FA2 = "_vllm_fa2_C"
EXTENSIONS = ("cumem_allocator", "spinloop")


def lacking() -> str:
    """Why nothing can be compiled for the Spark here; empty if it can."""
    try:
        find_compiler(TARGET)
    except ToolError as error:
        return str(error)
    return ""


# To configure vLLM takes half a minute. test_native_real.py compiles and links a kernel by the same toolchain
# in seconds, test_native_build.py has builds, and `make test-native` compiles everything.
pytestmark = [
    pytest.mark.upstream,
    pytest.mark.slow,
    pytest.mark.walk,
    pytest.mark.skipif(bool(lacking()), reason=lacking()),
]


@pytest.fixture(scope="module")
def job():
    options = BuildOptions(series="0.24", platform=TARGET.machine, kernels="native", arch=TARGET.arch)
    with open_job(ROOT, options) as job:
        yield job


@pytest.fixture(scope="module")
def inputs(job):
    """What a build of the patchset compiles: the merged tree, sources as far as they can be had."""
    lock = job.spec.lock
    state = BuildState(sources=gather_sources(lock, job.access))
    state.report = merge_patchset(job.repository, job.merge_request(job.pristine, lock.release.version))
    state.toolchain = prepare_toolchain(lock, job.target, job.access)
    return inputs_of(job, state)


@pytest.fixture(scope="module")
def builder(job, tmp_path_factory):
    """Builds into a store of its own, so that compilers run here whatever the machine has built before."""
    home = tmp_path_factory.mktemp("native")
    lock = job.spec.lock
    return Builder(open_store(home / "store"), job.repository, lock, lock.native, home / "logs")


@pytest.fixture(scope="module")
def extensions(builder, inputs):
    return {name: build_extension(builder, inputs, name) for name in EXTENSIONS}


@pytest.fixture(scope="module")
def unit(builder, inputs):
    known = configured(builder, inputs)
    return next(one for one in known.configuration.units if one.source.endswith(KERNEL))


def started(action):
    """The units that compilers were started for while *action* ran, and what it returned."""
    events = []
    with subscribe(events.append):
        result = action()
    return [event.data["unit"] for event in events if event.kind == "compile.started"], result


def test_every_unit_of_ours_asks_for_the_cards_own_code(builder, inputs):
    units = configured(builder, inputs).configuration.units
    own = {"_C_stable_libtorch", "_moe_C_stable_libtorch"}
    cuda = [one for one in units if one.target in own and one.language == "CUDA"]
    others = {Path(one.source).name: one.arches for one in cuda if one.arches != (TARGET.sm,)}
    assert len(cuda) > 90
    assert others == {"scaled_mm_c2x.cu": ("sm_89", "compute_89")}


@pytest.mark.parametrize("name", ["cumem_allocator", "spinloop"])
def test_an_extension_is_for_the_spark_and_wants_nothing_that_is_not_there(
    job, builder, inputs, extensions, name
):
    path = builder.store.file_path(extensions[name].sha256)
    found = inspect(path, inputs.toolchain.cuobjdump)
    surroundings = find_surroundings(builder.native, TARGET.machine, job.store)
    assert isinstance(surroundings, Surroundings)
    assert found.elf.machine == "aarch64"
    assert not found.elf.run_paths
    assert ("libcuda.so.1" in found.elf.needed) == (name == "cumem_allocator")
    assert not found.device.cubins
    assert not resolve(found.elf, surroundings, python="stable-abi").unresolved


def test_no_place_of_this_machine_is_in_an_extension(builder, extensions):
    data = builder.store.file_path(extensions["cumem_allocator"].sha256).read_bytes()
    assert str(builder.store.home).encode() not in data
    assert os.fsencode(Path.home() / ".cache") not in data


def test_a_kernel_becomes_code_for_the_card_and_for_nothing_else(builder, inputs, unit):
    known = configured(builder, inputs)
    ran, objects = started(lambda: compile_units(builder, inputs, known, [unit]))
    assert ran == [unit.name]
    path = builder.store.file_path(objects[unit.output])
    assert machine_of(path.read_bytes()[:HEADER_SIZE]) == "aarch64"
    listed = {
        what: run([inputs.toolchain.cuobjdump, what, path]).text for what in ("--list-elf", "--list-ptx")
    }
    assert re.findall(r"\.(sm_\w+)\.cubin", listed["--list-elf"]) == [TARGET.sm]
    assert ".ptx" not in listed["--list-ptx"]


def test_what_was_compiled_is_not_compiled_again(builder, inputs, extensions):
    ran, again = started(lambda: build_extension(builder, inputs, "spinloop"))
    assert (ran, again) == ([], extensions["spinloop"])
    assert forecast(builder, inputs, "spinloop").missing == 0


def edited(job, inputs, path, data):
    tree = patch_tree(job.repository, inputs.tree, {path: FileEntry("100644", data)})
    return replace(inputs, tree=tree)


def test_an_edit_compiles_the_unit_that_reads_the_file_and_no_other(job, builder, inputs, extensions):
    path = "csrc/spinloop.cpp"
    data = job.repository.blob(job.repository.files(inputs.tree, [path])[path].blob)
    changed = edited(job, inputs, path, data + b"\n// edited\n")
    ran, _ = started(lambda: [build_extension(builder, changed, name) for name in extensions])
    assert ran == ["spinloop/csrc/spinloop.cpp"]


def test_a_kernel_that_does_not_compile_says_where(job, builder, inputs):
    broken = edited(job, inputs, "csrc/spinloop.cpp", b"#error planted\n")
    with pytest.raises(CompileError, match=r"spinloop\.cpp.*planted"):
        build_extension(builder, broken, "spinloop")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="builds for the other machine")
def test_the_other_machine_gets_other_keys(job, builder, inputs):
    lock = job.spec.lock
    target = Target("x86_64", "9.0a")
    chain = prepare_toolchain(lock, target, job.access)
    other = replace(inputs, toolchain=chain, target=target)
    assert chain.key != inputs.toolchain.key
    assert not chain.cross
    built = build_extension(builder, other, "spinloop")
    found = inspect(builder.store.file_path(built.sha256), chain.cuobjdump)
    assert found.elf.machine == "x86_64"
    assert built.key != builder.key(inputs, "spinloop")


@pytest.mark.parametrize(("arch", "native"), [("12.1a", True), ("9.0a", False)])
def test_flash_attention_2_is_named_where_its_own_build_leaves_the_card_out(
    job, builder, inputs, arch, native
):
    if not inputs.sources["vllm-flash-attn"].at_hand:
        pytest.skip(inputs.sources["vllm-flash-attn"].missing)
    units = configured(builder, replace(inputs, target=Target("aarch64", arch))).configuration.units_of(FA2)
    code = device_code(units)
    assert code == ({"sm_121a": 52} if native else {"compute_80": 52, "sm_80": 52})
    assert ("from PTX" in not_native(code, arch)) == (not native)
