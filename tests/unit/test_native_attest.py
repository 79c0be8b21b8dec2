"""Device code of a binary attested by compiling sources again: equal twins, planted differences."""

import os
import shutil
import stat
from pathlib import Path

import pytest
import unit_kit

from sparkwright.base.errors import BinaryError, CompileError
from sparkwright.native.attest import (
    Image,
    Verdict,
    attest_unit,
    compare,
    compile_image,
    parse_ptx,
    plain_names,
    read_images,
    read_plan,
    steps_for,
    summary,
)
from sparkwright.native.model import WORK, Unit
from sparkwright.native.workspace import Workspace

PTX = """
.version 9.0
.target sm_80
.global .align 1 .b8 _ZN%s_INTERNAL_%s_4_a_cu_%s4cuda5beginE[1];
.visible .entry _Z3onePf(
	.param .u64 p
)
{
	st.global.f32 [%%rd1], %s;
	ret;
}
.entry _Z3twoPf(
	.param .u64 p
)
{
	ret;
}
"""
KERNELS = """
#include <shared.h>
namespace {{ __device__ float table[2]; __global__ void hidden(float *p) {{ *p = table[1] + SHARED; }} }}
__global__ void seen(float *p) {{ *p = {constant}; }}
void launch(float *p) {{ hidden<<<1, 1>>>(p); seen<<<1, 1>>>(p); }}
"""
NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on PATH")

# Names -------------------------------------------------------------------------------------


def named(first: bytes, second: bytes, length: int, process: bytes = b"") -> bytes:
    """A symbol of an unnamed namespace with the hashes *first* and *second*, behind a name that ends in 4."""
    inner = b"_GLOBAL__N__" + first + b"_10_flash_x_cu_" + second + process
    assert len(inner) == length
    return b"std3__4" + str(length).encode() + inner + b"6ignoreE"


def test_hashes_and_process_ids_are_no_difference() -> None:
    one, other = named(b"a3c25148", b"50e83275", 43), named(b"00000000", b"ffffffff", 43)
    with_id = named(b"00000000", b"ffffffff", 49, b"_22833")
    assert plain_names(one) == plain_names(other) == plain_names(with_id)
    assert plain_names(one) == b"std3__4<flash_x_cu>6ignoreE"


def test_all_else_of_a_name_counts() -> None:
    one = named(b"a3c25148", b"50e83275", 43)
    assert plain_names(one) != plain_names(one.replace(b"flash_x_cu", b"flash_y_cu"))
    assert plain_names(one) != plain_names(one.replace(b"ignore", b"ignorf"))
    assert plain_names(b"_Z4_INTERNAL_x") == b"_Z4_INTERNAL_x"


# Images ------------------------------------------------------------------------------------


def ptx(constant: str = "0f3F800000", first: str = "a3c25148", second: str = "50e83275") -> Image:
    return parse_ptx((PTX % ("32", first, second, constant)).encode())


def test_a_module_equals_its_twin_of_another_path() -> None:
    assert ptx().kernels == {"_Z3onePf", "_Z3twoPf"}
    assert compare(ptx(), [ptx(first="11111111", second="22222222")]) == ("equal", "")


def test_a_changed_constant_is_named_by_its_kernel() -> None:
    outcome, why = compare(ptx("0f40000000"), [ptx()])
    assert (outcome, why) == ("different", "the code of _Z3onePf differs")


def test_long_names_are_shortened() -> None:
    name = "_Z" + "x" * 5000
    mine, theirs = (Image(frozenset({name}), {name: digest}) for digest in "12")
    outcome, why = compare(mine, [theirs])
    assert outcome == "different"
    assert len(why) < 200


def test_a_changed_declaration_is_no_equal_module() -> None:
    other = parse_ptx((PTX % ("32", "a3c25148", "50e83275", "0f3F800000")).replace("[1];", "[2];").encode())
    assert compare(ptx(), [other]) == ("different", "equal code, but declarations differs")


def test_another_set_of_kernels() -> None:
    fewer = Image(frozenset({"_Z3onePf"}), {"declarations": "1", "_Z3onePf": "2"})
    outcome, why = compare(fewer, [ptx()])
    assert outcome == "different"
    assert "_Z3twoPf only in the binary" in why
    assert compare(Image(frozenset({"_Z4lostv"}), {}), [ptx()])[0] == "not found"
    assert compare(Image(frozenset({"_Z4lostv"}), {}), [])[0] == "not found"
    assert compare(Image(frozenset(), {}), [ptx()])[0] == "no kernels"


def test_the_summary_leaves_out_units_without_kernels() -> None:
    outcomes = ("equal", "equal", "different", "no kernels", "not compiled")
    verdicts = [Verdict(str(number), "sm_120", outcome) for number, outcome in enumerate(outcomes)]
    assert summary(verdicts) == "attested 2 of 4 units (1 different, 1 not compiled, 1 more without kernels)"
    assert summary(verdicts[:2]) == "attested 2 of 2 units"


def program(folder: Path, body: str) -> Path:
    path = folder / "cuobjdump"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_images_are_read_out_of_a_binary(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    module = PTX % ("32", "a3c25148", "50e83275", "0f3F800000")
    write = '[ "$1 $2" = "-xptx .sm_80.ptx" ] && printf %s "$TEXT" > x.1.sm_80.ptx && test -f "$3"'
    (tmp_path / "x.so").touch()
    os.environ["TEXT"] = module
    try:
        found = read_images(tmp_path / "x.so", program(tmp_path, write), "compute_80", tmp_path / "images")
    finally:
        del os.environ["TEXT"]
    assert found == [ptx()]


def test_a_binary_without_the_code(tmp_path: Path) -> None:
    with pytest.raises(BinaryError, match="has no code for sm_120f"):
        read_images(tmp_path / "x.so", program(tmp_path, "exit 255"), "sm_120f", tmp_path)


# Steps of nvcc -----------------------------------------------------------------------------

PLAN = """\
#$ _TARGET_SIZE_=
#$ CICC_PATH=/cuda/bin/../nvvm/bin
#$ g++ -D__CUDA_ARCH_LIST__=800,1200 -E "x.cu" -o "x4.ii"
#$ cudafe++ --gen_c_file_name "x.cpp" --gen_module_id_file --module_id_file_name "x.id" "x4.ii"
#$ g++ -D__CUDA_ARCH__=800 -E "x.cu" -o "x.compute_80.ii"
#$ "$CICC_PATH/cicc" -arch compute_80 --module_id_file_name "x.id" "x.compute_80.ii" -o "x.compute_80.ptx"
#$ ptxas -arch=sm_80 -m64 "x.compute_80.ptx" -o "x.compute_80.cubin"
#$ g++ -D__CUDA_ARCH__=1200 -E "x.cu" -o "x.120f.ii"
#$ "$CICC_PATH/cicc" -arch compute_120f --module_id_file_name "x.id" "x.120f.ii" -o "x.120f.ptx"
#$ ptxas -arch=sm_120f -m64 "x.120f.ptx" -o "x.120f.cubin"
#$ fatbinary --create="x.fatbin" "--image3=kind=elf,sm=120f,file=x.120f.cubin"
#$ g++ -c "x.cpp" -o "x.o"
"""


def test_only_the_steps_of_one_architecture_run() -> None:
    settings, commands = read_plan("a warning\n" + PLAN)
    assert settings == {"_TARGET_SIZE_": "", "CICC_PATH": "/cuda/bin/../nvvm/bin"}
    assert len(commands) == 10
    assert steps_for(commands, "sm_120f") == [commands[0], commands[1], *commands[5:8]]
    assert steps_for(commands, "compute_80") == commands[:4]
    assert steps_for(commands, "sm_90a") == []


# With a compiler ---------------------------------------------------------------------------


def workspace(folder: Path, *, constant: str = "1.5f", shared: str = "0.25f") -> tuple[Workspace, Unit]:
    """A unit with two kernels that reads a dependency's header, laid out in *folder*."""
    for path, text in {
        "source/csrc/kernels.cu": KERNELS.format(constant=constant),
        "deps/library/include/shared.h": f"#define SHARED {shared}\n",
    }.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    (folder / "build").mkdir()
    arches = ("compute_80,code=sm_80", "compute_120f,code=sm_120f")
    asked = [word for arch in arches for word in ("-gencode", f"arch={arch}")]
    argv = (
        str(NVCC), *asked, f"-I{WORK}/deps/library/include", "-x", "cu", "-c",
        f"{WORK}/source/csrc/kernels.cu", "-o", "kernels.o",
    )  # fmt: skip
    unit = Unit(
        target="_C", source="source/csrc/kernels.cu", output="build/kernels.o", language="CUDA", argv=argv,
        arches=("sm_80", "sm_120f"),
    )  # fmt: skip
    return Workspace(folder, unit_kit.make_toolchain(folder)), unit


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> list[Image]:
    """The images of a binary that was built from the same sources in a folder of another length."""
    work, unit = workspace(tmp_path_factory.mktemp("a-much-longer-name"))
    return [compile_image(unit, "sm_120f", work, os.environ).image]


@needs_nvcc
def test_a_unit_of_the_same_sources_is_attested(tmp_path: Path, theirs: list[Image]) -> None:
    work, unit = workspace(tmp_path / "w")
    found = attest_unit(unit, "sm_120f", work, os.environ, theirs)
    assert (found.outcome, found.why, found.kernels, found.read) == ("equal", "", 2, {"library": 1})


@needs_nvcc
@pytest.mark.parametrize("planted", [{"constant": "1.25f"}, {"shared": "0.5f"}])
def test_a_planted_constant_is_noticed(tmp_path: Path, theirs: list[Image], planted: dict[str, str]) -> None:
    work, unit = workspace(tmp_path / "w", **planted)
    found = attest_unit(unit, "sm_120f", work, os.environ, theirs)
    kernel = "seen" if "constant" in planted else "hidden"
    assert found.outcome == "different"
    assert found.why.startswith("the code of ")
    assert kernel in found.why
    assert found.why.endswith(" differs")


@needs_nvcc
def test_candidates_that_do_not_compile_attest_nothing(tmp_path: Path, theirs: list[Image]) -> None:
    work, unit = workspace(tmp_path / "w", constant="missing()")
    found = attest_unit(unit, "sm_120f", work, os.environ, theirs)
    assert found.outcome == "not compiled"
    assert "missing" in found.why


@needs_nvcc
def test_an_architecture_that_the_command_does_not_name(tmp_path: Path) -> None:
    work, unit = workspace(tmp_path / "w")
    with pytest.raises(
        CompileError, match="not compiled for sm_90a, because its command is for sm_80, sm_120f"
    ):
        compile_image(unit, "sm_90a", work, os.environ)
