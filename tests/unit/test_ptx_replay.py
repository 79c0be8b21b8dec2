"""The executor of inline PTX in an NVFP4 cache's proof: the ISA's words on each instruction, exact sums."""

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import load_file

ptx = load_file(Path(__file__).resolve().parents[2] / "carries" / "nvfp4-kv-triton" / "ptx.py")

F16, BF16 = ptx.Formats.f16x2, ptx.Formats.bf16x2
FORMATS = pytest.mark.parametrize("number", [F16, BF16], ids=["f16", "bf16"])
WORD = st.integers(0, 2**32 - 1)
HALF = st.integers(0, 0xFFFF)


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


def test_a_word_is_unpacked_from_its_lowest_bits() -> None:
    text = "{ .reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, $1; cvt.rn.f16x2.e2m1x2 $0, c; }"
    assert ptx.execute(text, [words(0x00720000)], [True])[0][0] == 0x46003C00
    text = "{ .reg .b16 a, b; .reg .f32 z; mov.b32 z, 0; mov.b32 {a, b}, $1; fma.rn.f32.f16 $0, a, b, z; }"
    assert ptx.execute(text, [words(0x42003C00)], [True])[0][0] == 0x40400000


@given(WORD, WORD, WORD, st.integers(0, 255))
def test_lop3_is_its_table_in_every_bit(a: int, b: int, c: int, table: int) -> None:
    found = one("lop3.b32", a, b, c, table)
    for bit in range(32):
        index = 4 * (a >> bit & 1) + 2 * (b >> bit & 1) + (c >> bit & 1)
        assert found >> bit & 1 == table >> index & 1


@given(WORD, WORD, st.lists(st.integers(0, 7), min_size=4, max_size=4))
def test_prmt_takes_bytes(a: int, b: int, selected: list[int]) -> None:
    source = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    selector = sum(which << (4 * place) for place, which in enumerate(selected))
    assert one("prmt.b32", a, b, selector) == int.from_bytes([source[i] for i in selected], "little")


@FORMATS
def test_every_number_is_read_and_written(number) -> None:
    bits = np.arange(1 << 16, dtype=np.uint32)
    values = number.values(bits)
    wide = bits.astype(np.uint16).view(np.float16) if number is F16 else (bits << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        np.testing.assert_array_equal(values, wide.astype(np.float64))
    kept = ~np.isnan(values)
    np.testing.assert_array_equal(number.bits(values)[kept], bits[kept])
    assert set(number.bits(values)[~kept]) == {0x7FFF}


def exact(number, bits: int) -> Fraction:
    return Fraction(float(number.values(words(bits))[0]))


@FORMATS
@settings(max_examples=400)
@given(a=HALF, b=HALF, c=HALF)
def test_fma_is_the_nearest_number_to_the_exact_sum(number, a: int, b: int, c: int) -> None:
    if not all(np.isfinite(number.values(words(a, b, c)))):
        return
    wanted = exact(number, a) * exact(number, b) + exact(number, c)
    found = int(ptx.fused(number, words(a), words(b), words(c))[0])
    magnitude, error = found & 0x7FFF, abs(wanted)
    infinity = ((1 << number.exponent_bits) - 1) << (number.precision - 1)
    if magnitude == infinity:
        largest = exact(number, infinity - 1)
        assert error >= largest + (largest - exact(number, infinity - 2)) / 2
        return
    error = abs(exact(number, found) - wanted)
    for other in {max(magnitude - 1, 0), min(magnitude + 1, infinity - 1)}:
        distance = abs(exact(number, other | found & 0x8000) - wanted)
        assert error < distance or (error == distance and found % 2 == 0) or other == magnitude
    assert wanted == 0 or (wanted < 0) == bool(found & 0x8000)


TWO = """
{
.reg .b32 p, q;
mov.b32 p, 0x10;
or.b32 q, p, $2;
shl.b32 $0, q, 1;
mov.b32 $1, $2;
}
"""


def test_a_block_of_registers_and_immediates() -> None:
    low, high = ptx.execute(TWO, [words(1, 2)], [True, True])
    assert low.tolist() == [0x22, 0x24]
    assert high.tolist() == [1, 2]


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


def test_elements_are_packed_lowest_first_and_results_follow_each_other() -> None:
    codes = Handle(np.arange(8, dtype=np.uint8).reshape(2, 4))
    scales = Handle(np.arange(0x100, 0x108, dtype=np.uint16).reshape(2, 4))
    assembly = ptx.InlineAssembly()
    text = "mov.b32 $0, $4; mov.b32 $1, $5; mov.b32 $2, $6; mov.b32 $3, $4;"
    types = (kind("bf16", 16), kind("bf16", 16))
    done = assembly(text, "=&r,=&r,=&r,=&r,r,r,r", [codes, scales], types, True, 4)  # noqa: FBT003
    first, second = done.get_result(0), done.get_result(1)
    assert first.data.tolist() == [[0x100, 0x302, 0x100, 0x101], [0x504, 0x706, 0x104, 0x105]]
    assert second.data.tolist() == [[0x102, 0x103, 0x100, 0x302], [0x106, 0x107, 0x504, 0x706]]
    assert assembly.texts == {text}


def test_a_float32_fills_a_register() -> None:
    values = Handle(np.array([[1.5, -2.0]], dtype=np.float32))
    done = ptx.InlineAssembly()("mov.b32 $0, $1;", "=r,r", [values], (kind("fp32", 32),), False, 1)  # noqa: FBT003
    assert done.get_result(0).data.dtype == np.float32
    assert done.get_result(0).data.tolist() == [[1.5, -2.0]]


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
