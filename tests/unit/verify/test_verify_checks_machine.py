"""A machine that is slowed, swaps or is stuck, and a wedged engine, are told from healthy ones."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace
from verify_kit import SEEDS, Server, by_name, context, costly, profile, run

from sparkwright.engine.cell import Cell, Load
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import HostSample, MetricsSnapshot, Observation
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.compare import compare_runs
from sparkwright.verify.checks.machine import disturbances, find_wedge
from sparkwright.verify.corpus import load_corpus
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


def test_runs_of_a_disturbed_machine_are_not_compared() -> None:
    there = context(profile())
    old, new = (
        run(ALL["sweep"], there, Server(seed=seed, step_ms=step)) for seed, step in ((1, 50.0), (2, 70.0))
    )
    slowed = [replace(observation, host=HOT) for observation in new]
    before, after = Run(observations=tuple(old)), Run(observations=tuple(slowed))
    found = by_name(compare_runs(before, after).findings)
    speed = found["requests are as fast as on the baseline"]
    assert speed.verdict is Verdict.INCONCLUSIVE
    assert "in code c=1 clocks were lowered" in speed.cause
    healthy = by_name(compare_runs(before, Run(observations=tuple(new))).findings)
    assert healthy["requests are as fast as on the baseline"].verdict is Verdict.FAIL


# The slow state ------------------------------------------------------------------------------------------

USUAL, HELD = "the card runs at its usual clocks", "no request is held without progress"
WELL = {"gpu_clock_mhz": 2411, "gpu_power_w": 38.0, "gpu_utilization": 96, "gpu_clock_max_mhz": 3003}
STUCK = {**WELL, "gpu_clock_mhz": 611, "gpu_power_w": 14.0, "gpu_slowed_by": 0x04}
IDLE = {**WELL, "gpu_clock_mhz": 208, "gpu_power_w": 4.5, "gpu_utilization": 0}
S = 1_000_000_000


def card(count: int = 8, begin: int = 0, **readings: Any) -> tuple[HostSample, ...]:
    return tuple(HostSample(at=begin + at * 5 * S, **readings) for at in range(count))


def swept(*hosts: tuple[HostSample, ...], seed: int = 0) -> list[Observation]:
    """Return a sweep during whose cells the card read so, in turn."""
    observations = run(ALL["sweep"], context(profile()), Server(seed=seed))
    return [replace(one, host=hosts[number % len(hosts)]) for number, one in enumerate(observations)]


def judged(observations: list[Observation], **changes: Any) -> Any:
    return by_name(ALL["sweep"].judge(context(profile(), **changes), observations))


@pytest.mark.parametrize("seed", costly(SEEDS))
def test_a_healthy_card_passes(seed: int) -> None:
    found = judged(swept(card(**WELL), seed=seed))
    assert found[USUAL].verdict is Verdict.PASS
    assert found[USUAL].cause == "2411 of 3003 MHz at 38 W under load (medians)"
    assert found[HELD].verdict is Verdict.PASS


def test_throughput_is_compared_with_cells_of_the_same_load() -> None:
    there = context(profile())
    cells = ALL["sweep"].cells(there)
    made = [
        replace(server.measure(cell), host=host)
        for cell in cells
        for server, host in [
            (Server(step_ms=150.0), card(**STUCK)) if cell.tags["category"] == "prose" else
            (Server(), card(**WELL))
        ]
    ]  # fmt: skip
    cause = by_name(ALL["sweep"].judge(there, made))[USUAL].cause
    assert "in prose c=1 and 2 more" in cause
    assert "2411 of 3003 MHz at 38 W in code c=1" in cause
    fraction = float(cause.partition("tokens/s are ")[2].split()[0])
    assert 0.2 < fraction < 0.5


@pytest.mark.parametrize(
    "host",
    [
        card(**{**STUCK, "gpu_slowed_by": 0x40}),  # heat, which is told as such
        (*card(5, **WELL), *card(3, **STUCK)),  # for a moment
        card(**{**WELL, "gpu_clock_mhz": 2000}),  # the user's own limit
        (*card(2, **WELL), *card(20, **IDLE)),  # nothing to do at the end
    ],
)
def test_other_low_clocks_are_no_slow_state(host: tuple[HostSample, ...]) -> None:
    found = judged(swept(host))[USUAL]
    assert found.verdict is Verdict.PASS


@pytest.mark.parametrize("host", [(), card(**IDLE), card(gpu_power_w=30.0, server_rss_mib=900.0)])
def test_a_card_that_cannot_be_read_or_has_no_load_is_not_judged(host: tuple[HostSample, ...]) -> None:
    assert USUAL not in judged(swept(host))


def test_a_card_that_does_not_say_how_busy_it_is_counts_where_the_server_runs_here() -> None:
    silent = {**STUCK, "gpu_utilization": -1}
    assert USUAL not in judged(swept(card(**silent)))
    assert judged(swept(card(**silent, server_rss_mib=900.0)))[USUAL].verdict is Verdict.INVALID


def test_a_soak_names_the_cells_since_which_the_card_is_stuck() -> None:
    there = dataclasses.replace(context(profile(soak_s=1200.0)), corpus=load_corpus())
    made = run(ALL["soak"], there, Server())
    late = [replace(one, host=card(**(STUCK if number >= 8 else WELL))) for number, one in enumerate(made)]
    found = by_name(ALL["soak"].judge(there, late))
    assert found[USUAL].verdict is Verdict.INVALID
    assert f"in {late[8].cell.name} and {len(made) - 9} more" in found[USUAL].cause
    well = [replace(one, host=card(**WELL)) for one in made]
    assert by_name(ALL["soak"].judge(there, well))[USUAL].verdict is Verdict.PASS


# The wedge -----------------------------------------------------------------------------------------------


def frozen(observation: Observation, seconds: int = 60, running: int = 17, **changes: Any) -> Observation:
    """Return *observation* with an engine that stops in its middle."""
    base = observation.samples[0].started
    series = tuple(
        MetricsSnapshot(
            at=base + at * S, generation_tokens=float(min(at, 20) * 50), running=running, waiting=0
        )
        for at in range(0, 20 + seconds + 1, 5)
    )
    host = (*card(4, base, **WELL), *card(seconds // 5, base + 21 * S, **{**WELL, "gpu_power_w": 18.0}))
    told = {"series": series, "host": host, "canary": "first-token: no token within 60 s", "health": 200}
    return replace(observation, **{**told, **changes})


def burst() -> list[Observation]:
    return run(ALL["crash"], context(profile()), Server())


def test_a_wedge_is_named_with_requests_time_health_and_power() -> None:
    made = burst()
    found = by_name(ALL["crash"].judge(context(profile()), [frozen(made[0]), *made[1:]]))[HELD]
    assert found.verdict is Verdict.FAIL
    assert found.cause.startswith(
        "wedged in burst c=1: no token for 60 s while 17 requests are held, and /health says 200"
    )
    assert found.cause.endswith(
        "the card draws 18 W at 96 % utilization: a kernel waits for something that never comes, such as"
        " another rank"
    )


@pytest.mark.parametrize(
    ("readings", "says"),
    [
        (IDLE, "4 W at 0 % utilization: nothing is computed, the engine's process waits"),
        (WELL, "38 W at 96 % utilization: a kernel computes without end"),
    ],
)
def test_power_tells_kinds_of_wedges_apart(readings: dict[str, Any], says: str) -> None:
    made = burst()[0]
    base = made.samples[0].started
    host = (*card(4, base, **WELL), *card(12, base + 21 * S, **readings))
    assert says in str(find_wedge(frozen(made, host=host), 1.0))
    assert "card" not in str(find_wedge(frozen(made, host=()), 1.0))


@pytest.mark.parametrize(
    "changes",
    [{"canary": ""}, {"died": 1}, {"seconds": 10}, {"running": 0}, {"series": ()}],
    ids=["it answers", "it ended", "for a moment", "nothing runs", "no counters"],
)
def test_other_trouble_is_no_wedge(changes: dict[str, Any]) -> None:
    assert find_wedge(frozen(burst()[0], **changes), 1.0) is None
