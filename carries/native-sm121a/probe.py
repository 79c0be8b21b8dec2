"""Does `TORCH_CUDA_ARCH_LIST=12.1a` reach every kernel of vLLM's own project?

CMake configures the tree under test for GB10, and the compiler calls that it wrote down say which device
code each unit asks for. The defect shows in the first one: with CUDA 13 the wish is lowered to 12.0, and
nobody is told.

The controls hold the change to its purpose. Nothing else about a command may differ from the pristine
tree's, and for a list without the card every command has to be the very same.
"""

from __future__ import annotations

from buildkit import Unit, configure, differences
from probekit import expect

CODE = "sm_121a"
# The card has one architecture; `12.1` is how a user spells it who has not heard of the suffix.
SPELLINGS = ("12.1a", "12.1")
# The card's nearest neighbour, and some of what upstream's own wheels are made for.
ELSEWHERE = "8.0;8.9;12.0"
# flash-attention is a project of its own with lists of its own, which a carry of its own widens.
FOREIGN = frozenset({"_vllm_fa2_C", "_vllm_fa3_C"})
# The CUTLASS 2.x fallback takes what no newer kernel covers. sm_12x is covered (see `cutlass_scaled_mm` in
# scaled_mm_entry.cu, which asks for 120 first), so what is compiled of it is never launched on the card.
EXCEPTIONS = {"scaled_mm_c2x.cu": frozenset({"sm_89", "compute_89"})}


def ours(units: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """Units of vLLM's own project that hold device code, those of qutlass included: its list is vLLM's."""
    return tuple(unit for unit in units if unit.is_cuda and unit.target not in FOREIGN)


def name(unit: Unit) -> str:
    """The file's name, without its folders."""
    return unit.source.rpartition("/")[2]


def probe() -> None:
    """The defect first, since each configuring takes ten seconds."""
    for spelling in SPELLINGS:
        units = ours(configure(spelling))
        wrong = sorted(
            f"{name(unit)} ({', '.join(sorted(unit.code))})"
            for unit in units
            if unit.code != EXCEPTIONS.get(name(unit), frozenset({CODE}))
        )
        some = "; ".join(wrong[:3])
        expect(not wrong, f"with {spelling}, {len(wrong)} of {len(units)} units are for others: {some}")
        missing = EXCEPTIONS.keys() - {name(unit) for unit in units}
        expect(not missing, f"with {spelling}, the exceptions {sorted(missing)} are not compiled at all")

    before, after = configure("12.1a", pristine=True), configure("12.1a")
    rest = [sorted((unit.target, unit.source, unit.rest) for unit in units) for units in (before, after)]
    expect(rest[0] == rest[1], "more than architectures differs from the pristine tree's commands")

    changed = differences(configure(ELSEWHERE, pristine=True), configure(ELSEWHERE))
    expect(not changed, f"for {ELSEWHERE}, {len(changed)} commands changed, such as {changed[:3]}")
