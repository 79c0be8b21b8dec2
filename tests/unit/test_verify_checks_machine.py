"""A machine that is slowed or swaps is told from a healthy one, and its cells are not compared."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from verify_kit import Server, by_name, changed, context, profile, run

from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import HostSample, Observation
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.compare import compare_runs
from sparkwright.verify.checks.machine import disturbances
from sparkwright.verify.journal import Run

HEALTHY = {"gpu_slowed_by": 0x04, "swap_used_mib": 900.0, "memory_pressure": 0.4, "gpu_temperature_c": 71.0}


def hosts(count: int = 8, **changes: Any) -> tuple[HostSample, ...]:
    return tuple(HostSample(at=at, **{**HEALTHY, **changes}) for at in range(count))


def seen(*host: HostSample) -> Observation:
    return Observation(cell=Cell(check="sweep", name="code c=1", load=Load(), prompts=()), host=host)


HOT = hosts(4, gpu_slowed_by=0x24, gpu_temperature_c=88.0)
SWAPPING = tuple(HostSample(at=at, **{**HEALTHY, "swap_used_mib": 900.0 + 200 * at}) for at in range(4))
STARVED = hosts(4, memory_pressure=37.0)


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (HOT, "clocks were lowered (software thermal slowdown) in 4 of 4 samples, at up to 88 °C"),
        (hosts(4, gpu_slowed_by=0x80), "clocks were lowered (power brake) in 4 of 4 samples, at up to 71 °C"),
        (
            (*hosts(6), *hosts(2, gpu_slowed_by=0x08)),
            "clocks were lowered (hardware slowdown) in 2 of 8 samples",
        ),
        (SWAPPING, "600 MiB went to swap"),
        (STARVED, "processes waited for memory, up to 37 % of the time"),
    ],
)
def test_a_disturbed_machine_is_told(host: tuple[HostSample, ...], says: str) -> None:
    (found,) = disturbances(seen(*host))
    assert found.startswith(says)


@pytest.mark.parametrize(
    "host",
    [
        hosts(),
        (),
        (*hosts(7), *hosts(1, gpu_slowed_by=0x20)),  # for a moment
        (*hosts(7), *hosts(1, memory_pressure=60.0)),
        hosts(swap_used_mib=9000.0),  # used before, and no more since
        tuple(HostSample(at=at) for at in range(4)),  # nothing of it can be read
    ],
)
def test_a_healthy_machine_is_not(host: tuple[HostSample, ...]) -> None:
    assert disturbances(seen(*host)) == ()


def test_a_sweep_warns() -> None:
    there = context(profile())
    observations = run(ALL["sweep"], there, Server())
    observations = changed(observations, 0, host=HOT)
    found = ALL["sweep"].judge(there, observations)
    told = [warning for finding in found for warning in finding.warnings]
    assert [warning for warning in told if warning.startswith("in code c=1 clocks were lowered")]
    assert {finding.verdict for finding in found} == {Verdict.PASS}


def test_cells_of_a_disturbed_machine_are_not_compared() -> None:
    there = context(profile(boots=3, most_boots=3, max_tokens=200, comparison_requests=24))
    servers = {(arm, boot): Server(seed=boot) for arm in ("main", "baseline") for boot in range(3)}
    observations = [servers[cell.arm, cell.boot].measure(cell) for cell in ALL["compare"].cells(there)]
    assert ALL["compare"].judge(there, observations)[0].verdict is Verdict.PASS
    hot = changed(observations, 0, host=HOT)
    speed, *_ = ALL["compare"].judge(there, hot)
    assert speed.verdict is Verdict.INCONCLUSIVE
    assert "not compared: in c=1 clocks were lowered" in speed.cause


def test_runs_of_a_disturbed_machine_are_not_compared() -> None:
    there = context(profile())
    old, new = (
        run(ALL["sweep"], there, Server(seed=seed, step_ms=step)) for seed, step in ((1, 50.0), (2, 70.0))
    )
    slowed = [replace(observation, host=HOT) for observation in new]
    before, after = Run(observations=tuple(old)), Run(observations=tuple(slowed))
    found = by_name(compare_runs([before], [after]).findings)
    speed = found["requests are as fast as on the baseline"]
    assert speed.verdict is Verdict.INCONCLUSIVE
    assert "in code c=1 clocks were lowered" in speed.cause
    healthy = by_name(compare_runs([before], [Run(observations=tuple(new))]).findings)
    assert healthy["requests are as fast as on the baseline"].verdict is Verdict.FAIL
