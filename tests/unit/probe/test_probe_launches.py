"""How launches of Triton kernels that were compiled for a GB10 are judged, shown and kept."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kit import load_file
from msgspec.structs import replace

from sparkwright.nightly import building
from sparkwright.probe.launches import LIMIT, KernelLaunch, KernelReport, KernelSurvey, _compiled

PAGE = load_file(Path(__file__).parents[3] / "scripts" / "triton_kernels.py")

READ = KernelLaunch(
    kernel="vllm.ops.read", origin="decode", constants={}, warps=4, stages=2, tuning=0, shared=LIMIT
)


def report(*launches: KernelLaunch, **changes: object) -> KernelReport:
    functions = {"vllm.ops.read": ("vllm/ops.py", ""), "vllm.ops.helper": ("vllm/ops.py", "")}
    functions |= {"vllm.amd.read": ("vllm/amd.py", "for AMD cards"), "vllm.ops.other": ("vllm/ops.py", "")}
    found = KernelReport("3.7.1", functions, {}, 0, {str(number): one for number, one in enumerate(launches)})
    return replace(found, **changes)


BIG = replace(READ, shared=LIMIT + 1)


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        ([BIG], "101377 bytes of shared memory, more than 101376 (decode)"),
        ([READ, replace(READ, refused="CompilationError: no")], "CompilationError: no (decode)"),
        ([replace(BIG, tuning=1), replace(BIG, tuning=1, shared=200_000)], "no configuration fits"),
        ([replace(BIG, tuning=1), replace(READ, tuning=2)], "no configuration fits"),
    ],
)
def test_what_a_gb10_cannot_launch_is_a_fault(launches, words):
    (fault,) = report(*launches).faults()
    assert words in fault


@pytest.mark.parametrize(
    "launches",
    [
        [READ],
        [replace(BIG, tuning=1), replace(READ, tuning=1)],  # tuning passes over the first
        [replace(BIG, origin="upstream's test_read.py")],  # a shape of no recipe
    ],
)
def test_what_fits_is_none(launches):
    assert report(*launches).faults() == []


def test_what_could_not_be_asked_for_is_a_fault():
    assert report(READ, failed={"prefill": "TypeError: x"}).faults() == [
        "prefill could not be asked for: TypeError: x"
    ]


def test_every_function_is_compiled_or_named_with_the_reason():
    found = report(replace(READ, helpers=("vllm.ops.helper", "elsewhere.helper")))
    assert found.compiled() == {"vllm.ops.read", "vllm.ops.helper"}
    assert found.left() == {
        "for AMD cards": ["vllm.amd.read"],
        "no launch of it is known": ["vllm.ops.other"],
    }
    said = PAGE.summary("0.24", found)
    assert "**2 of 4 functions compiled**" in said
    assert "Not compiled: for AMD cards (1); no launch of it is known (1)." in said
    refused = report(replace(READ, refused="no"))
    assert "vllm.ops.read" in refused.left()["refused by the compiler"]
    assert "* refused: `vllm.ops.read`" in PAGE.summary("0.24", refused)


def test_the_page_has_kernels_near_the_limit_and_those_that_spill():
    spilling = replace(READ, kernel="vllm.ops.spill", shared=8, spills=2000, origin="prefill")
    small = replace(READ, kernel="vllm.ops.small", shared=8)
    of_test = replace(small, kernel="vllm.ops.test", shared=LIMIT, origin="upstream's test_read.py")
    refused = replace(small, kernel="vllm.ops.refused", refused="no")
    both = {"0.24": report(READ, spilling, small, of_test, refused), "0.33": report(READ)}
    assert PAGE.table(both)[2:] == [
        f"| `ops.read` | {LIMIT} | {LIMIT} | 0 | 0 | decode |",
        "| `ops.spill` | 8 |  | 2000 |  | prefill |",
    ]


def test_results_of_a_child_that_was_killed_are_kept(tmp_path):
    lines = tmp_path / "report.jsonl"
    assert _compiled(lines) == {}
    good = json.dumps(["one", {"shared": 1}])
    lines.write_text(f'{good}\n{json.dumps(["two", {"refused": "no"}])}\n["three", {{"sha', encoding="utf-8")
    assert _compiled(lines) == {"one": {"shared": 1}}


def test_a_night_names_kernels_that_do_not_fit(monkeypatch):
    faults = {f"case {number}": "no" for number in range(7)}
    job = SimpleNamespace(store=None, repository=None, options=SimpleNamespace(offline=False))
    target = SimpleNamespace(version="0.33.0")
    monkeypatch.setattr(KernelSurvey, "survey", lambda *_: report(READ, failed=faults))
    found = building.survey_kernels(job, target, "tree")
    assert found.status == "failed"
    assert found.reason.endswith("; and 2 more")
    monkeypatch.setattr(KernelSurvey, "survey", lambda *_: report(READ))
    found = building.survey_kernels(job, target, "tree")
    assert (found.status, found.reason) == ("passed", "1 launches, 1 of 4 functions")


# The executor of inline PTX in an NVFP4 cache's proof: the ISA's words on each instruction, exact sums


ptx = load_file(Path(__file__).resolve().parents[3] / "carries" / "nvfp4-kv-triton" / "ptx.py")


def words(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def one(instruction: str, *sources: int) -> int:
    """The result of one instruction on registers."""
    names = ", ".join(f"${index + 1}" for index in range(len(sources)))
    text = f"{instruction} $0, {names};"
    return int(ptx.execute(text, [words(source) for source in sources], [True])[0][0])


@pytest.mark.parametrize(
    ("instruction", "sources", "result"),
    [
        ("mov.b32", (0xDEADBEEF,), 0xDEADBEEF),
        ("and.b32", (0xF0F01234, 0xFF00FFFF), 0xF0001234),
        ("or.b32", (0xF0F01234, 0x0F00000F), 0xFFF0123F),
        ("shl.b32", (0x80000001, 4), 0x10),
        ("shl.b32", (1, 31), 0x80000000),
        ("shl.b32", (0xFFFFFFFF, 32), 0),  # amounts over 31 are clamped to the register's width
        ("shl.b32", (0xFFFFFFFF, 0xFFFFFFFF), 0),
        ("shr.u32", (0x80000010, 4), 0x08000001),  # unsigned: zeros come in
        ("shr.u32", (0xFFFFFFFF, 33), 0),
        # a holds bytes 0 to 3 of the source, b 4 to 7; the selector's lowest nibble is the lowest byte's.
        ("prmt.b32", (0x33221100, 0x77665544, 0x3210), 0x33221100),
        ("prmt.b32", (0x33221100, 0x77665544, 0x7654), 0x77665544),
        ("prmt.b32", (0x33221100, 0x77665544, 0x0426), 0x00442266),
        ("prmt.b32", (0xDDCCBBAA, 0, 0x1404), 0xBB00AA00),
        ("prmt.b32", (0xDDCCBBAA, 0, 0x3424), 0xDD00CC00),
        ("prmt.b32", (0x00007F80, 0, 0x1098), 0x7F8000FF),  # with bit 3 the byte's sign fills it
        ("prmt.b32", (0x00007F80, 0, 0xFFFF3210), 0x00007F80),  # the upper half selects nothing
        # The ISA's examples: the table of an operation is that operation on 0xF0, 0xCC and 0xAA.
        ("lop3.b32", (0x0F, 0x33, 0x55, 0xF0 & 0xCC & 0xAA), 0x0F & 0x33 & 0x55),
        ("lop3.b32", (0x0F, 0x33, 0x55, 0xF0 | 0xCC | 0xAA), 0x0F | 0x33 | 0x55),
        ("lop3.b32", (0x0F, 0x33, 0x55, 0xF0 & 0xCC & (~0xAA & 0xFF)), 0x0F & 0x33 & ~0x55),
        ("lop3.b32", (0x0F, 0x33, 0x55, 0xFE), 0x7F),
        ("lop3.b32", (0x0F, 0x33, 0x55, 0x1A), (0x0F & 0x33 | 0x55) ^ 0x0F),
        ("lop3.b32", (0x0F, 0x33, 0x55, 0xEA), 0x0F & 0x33 | 0x55),
        # 1.5 * 2 + 1 = 4 below, -1 * 1 + 1 = +0 above.
        ("fma.rn.f16x2", (0xBC003E00, 0x3C004000, 0x3C003C00), 0x00004400),
        ("fma.rn.bf16x2", (0xBF803FC0, 0x3F804000, 0x3F803F80), 0x00004080),
        # Subnormals are kept: 2**-15 * 1 - 0, and 2**-127 * 1 - 0.
        ("fma.rn.f16x2", (0x0200, 0x3C00, 0x8000), 0x0200),
        ("fma.rn.bf16x2", (0x0040, 0x3F80, 0x8000), 0x0040),
        # (1 + 2**-10)**2 - (1 + 2**-9) is 2**-20, lost if the product were rounded first.
        ("fma.rn.f16x2", (0x3C01, 0x3C01, 0xBC02), 0x0010),
        # The same of bfloat16: 2**-14 is left of (1 + 2**-7)**2 without 1 + 2**-6.
        ("fma.rn.bf16x2", (0x3F81, 0x3F81, 0xBF82), 0x3880),
        # A sum of zeros is positive unless both are negative.
        # Halfway but for an addend that a sum in float64 loses.
        ("fma.rn.bf16x2", (0x4188, 0x41D8, 0x8080), 0x43E5),
        ("fma.rn.bf16x2", (0x4188, 0x41D8, 0x0000), 0x43E6),
        ("fma.rn.bf16x2", (0x80000000, 0x3F803F80, 0x80008000), 0x80000000),
        # What is too large is infinite; NaNs are one.
        ("fma.rn.f16x2", (0x7BFF, 0x4000, 0x0000), 0x7C00),
        ("fma.rn.bf16x2", (0xFF7F, 0x4000, 0x0000), 0xFF80),
        ("fma.rn.f16x2", (0xFE01, 0x3C00, 0x0000), 0x7FFF),
        ("fma.rn.bf16x2", (0x7F80, 0x0000, 0x0000), 0x7FFF),
        # Two codes of a byte: 1 and 6, then -6 and -0; what lies above the byte is not looked at.
        ("cvt.rn.f16x2.e2m1x2", (0x72,), 0x46003C00),
        ("cvt.rn.f16x2.e2m1x2", (0xFFFFFF8F,), 0x8000C600),
        # 1 * 3 - 0; the square of 1 + 2**-10 in full; a negative zero; a subnormal of float16.
        ("fma.rn.f32.f16", (0x3C00, 0x4200, 0x80000000), 0x40400000),
        ("fma.rn.f32.f16", (0x3C01, 0x3C01, 0x00000000), 0x3F804008),
        ("fma.rn.f32.f16", (0x8000, 0x3C00, 0x80000000), 0x80000000),
        ("fma.rn.f32.f16", (0x0100, 0x3C00, 0x80000000), 0x37800000),
        # 2**-24 beside 1 is a tie, and a little more than that is none.
        ("fma.rn.f32.f16", (0x0C00, 0x0C00, 0x3F800000), 0x3F800000),
        ("fma.rn.f32.f16", (0x0C00, 0x0C01, 0x3F800000), 0x3F800001),
        # The first source takes the upper half; ties go to even, and NaNs are one.
        ("cvt.rn.bf16x2.f32", (0x40400000, 0x3F800000), 0x40403F80),
        ("cvt.rn.bf16x2.f32", (0x3F808000, 0x3F818000), 0x3F803F82),
        ("cvt.rn.f16x2.f32", (0x7FC00000, 0x3F800000), 0x7FFF3C00),
    ],
)
def test_an_instruction(instruction: str, sources: tuple[int, ...], result: int) -> None:
    assert one(instruction, *sources) == result


@pytest.mark.parametrize(
    "text",
    [
        "cvt.rn.f32.s32 $0, $1;",  # an instruction that is not known
        "shr.s32 $0, $1, 1;",
        "fma.rn.ftz.f16x2 $0, $1, $1, $1;",
        "prmt.b32.f4e $0, $1, $1, 0;",
        "mov.b32 $0, $1, $1;",  # too many sources
        "and.b32 $0, $1;",
        "mov.b32 $0, $2;",  # no such input
        "mov.b32 $0, x;",  # not declared
        "{ .reg .b32 x; mov.b32 $0, x; }",  # not written
        "mov.b32 $1, $1;",  # an input
        "mov.b32 x, $1; mov.b32 $0, x;",
        "{ .reg .b32 x; mov.b32 x, $1; }",  # the output is left
        "{ .reg .b64 x; mov.b32 $0, $1; }",
        "@p mov.b32 $0, $1;",
    ],
)
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(ptx.UnknownPtxError):
        ptx.execute(text, [words(1)], [True])


def test_an_output_that_may_share_an_inputs_register_ends_the_inputs() -> None:
    text = "mov.b32 $0, $1; and.b32 $0, $0, $2;"
    assert ptx.execute(text, [words(7), words(5)], [True])[0].tolist() == [5]
    with pytest.raises(ptx.UnknownPtxError, match=r"\$2"):
        ptx.execute(text, [words(7), words(5)], [False])


class Handle(SimpleNamespace):
    """A tensor of Triton's interpreter."""

    def __init__(self, data: np.ndarray, kind: object = None) -> None:
        super().__init__(data=data, kind=kind)


def kind(name: str, bits: int) -> SimpleNamespace:
    return SimpleNamespace(scalar=SimpleNamespace(name=name, primitive_bitwidth=bits))


@pytest.mark.parametrize(
    ("constraints", "pack"),
    [
        ("=&r,=&r,=&r,=&r,r,r", 4),  # an input too few
        ("=&r,=&r,=&r,=&r,r,r,l", 4),
        ("r,r,r,=&r,=&r,=&r,=&r", 4),
        ("=&r,=&r,=&r,=&r,r,r,r", 2),  # two codes fill no register
    ],
)
def test_constraints_that_do_not_fit_are_refused(constraints: str, pack: int) -> None:
    codes, scales = Handle(np.zeros((2, 4), np.uint8)), Handle(np.zeros((2, 4), np.uint16))
    text = "mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6; mov.b32 $3, $4;"
    types = (kind("bf16", 16), kind("bf16", 16))
    with pytest.raises(ptx.UnknownPtxError):
        ptx.InlineAssembly()(text, constraints, [codes, scales], types, True, pack)  # noqa: FBT003
