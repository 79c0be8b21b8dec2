"""States of the machine in which times mean little: low clocks, with a reason or without one, and swapping.

A GB10 is known to stay at 500 to 850 MHz and about 14 W under full load until its power supply is unplugged,
with no reason for it in the driver's mask. That is called its slow state here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import HostSample, Observation
from sparkwright.verify.checks.triage import CheckedCells, Trouble, describe

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
LOW = 0.4
"""Share of the highest clock below which a card under load is in its slow state. A GB10 runs at 0.8 of it;
users who cap its clocks choose 0.67 or more."""
HALF = 0.5
BUSY = 50.0
"""Percent of utilization from which a card is under load."""
SWAPPED_MIB = 256
PRESSURE = 10.0
_FEWEST = 3  # samples of power for an energy


def disturbances(observation: Observation) -> tuple[str, ...]:
    """Return the reasons for which times of *observation* are not the usual ones; none if it is fine.

    Clocks that were lowered by heat or a power brake, the slow state, swap that grew, and processes that
    waited for memory. What was not sampled is no reason.
    """
    host = observation.host
    clocks = _slowed(host) or slow_state(host)
    return tuple(why for why in (clocks, _swapped(host), _pressed(host)) if why)


def under_load(host: Sequence[HostSample]) -> list[HostSample]:
    """Return the samples of a card that computed, with its clock.

    Where the card does not say how busy it is, it is taken to be if the server's own memory was read, which
    runs on this machine then.
    """
    return [
        sample
        for sample in host
        if sample.gpu_clock_mhz >= 0
        and (sample.gpu_utilization >= BUSY or (sample.gpu_utilization < 0 <= sample.server_rss_mib))
    ]


def is_low(sample: HostSample) -> bool:
    """Tell if the clock of a card under load is far below its highest one, and heat is not the reason."""
    explained = sample.gpu_slowed_by >= 0 and any(sample.gpu_slowed_by & bit for bit in SLOWED)
    return not explained and 0 <= sample.gpu_clock_mhz < LOW * sample.gpu_clock_max_mhz


def slow_state(host: Sequence[HostSample]) -> str:
    """Return a description if the card was in a slow state in half of the samples under load, or nothing."""
    busy = under_load(host)
    low = [sample for sample in busy if is_low(sample)]
    if not low or len(low) < HALF * len(busy):
        return ""
    return f"the card was in a slow state ({describe_card(low)} under load, and no heat)"


def describe_card(samples: Sequence[HostSample]) -> str:
    """Return the median clock and power of *samples*, such as ``611 of 3003 MHz at 14 W``."""
    clock, most = (
        median(getattr(one, name) for one in samples) for name in ("gpu_clock_mhz", "gpu_clock_max_mhz")
    )
    powers = [sample.gpu_power_w for sample in samples if sample.gpu_power_w >= 0]
    return f"{clock:.0f} of {most:.0f} MHz" + (f" at {median(powers):.0f} W" if powers else "")


def energy_j(observation: Observation, speed: float = 1.0) -> float:
    """Return the energy that the card drew during *observation*, in joules; NaN where it was not read.

    Mean power over the samples (trapezoids) times the time from the first request's start to the last one's
    end, in the server's time. It is the card's own figure, without CPU, memory and power supply.
    """
    known = [one for one in observation.host if one.gpu_power_w >= 0]
    if len(known) < _FEWEST or not under_load(known):
        return math.nan
    joules = sum((b.gpu_power_w + a.gpu_power_w) / 2 * (b.at - a.at) for a, b in pairwise(known))
    return joules / (known[-1].at - known[0].at) * observation.seconds * speed


def energy_per_token_j(observation: Observation, speed: float = 1.0) -> float:
    """Return `energy_j` for each generated token, those of warm-ups included; NaN where it is not known."""
    tokens = sum(one.output_tokens for one in observation.samples if one.failure is None)
    return energy_j(observation, speed) / tokens if tokens else math.nan


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
