"""States of the machine in which times mean little, and findings on two that look like slowness.

Clocks may be low, with a reason or without one, memory may be swapped, and an engine may hold its requests.

A GB10 is known to stay at 500 to 850 MHz and about 14 W under full load until its power supply is unplugged,
with no reason for it in the driver's mask. That is called its slow state here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import msgspec

from sparkwright.base.text import few
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import HostSample, MetricsSnapshot, Observation
from sparkwright.verify.checks.common import conclude
from sparkwright.verify.checks.triage import CheckedCells, Trouble, describe, unanswered

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
FROZEN_S = 15.0
"""Seconds of the server's clock without a token, at the end of a cell, from which an engine that holds
requests and answers no further one is wedged. A prefill of 33,000 tokens takes a GB10 some 30 s, but the
plain request after the cell gets its answer then."""
LITTLE = 0.6
"""Share of the power under load below which a card computes nothing useful."""
LOW_W = 30.0
"""Power in W below which a GB10 computes nothing, where none was read while tokens came."""


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


def without_disturbed(seen: CheckedCells) -> CheckedCells:
    """Return *seen* with cells of a disturbed machine as trouble: their times are not compared."""
    found = [
        Trouble(Verdict.INCONCLUSIVE, f"not compared: {told}", o.cell.key)
        for o in seen.sound
        for told in told_of(o)[:1]
    ]
    sound = tuple(o for o in seen.sound if not disturbances(o))
    return dataclasses.replace(seen, sound=sound, troubles=(*seen.troubles, *found))


def told_of(observation: Observation) -> tuple[str, ...]:
    """Return `disturbances` with the cell's name, for people."""
    return tuple(f"in {describe(observation.cell)} {why}" for why in disturbances(observation))


def _slowed(host: Sequence[HostSample]) -> str:
    masks = [sample.gpu_slowed_by for sample in host if sample.gpu_slowed_by >= 0]
    held = {name: sum(bool(mask & bit) for mask in masks) for bit, name in SLOWED.items()}
    name, most = max(held.items(), key=lambda item: item[1])
    if not masks or most < max(1, SHARE * len(masks)):
        return ""
    hottest = max(sample.gpu_temperature_c for sample in host)
    shown = f"clocks were lowered ({name}) in {most} of {len(masks)} samples"
    return shown + (f", at up to {hottest:.0f} °C" if hottest >= 0 else "")


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


# Findings ------------------------------------------------------------------------------------------------


def state_findings(seen: CheckedCells, speed: float) -> list[Finding]:
    """Return the findings on clocks of the card under load, where they are known, and on a wedged engine.

    *speed* is the server's seconds in one of the client's.
    """
    made = seen.made
    samples = [(one, sample) for one in made for sample in under_load(one.host)]
    if not samples:
        return [progress_finding(seen, speed)]
    stuck = [one for one in made if slow_state(one.host)]
    shown = describe_card([sample for _, sample in samples])
    found = conclude(
        seen.on_facts(),
        "machine.clocks",
        against=[(Verdict.INVALID, _slow_cause(made, stuck, speed))] if stuck else [],
        passed=f"{shown} under load (medians)",
        measured={
            "samples under load": len(samples),
            "in the slow state": sum(is_low(sample) for _, sample in samples),
        },
    )
    found = msgspec.structs.replace(found, evidence=tuple(one.cell.key for one in stuck or made))
    return [found, progress_finding(seen, speed)]


def _slow_cause(made: Sequence[Observation], stuck: Sequence[Observation], speed: float) -> str:
    """Return clocks, power and throughput in the slow state, and of cells of the same kind without it."""
    low = [sample for one in stuck for sample in under_load(one.host) if is_low(sample)]
    well = [one for one in made if under_load(one.host) and one not in stuck]
    usual = [sample for one in well for sample in under_load(one.host)]
    cause = f"slow state of the machine in {_cells(stuck)}: {describe_card(low)} under load, without heat"
    if usual:
        cause += f"; {describe_card(usual)} in {_cells(well)}"
    if (fraction := _fraction(stuck, well, speed)) is not None:
        cause += f"; tokens/s are {fraction:.2f} of those there"
    return f"{cause}. On a DGX Spark, unplug its power supply for a minute, then verify again"


def _cells(made: Sequence[Observation]) -> str:
    return few([describe(one.cell) for one in made], 1)


def _fraction(stuck: Sequence[Observation], well: Sequence[Observation], speed: float) -> float | None:
    """Return throughput of *stuck* over that of *well* under the same load (medians); `None` without both."""
    pairs = [
        (_tokens_per_s(one, speed), median(usual))
        for one in stuck
        if (usual := [_tokens_per_s(other, speed) for other in well if _load_of(other) == _load_of(one)])
    ]
    return (
        median(slow / usual for slow, usual in pairs if usual) if any(usual for _, usual in pairs) else None
    )


def _load_of(observation: Observation) -> tuple[object, ...]:
    """Return what two cells must share for their throughput to be compared."""
    load, tags = observation.cell.load, observation.cell.tags
    return load.shape, load.concurrency, load.max_tokens, tags.get("kind"), tags.get("cache")


def _tokens_per_s(observation: Observation, speed: float) -> float:
    tokens = sum(sample.output_tokens for sample in observation.counted)
    return tokens / (observation.seconds * speed) if observation.seconds else 0.0


# The wedge -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wedge:
    """An engine that holds requests and generates nothing.

    Attributes:
        frozen_s: since the last token, in the server's seconds, at the least.
        card: samples of the card in that time.
    """

    observation: Observation
    frozen_s: float
    running: int
    card: tuple[HostSample, ...]

    def __str__(self) -> str:
        health = self.observation.health
        green = f", and /health says {health}" if health == 200 else ""  # noqa: PLR2004 - HTTP
        return (
            f"wedged in {describe(self.observation.cell)}: no token for {self.frozen_s:.0f} s while"
            f" {self.running} request{'s' * (self.running != 1)} are held{green}{self._power()}"
        )

    def _power(self) -> str:
        """Return what the card did meanwhile, which tells an engine that waits from one that computes."""
        powers = [sample.gpu_power_w for sample in self.card if sample.gpu_power_w >= 0]
        if not powers:
            return ""
        drawn = median(powers)
        busy = [sample.gpu_utilization for sample in self.card if sample.gpu_utilization >= 0]
        used = median(busy) if busy else -1.0
        shown = f"; the card draws {drawn:.0f} W" + (f" at {used:.0f} % utilization" if busy else "")
        before = [one.gpu_power_w for one in under_load(self.observation.host) if one not in self.card]
        if drawn >= max(LOW_W, LITTLE * median(before) if before else 0.0):
            return f"{shown}: a kernel computes without end"
        if used >= BUSY:
            return f"{shown}: a kernel waits for something that never comes, such as another rank"
        return f"{shown}: nothing is computed, the engine's process waits"


def find_wedge(observation: Observation, speed: float) -> Wedge | None:
    """Return the wedge at the end of *observation*; `None` if requests moved on or the server ended."""
    if observation.died is not None or not unanswered(observation.canary):
        return None
    held = [one for one in observation.series if one.running >= 0]
    begin = _frozen_since(held)
    if begin is None:
        return None
    frozen_s = (held[-1].at - begin.at) * speed / 1e9
    if frozen_s < FROZEN_S:
        return None
    card = tuple(sample for sample in observation.host if sample.at >= begin.at)
    return Wedge(observation, frozen_s, round(held[-1].running + max(0.0, held[-1].waiting)), card)


def _frozen_since(series: Sequence[MetricsSnapshot]) -> MetricsSnapshot | None:
    """Return the first snapshot of the stretch at the end in which requests were held and got no token."""
    begin = None
    for earlier, later in reversed(list(pairwise(series))):
        if later.generation_tokens != earlier.generation_tokens or later.running + later.waiting <= 0:
            break
        begin = earlier
    return begin


def progress_finding(seen: CheckedCells, speed: float) -> Finding:
    """Return the finding on engines that hold requests and bring no token, whatever their health says."""
    found = [wedge for one in seen.made if (wedge := find_wedge(one, speed)) is not None]
    more = f"; and in {', '.join(describe(one.observation.cell) for one in found[1:])}" if found[1:] else ""
    return conclude(
        seen,
        "machine.progress",
        against=[(Verdict.FAIL, str(found[0]) + more)] if found else [],
        passed="tokens came for as long as requests ran",
    )
