"""Instructions of a compiled kernel by the pipe that executes them, in its main loop and outside it.

Reads the text that ``nvdisasm -c`` writes of a cubin. The main loop is the innermost one with a tensor-core
instruction, or the longest innermost one where there is none. Counts are instructions of a warp as they stand
in the code: a predicated instruction counts, whether or not its predicate holds.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

__all__ = ["PIPES", "Counts", "count", "pipe"]

LABEL = re.compile(r"^\s*(\.L_x_\d+):")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)([.\w]*)([^;]*);")
TARGET = re.compile(r"\((\.L_x_\d+)\)")

# The pipe of an instruction by the first letters of its name, longest first. "alu" has integer and logic
# operations and comparisons, "fma" products of 32 and of 2 x 16 bits and integer multiply-adds, "xu"
# conversions and transcendental functions, "lsu" all memory and shuffles.
PIPES = {
    "alu": "LOP3 PLOP3 SHF PRMT IADD ISETP FSETP SEL FSEL FMNMX IMNMX VIMNMX VIADD LEA BMSK SGXT CS2R P2R "
    "R2P IABS HSETP HMNMX VHMNMX MOV LOP VABSDIFF PSETP FSET ISET",
    "fma": "FFMA FMUL FADD HFMA2 HMUL2 HADD2 HFMA HMUL HADD IMAD IDP FSWZADD",
    "xu": "MUFU F2F F2I I2F I2I F2FP FRND POPC FLO BREV F2IP I2FP",
    "lsu": "LD ST ATOM RED SHFL UBLKCP CCTL MATCH LDGSTS LDSM STSM MOVM UTMA VOTE S2R SYNCS",
    "tensor": "HMMA HGMMA WGMMA IMMA QMMA OMMA QGMMA IGMMA DMMA",
    "uniform": "U R2UR REDUX",
    "control": "BRA BSSY BSYNC EXIT BAR DEPBAR WARP NOP YIELD CALL RET LDGDEPBAR ERRBAR MEMBAR FENCE ELECT "
    "NANOSLEEP BREAK JMP BRX ACQBULK ENDCOLLECTIVE KILL PREEXIT ARRIVES CREDUX",
}
_PREFIXES = sorted(((prefix, name) for name, some in PIPES.items() for prefix in some.split()), reverse=True)
_PREFIXES.sort(key=lambda one: -len(one[0]))
HALF_RATE = "F2FP"  # packs two floats; on the ALU from capability 8.0 on


def pipe(opcode: str) -> str:
    """Return the pipe of *opcode*; "other" for one that is not known."""
    if opcode.startswith(HALF_RATE):
        return "alu"
    return next((name for prefix, name in _PREFIXES if opcode.startswith(prefix)), "other")


@dataclass(frozen=True)
class Counts:
    """Instructions of a warp by pipe: of one pass of the main loop, if any, and of all code outside it."""

    loop: dict[str, int]
    outside: dict[str, int]
    opcodes: dict[str, int]  # of the loop, by name without modifiers

    @property
    def issued(self) -> int:
        """Return the instructions of one pass of the loop."""
        return sum(self.loop.values())


def count(text: str) -> Counts:
    """Return the counts of a kernel out of its disassembly.

    Raises:
        ValueError: it has no instruction.
    """
    code, places = _read(text)
    if not code:
        raise ValueError("the disassembly has no instruction")
    loops = [
        (places[target], at)
        for at, (_, target) in enumerate(code)
        if target in places and places[target] <= at
    ]
    if not loops:
        return Counts({}, dict(Counter(pipe(name) for name, _ in code)), {})
    inner = [one for one in loops if not any(_within(other, one) for other in loops)]
    busy = [one for one in inner if any(pipe(name) == "tensor" for name, _ in code[one[0] : one[1] + 1])]
    first, last = max(busy or inner, key=lambda one: one[1] - one[0])
    inside = [name for name, _ in code[first : last + 1]]
    rest = [name for name, _ in code[:first] + code[last + 1 :]]
    return Counts(
        dict(Counter(map(pipe, inside))), dict(Counter(map(pipe, rest))), dict(Counter(inside).most_common())
    )


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _read(text: str) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Return opcodes with the label that each branches to, and the labels' places, without padding."""
    code: list[tuple[str, str]] = []
    places: dict[str, int] = {}
    for line in text.splitlines():
        if found := LABEL.match(line):
            places[found[1]] = len(code)
        elif found := INSTRUCTION.match(line):
            target = TARGET.search(found[3]) if found[1] == "BRA" else None
            code.append((found[1], target[1] if target else ""))
    while code and code[-1][0] in {"NOP", "BRA"} and not code[-1][1]:
        code.pop()
    return code, places
