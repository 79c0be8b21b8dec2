"""Execute the inline PTX of a Triton kernel on the CPU, bit for bit.

Triton's interpreter refuses inline assembly. `InlineAssembly` does what it leaves out: it packs elements into
32-bit registers as Triton does for a card, executes the text, and unpacks the results. Few instructions are
known, by the PTX ISA's words on each; anything else in the text is refused with `UnknownPtxError`, as are
registers that nothing was written to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Formats", "InlineAssembly", "Number", "UnknownPtxError", "execute"]

Words = np.ndarray[Any, np.dtype[np.uint32]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]

REGISTER_BITS = 32
CANONICAL_NAN = 0x7FFF  # what fma gives for every NaN, in both 16-bit formats
BLOCK = re.compile(r"\s*\{(.*)\}\s*", re.DOTALL)
NAME = re.compile(r"[A-Za-z_]\w*|\$\d+")
DECLARED = re.compile(r"\.reg \.(b8|b16|b32|f32) (.*)")
UNPACKED = re.compile(r"mov\.b32 \{(.*)\}, *(\S+)")
IMMEDIATE = re.compile(r"0[xX][0-9a-fA-F]+|[1-9]\d*|0")


class UnknownPtxError(Exception):
    """The text holds something that is not executed here."""


@dataclass(frozen=True)
class Number:
    """A 16-bit floating-point format: bits of its significand, with the leading one, and of its exponent."""

    precision: int
    exponent_bits: int

    @property
    def lowest(self) -> int:
        """Exponent of the smallest normal number."""
        return 2 - (1 << (self.exponent_bits - 1))

    def values(self, bits: Words) -> Doubles:
        """Values of the lowest 16 bits."""
        stored = self.precision - 1
        magnitude = (bits & 0x7FFF).astype(np.int64)
        exponent, fraction = magnitude >> stored, magnitude & ((1 << stored) - 1)
        significand = np.where(exponent > 0, fraction + (1 << stored), fraction).astype(np.float64)
        value = np.ldexp(significand, (np.maximum(exponent, 1) - 1 + self.lowest - stored).astype(np.int32))
        special = exponent == (1 << self.exponent_bits) - 1
        value = np.where(special, np.where(fraction == 0, np.inf, np.nan), value)
        return np.where(bits & 0x8000, -value, value)

    def bits(self, value: Doubles) -> Words:
        """The nearest number to each *value*, ties to even; subnormals are kept."""
        stored = self.precision - 1
        magnitude = np.abs(value)
        finite = np.isfinite(magnitude)
        _, exponent = np.frexp(np.where(finite, magnitude, 1.0))
        exponent = np.where(magnitude == 0, self.lowest, np.maximum(exponent - 1, self.lowest))
        step = exponent - stored  # exponent of the last place
        steps = np.rint(np.ldexp(np.where(finite, magnitude, 0.0), -step)).astype(np.int64)
        # Consecutive numbers have consecutive codes, also where rounding reaches the next power of two.
        code = steps + ((exponent - self.lowest).astype(np.int64) << stored)
        infinity = ((1 << self.exponent_bits) - 1) << stored
        code = np.where(finite, np.minimum(code, infinity), infinity)
        code = np.where(np.signbit(value), code | 0x8000, code)
        return np.where(np.isnan(value), CANONICAL_NAN, code).astype(np.uint32)


class Formats:
    """The two formats, by PTX's names of them in pairs."""

    f16x2 = Number(precision=11, exponent_bits=5)
    bf16x2 = Number(precision=8, exponent_bits=8)


def fused(number: Number, a: Words, b: Words, c: Words) -> Words:
    """``a * b + c`` of 16-bit numbers, rounded once.

    The product is exact in float64. The sum is rounded to odd there, which keeps what the rounding to 16
    bits hangs on.
    """
    with np.errstate(invalid="ignore"):
        product, addend = number.values(a) * number.values(b), number.values(c)
        total = product + addend
        back = total - product
        rest = (product - (total - back)) + (addend - back)
    inexact = np.isfinite(rest) & (rest != 0) & (total.view(np.int64) & 1 == 0)
    return number.bits(np.where(inexact, np.nextafter(total, np.copysign(np.inf, rest)), total))


def fma_pairs(number: Number) -> Callable[..., Words]:
    """``fma.rn`` of two numbers a register."""

    def run(a: Words, b: Words, c: Words) -> Words:
        low = fused(number, a & 0xFFFF, b & 0xFFFF, c & 0xFFFF)
        high = fused(number, a >> 16, b >> 16, c >> 16)
        return low | (high << 16)

    return run


def fused_wide(a: Words, b: Words, c: Words) -> Words:
    """``fma.rn.f32.f16``: two float16 and a float32, rounded once to float32."""
    f16 = Formats.f16x2
    with np.errstate(invalid="ignore"):
        product = f16.values(a & 0xFFFF) * f16.values(b & 0xFFFF)
        addend = c.view(np.float32).astype(np.float64)
        total = product + addend
        back = total - product
        rest = (product - (total - back)) + (addend - back)
    inexact = np.isfinite(rest) & (rest != 0) & (total.view(np.int64) & 1 == 0)
    odd = np.where(inexact, np.nextafter(total, np.copysign(np.inf, rest)), total)
    return odd.astype(np.float32).view(np.uint32)


def packed_pair(number: Number) -> Callable[[Words, Words], Words]:
    """``cvt.rn`` of two float32 to one register, of which the first source takes the upper half."""

    def run(upper: Words, lower: Words) -> Words:
        high, low = (number.bits(x.view(np.float32).astype(np.float64)) for x in (upper, lower))
        return low | (high << 16)

    return run


def from_e2m1(a: Words) -> Words:
    """``cvt.rn.f16x2.e2m1x2``: a byte of two codes to two float16, the lower code in the lower half."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    low, high = (
        Formats.f16x2.bits(np.where(code & 8, -values[code & 7], values[code & 7]))
        for code in (a & 0xF, a >> 4 & 0xF)
    )
    return low | (high << 16)


def prmt(a: Words, b: Words, selector: Words) -> Words:
    """``prmt.b32`` in its default mode: four bytes out of the eight of *b* and *a*."""
    both = a.astype(np.uint64) | (b.astype(np.uint64) << 32)
    result = np.zeros_like(a)
    for place in range(4):
        wanted = (selector >> (4 * place)) & 0xF
        byte = (both >> (8 * (wanted & 7)).astype(np.uint64)).astype(np.uint32) & 0xFF
        byte = np.where(wanted & 8, np.where(byte & 0x80, 0xFF, 0), byte).astype(np.uint32)
        result |= byte << (8 * place)
    return result


def lop3(a: Words, b: Words, c: Words, table: Words) -> Words:
    """``lop3.b32``: bit ``4a + 2b + c`` of *table* for each bit."""
    result = np.zeros_like(a)
    for index in range(8):
        taken = (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
        result |= np.where((table >> index) & 1, taken, 0).astype(np.uint32)
    return result


def shift(left: bool) -> Callable[[Words, Words], Words]:  # noqa: FBT001 - a factory of two
    """``shl.b32`` or ``shr.u32``: more than 31 leaves nothing."""

    def run(a: Words, count: Words) -> Words:
        wide, by = a.astype(np.uint64), np.minimum(count, REGISTER_BITS).astype(np.uint64)
        return (wide << by if left else wide >> by).astype(np.uint32)

    return run


# Number of sources, and what is done with them.
INSTRUCTIONS: dict[str, tuple[int, Callable[..., Words]]] = {
    "mov.b32": (1, lambda a: a),
    "and.b32": (2, lambda a, b: a & b),
    "or.b32": (2, lambda a, b: a | b),
    "shl.b32": (2, shift(left=True)),
    "shr.u32": (2, shift(left=False)),
    "prmt.b32": (3, prmt),
    "lop3.b32": (4, lop3),
    "fma.rn.f16x2": (3, fma_pairs(Formats.f16x2)),
    "fma.rn.bf16x2": (3, fma_pairs(Formats.bf16x2)),
    "fma.rn.f32.f16": (3, fused_wide),
    "cvt.rn.f16x2.e2m1x2": (1, from_e2m1),
    "cvt.rn.f16x2.f32": (2, packed_pair(Formats.f16x2)),
    "cvt.rn.bf16x2.f32": (2, packed_pair(Formats.bf16x2)),
}


@dataclass
class _Registers:
    """What the text may read and write, while it runs."""

    inputs: dict[str, Words]
    outputs: dict[str, bool]  # whether it may be written before all inputs are read
    declared: set[str] = field(default_factory=set)
    written: dict[str, Words] = field(default_factory=dict)

    def read(self, word: str, like: Words) -> Words:
        if IMMEDIATE.fullmatch(word):
            return np.full_like(like, int(word, 0))
        if word in self.inputs:
            if any(not early for name, early in self.outputs.items() if name in self.written):
                raise UnknownPtxError(f"{word} is read after an output that may share its register")
            return self.inputs[word]
        if word not in self.written:
            raise UnknownPtxError(f"{word} is read, and was not written")
        return self.written[word]

    def write(self, word: str, value: Words) -> None:
        if word not in self.declared and word not in self.outputs:
            raise UnknownPtxError(f"{word} is written, and is no register")
        self.written[word] = value


def execute(text: str, inputs: Sequence[Words], early: Sequence[bool]) -> list[Words]:
    """Run *text*, in which ``$0`` and on are the outputs and then the *inputs*, and return the outputs.

    Args:
        text: the assembly.
        inputs: values of the input registers, each an array of as many instances.
        early: for each output, whether it is kept apart from all inputs (``=&r``).

    Raises:
        UnknownPtxError: the text holds what is not executed here.
    """
    count = len(early)
    named = {f"${count + index}": value for index, value in enumerate(inputs)}
    registers = _Registers(named, {f"${index}": kept for index, kept in enumerate(early)})
    block = BLOCK.fullmatch(text)
    for statement in (block[1] if block else text).split(";"):
        if statement.strip():
            _step(registers, statement.strip(), inputs[0])
    if missing := [name for name in registers.outputs if name not in registers.written]:
        raise UnknownPtxError(f"{missing[0]} is an output that nothing was written to")
    return [registers.written[name] for name in registers.outputs]


def _step(registers: _Registers, statement: str, like: Words) -> None:
    if declared := DECLARED.fullmatch(statement):
        names = [name.strip() for name in declared[2].split(",")]
        registers.declared |= {name for name in names if NAME.fullmatch(name)}
        return
    if unpacked := UNPACKED.fullmatch(statement):
        parts, word = unpacked[1].split(","), registers.read(unpacked[2], like)
        bits = REGISTER_BITS // len(parts)
        for place, part in enumerate(parts):
            registers.write(part.strip(), (word >> (bits * place)) & ((1 << bits) - 1))
        return
    operation, _, rest = statement.partition(" ")
    operands = [operand.strip() for operand in rest.split(",")]
    sources, run = INSTRUCTIONS.get(operation, (-1, None))
    if run is None or len(operands) != sources + 1:
        raise UnknownPtxError(statement)
    target, *words = operands
    registers.write(target, run(*(registers.read(word, like) for word in words)))


class InlineAssembly:
    """Takes the place of ``InterpreterBuilder.create_inline_asm`` of Triton.

    Attributes:
        texts: every text that was executed.
    """

    def __init__(self) -> None:
        self.texts: set[str] = set()

    def __call__(
        self, text: str, constraints: str, values: Sequence[Any], types: Sequence[Any], *how: Any
    ) -> Any:
        """Execute *text* on *values*, handles of Triton's interpreter.

        *how* is whether it is pure, which makes no difference here, and how many elements it takes at a time.
        """
        _, pack = how
        outputs = [word for word in constraints.split(",") if word.startswith("=")]
        registers = [word.removeprefix("=").removeprefix("&") for word in constraints.split(",")]
        if set(registers) != {"r"} or not constraints.startswith(",".join(outputs)):
            raise UnknownPtxError(constraints)
        inputs = [column for value in values for column in _columns(value.data, pack)]
        if len(outputs) + len(inputs) != len(registers):
            raise UnknownPtxError(f"{len(inputs)} inputs for {constraints}")
        self.texts.add(text)
        found = execute(text, inputs, [word.startswith("=&") for word in outputs])
        return _Results(values[0], found, types, pack)


def _columns(data: np.ndarray[Any, Any], pack: int) -> list[Words]:
    """Registers that hold *pack* elements of *data* at a time, the first in the lowest bits."""
    words = np.ascontiguousarray(data).reshape(-1, pack)
    if pack * words.itemsize % 4:
        raise UnknownPtxError(f"{pack} elements of {words.itemsize} bytes fill no register")
    return list(words.view(np.uint32).T)


class _Results:
    """What an inline assembly returns in the interpreter."""

    def __init__(self, like: Any, registers: list[Words], types: Sequence[Any], pack: int) -> None:
        self._like, self._registers, self._types, self._pack = like, registers, types, pack

    def get_result(self, index: int) -> Any:
        """Handle of the result *index*, in the shape of the arguments."""
        each, kind = len(self._registers) // len(self._types), self._types[index].scalar
        words = np.stack(self._registers[index * each : (index + 1) * each], axis=1)
        floats = {"fp16": np.float16, "fp32": np.float32}  # the interpreter keeps bfloat16 as bits
        store = np.dtype(floats.get(kind.name, f"uint{kind.primitive_bitwidth}"))
        if each * REGISTER_BITS != self._pack * kind.primitive_bitwidth:
            raise UnknownPtxError(f"{each} registers for {self._pack} results of type {kind.name}")
        data = np.ascontiguousarray(words).view(store).reshape(self._like.data.shape)
        return type(self._like)(data, kind)
