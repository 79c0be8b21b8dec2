"""Does `TORCH_CUDA_ARCH_LIST=12.1a` reach FlashAttention 2, as vLLM builds it?

flash-attention is a subproject with lists of architectures of its own. CMake configures vLLM's merged tree,
once with that source as it is pinned and once with the carry in it, and the compiler calls that it wrote
down say which device code each unit asks for. On the pinned one that is sm_80, and PTX for it.

The controls: only architectures and the packing of device code differ, and for a list without the card
every command is the very same.
"""

from __future__ import annotations

from collections import Counter

from buildkit import Unit, configure, differences
from probekit import expect

CODE = frozenset({"sm_121a"})
SPELLINGS = ("12.1a", "12.1")
ELSEWHERE = "8.0;8.9;12.0"
# FlashAttention 3 is for sm_90 only. For other cards upstream leaves its units without any architecture, and
# its extension is not built.
TARGET = "_vllm_fa2_C"
PACKED = "--compress-mode=size"


def fa2(units: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """Units of FlashAttention 2 that hold device code."""
    return tuple(unit for unit in units if unit.is_cuda and unit.target == TARGET)


def without_packing(unit: Unit) -> tuple[str, str, tuple[str, ...]]:
    """What *unit* asks for but for architectures and, in FlashAttention 2, how device code is packed."""
    packing = PACKED if unit.target == TARGET else None
    return unit.target, unit.source, tuple(word for word in unit.rest if word != packing)


def probe() -> None:
    """The defect first, since each configuring takes ten seconds."""
    for spelling in SPELLINGS:
        units = fa2(configure(spelling))
        wrong = sorted({code for unit in units for code in unit.code} - CODE)
        expect(units, f"with {spelling}, {TARGET} has no units")
        expect(not wrong, f"with {spelling}, the {len(units)} units of {TARGET} ask for {', '.join(wrong)}")
        bare = [unit.source for unit in units if unit.code != CODE]
        expect(not bare, f"with {spelling}, {len(bare)} units ask for nothing, such as {bare[:3]}")

    before, after = configure("12.1a", pristine=True), configure("12.1a")
    was, now = (Counter(map(without_packing, units)) for units in (before, after))
    other = sorted((was - now) + (now - was))
    expect(
        not other, f"{len(other)} commands differ in more than architectures and packing, such as {other[:2]}"
    )
    loose = [unit.source for unit in fa2(after) if PACKED not in unit.argv]
    expect(not loose, f"{len(loose)} units are not packed for size, such as {loose[:3]}")
    others = differences(
        *(tuple(unit for unit in units if unit.target != TARGET) for units in (before, after))
    )
    expect(not others, f"{len(others)} commands of other extensions changed, such as {others[:3]}")

    changed = differences(configure(ELSEWHERE, pristine=True), configure(ELSEWHERE))
    expect(not changed, f"for {ELSEWHERE}, {len(changed)} commands changed, such as {changed[:3]}")
