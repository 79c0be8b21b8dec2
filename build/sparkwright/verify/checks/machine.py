"""States of the machine in which times mean little: clocks lowered by heat or power, and swapping."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sparkwright.verify.checks.common import Trouble, describe
from sparkwright.verify.model import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.verify.checks.common import CheckedCells
    from sparkwright.verify.model import HostSample, Observation

SLOWED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVIDIA's mask (NVML, clocks event reasons) that slow a card below what it does when cool. A
software power cap (0x04) is the usual state of a loaded card."""
SHARE = 0.25
"""Share of a cell's samples in which such a reason must hold."""
SWAPPED_MIB = 256
PRESSURE = 10.0


def disturbances(observation: Observation) -> tuple[str, ...]:
    """Return the reasons for which times of *observation* are not the usual ones; none if it is fine.

    Clocks that were lowered by heat or a power brake, swap that grew, and processes that waited for memory.
    What was not sampled is no reason.
    """
    host = observation.host
    return tuple(why for why in (_slowed(host), _swapped(host), _pressed(host)) if why)


def without_disturbed(seen: CheckedCells) -> CheckedCells:
    """Return *seen* with cells of a disturbed machine as trouble: their times are not compared."""
    found = {o.cell.key: disturbances(o) for o in seen.sound}
    return dataclasses.replace(
        seen,
        sound=tuple(o for o in seen.sound if not found[o.cell.key]),
        troubles=(
            *seen.troubles,
            *(
                Trouble(Verdict.INCONCLUSIVE, f"not compared: {told}", o.cell.key)
                for o in seen.sound
                for told in told_of(o)[:1]
            ),
        ),
    )


def told_of(observation: Observation) -> tuple[str, ...]:
    """Return `disturbances` with the cell's name, for people."""
    return tuple(f"in {describe(observation.cell)} {why}" for why in disturbances(observation))


def _slowed(host: Sequence[HostSample]) -> str:
    masks = [sample.gpu_slowed_by for sample in host if sample.gpu_slowed_by >= 0]
    held = {name: sum(bool(mask & bit) for mask in masks) for bit, name in SLOWED.items()}
    name, most = max(held.items(), key=lambda item: item[1])
    if not masks or most < max(1, SHARE * len(masks)):
        return ""
    return f"clocks were lowered ({name}) in {most} of {len(masks)} samples{_hottest(host)}"


def _hottest(host: Sequence[HostSample]) -> str:
    hottest = max(sample.gpu_temperature_c for sample in host)
    return f", at up to {hottest:.0f} °C" if hottest >= 0 else ""


def _swapped(host: Sequence[HostSample]) -> str:
    used = [sample.swap_used_mib for sample in host if sample.swap_used_mib >= 0]
    grown = max(used) - used[0] if used else 0.0
    return f"{grown:.0f} MiB went to swap" if grown > SWAPPED_MIB else ""


def _pressed(host: Sequence[HostSample]) -> str:
    known = [sample.memory_pressure for sample in host if sample.memory_pressure >= 0]
    over = [value for value in known if value > PRESSURE]
    if not known or len(over) < max(1, SHARE * len(known)):
        return ""
    return f"processes waited for memory, up to {max(over):.0f} % of the time"
