"""What runs when: examples, and properties over whole simulated builds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwright.base.errors import NotEnoughMemoryError
from sparkwright.base.machine import MachineSnapshot, Pressure
from sparkwright.native.model import Cost, Target, Unit
from sparkwright.native.schedule import (
    CRITICAL,
    HIGH,
    Active,
    Decision,
    JobLimits,
    UnitCosts,
    Waiting,
    decide,
    default_reserve_mib,
    in_order,
    limits_for,
    makespan,
    pace,
    time_left,
)
from sparkwright.store.paths import Store

FREE = MachineSnapshot(cores=4, total_mib=16000, available_mib=10000, pressure=Pressure())
LIMITS = JobLimits(jobs=4, reserve_mib=1000)


def waiting(name: str, seconds: float = 10, mib: int = 1000, *, alone: bool = False) -> Waiting:
    return Waiting(name, Cost(seconds=seconds, mib=mib), alone)


def active(
    name: str, elapsed: float = 1, *, mib: int = 1000, resident: int = 0, alone: bool = False
) -> Active:
    return Active(name, Cost(seconds=10, mib=mib), elapsed, resident, alone)


def pressed(pressure: Pressure) -> MachineSnapshot:
    return replace(FREE, pressure=pressure)


# What to start -------------------------------------------------------------------------------


def test_the_longest_starts_first_and_names_break_ties() -> None:
    units = [waiting("b", 5), waiting("long", 50), waiting("a", 5), waiting("lone", 99, alone=True)]
    assert [unit.name for unit in in_order(units)] == ["long", "a", "b", "lone"]
    assert decide(units, [], FREE, LIMITS) == Decision(start="long")


def test_a_unit_starts_when_it_fits_beside_what_the_others_will_yet_take() -> None:
    # 10000 available, 1000 in reserve; the one that runs uses 500 of the 6000 that it is going to take.
    running = [active("a", mib=6000, resident=500)]
    assert decide([waiting("b", mib=3500)], running, FREE, LIMITS).start == "b"
    held = decide([waiting("b", mib=3501)], running, FREE, LIMITS)
    assert (held.start, held.hold) == ("", "memory")
    assert held.reason == "memory: 3.4 GiB free, the unit is expected to take 3.4"


def test_a_shorter_one_that_fits_goes_before_a_longer_one_that_does_not() -> None:
    units = [waiting("big", 50, 9500), waiting("small", 5, 500)]
    assert decide(units, [], FREE, LIMITS).start == "small"


# Pressure ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pressure", [HIGH, Pressure(some=HIGH.some), Pressure(full=HIGH.full)])
def test_under_pressure_nothing_starts_beside_another(pressure: Pressure) -> None:
    found = decide([waiting("b")], [active("a")], pressed(pressure), LIMITS)
    assert (found.start, found.stop, found.hold) == ("", "", "pressure")
    assert decide([waiting("b")], [], pressed(pressure), LIMITS).start == "b", "one at least goes on"
    below = Pressure(some=HIGH.some - 0.1, full=HIGH.full - 0.1)
    assert decide([waiting("b")], [active("a")], pressed(below), LIMITS).start == "b"


def test_under_great_pressure_the_youngest_of_several_is_stopped() -> None:
    running = [active("old", 90), active("young", 3), active("middle", 40)]
    assert decide([], running, pressed(CRITICAL), LIMITS).stop == "young"
    assert decide([], running, pressed(HIGH), LIMITS).stop == ""
    assert decide([], running[:1], pressed(CRITICAL), LIMITS).stop == "", "the last one goes on"
    settling = decide([waiting("b")], running, pressed(CRITICAL), LIMITS, may_stop=False)
    assert (settling.start, settling.stop) == ("", "")


# Planning ------------------------------------------------------------------------------------


def test_as_many_jobs_as_cores_or_as_are_asked_for() -> None:
    units = [waiting(str(n)) for n in range(9)]
    assert default_reserve_mib(FREE) == 1024
    assert limits_for(units, FREE) == limits_for([], FREE) == JobLimits(jobs=4, reserve_mib=1024)
    assert limits_for(units, FREE, 2) == JobLimits(jobs=2, reserve_mib=1024)


def test_a_unit_that_does_not_even_fit_alone_is_refused_with_the_numbers() -> None:
    with pytest.raises(NotEnoughMemoryError, match="big cannot be compiled") as caught:
        limits_for([waiting("small", mib=10), waiting("big", mib=8977)], FREE)
    assert "8.8 GiB" in caught.value.because
    assert "of 15.6 GiB 9.8 are available, 1.0 of which stay free" in caught.value.because
    assert caught.value.next_step
    assert limits_for([waiting("big", mib=8976)], FREE).jobs == 4


# How long yet --------------------------------------------------------------------------------


def test_the_pace_is_what_units_took_against_what_was_expected() -> None:
    assert pace([]) == 1
    assert pace([(180, 60)]) == 2, "by now both weigh the same"
    assert pace([(3e6, 1e6), (1e6, 1e6)]) == pytest.approx(2, rel=1e-4)
    assert pace([(0.1, 20)]) > 0.7, "one short unit is no judge of a build"


def test_time_left_counts_what_runs_and_what_waits() -> None:
    assert time_left([], [], 2) == 0
    assert time_left([waiting("a", 10)], [active("b", elapsed=4)], 1) == 16
    assert time_left([waiting("a", 10)], [active("b", elapsed=4)], 2) == 10
    assert time_left([waiting("a", 10)], [active("b", elapsed=4)], 1, rate=2) == 36


seconds_ = st.floats(0, 1000, allow_nan=False)


@given(st.lists(seconds_, min_size=1, max_size=30), st.integers(1, 8))
def test_a_makespan_lies_between_its_bounds(seconds: list[float], jobs: int) -> None:
    ordered = sorted(seconds, reverse=True)
    least = max(sum(seconds) / jobs, ordered[0])
    found = makespan(ordered, jobs)
    assert least <= found * (1 + 1e-9)
    assert found <= least * 2 + 1e-9
    assert makespan(seconds, 1) == pytest.approx(sum(seconds))


# Whole builds --------------------------------------------------------------------------------

units_ = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 4000), st.integers(0, 6000), st.booleans()),
    min_size=1,
    max_size=14,
)
pressures = st.lists(st.sampled_from([Pressure(), HIGH, CRITICAL]), max_size=20)


@given(units_, st.integers(1, 5), st.integers(4000, 12000), pressures)
def test_a_build_keeps_its_limits_and_comes_to_its_end(described, jobs, memory, pressures):
    """Units are (seconds, MiB expected, MiB really taken, alone); time goes on in steps of ten seconds."""
    todo = {
        str(n): waiting(str(n), seconds, expected, alone=alone)
        for n, (seconds, expected, _, alone) in enumerate(described)
    }
    really = {str(n): min(one[2], memory) for n, one in enumerate(described)}
    limits = JobLimits(jobs=jobs, reserve_mib=0)
    running: dict[str, Active] = {}
    done: set[str] = set()
    for step in range(20 + 6 * len(described)):
        used = sum(unit.resident_mib for unit in running.values())
        pressure = pressures[step] if step < len(pressures) else Pressure()
        machine = MachineSnapshot(jobs, memory, max(0, memory - used), pressure)
        while (found := decide(list(todo.values()), list(running.values()), machine, limits)).start:
            unit = todo.pop(found.start)
            assert len(running) < jobs
            assert not (running and (unit.alone or pressure.reaches(HIGH)))
            assert not any(other.alone for other in running.values())
            claimed = sum(other.claim_mib for other in running.values())
            assert unit.expected.mib + claimed <= machine.available_mib
            running[unit.name] = Active(unit.name, unit.expected, alone=unit.alone)
        if found.stop:
            assert len(running) > 1
            assert pressure.reaches(CRITICAL)
            stopped = running.pop(found.stop)
            assert all(stopped.elapsed <= other.elapsed for other in running.values())
            todo[stopped.name] = Waiting(stopped.name, stopped.expected, stopped.alone)
        assert running or not todo, "something always runs until all is done"
        for name, unit in list(running.items()):
            aged = replace(unit, elapsed=unit.elapsed + 10, resident_mib=really[name])
            running[name] = aged
            if aged.elapsed >= unit.expected.seconds:
                done.add(running.pop(name).name)
        if not todo and not running:
            break
    assert done == set(really), "every unit is compiled"


# What a unit is expected to take: learned, seeded, guessed --------------------------------


SPARK = Target("aarch64", "12.1a")


def unit(source: str) -> Unit:
    return Unit(target="_C", source=f"source/{source}", output=f"{source}.o", language="CUDA", argv=())


def cost(seconds: float, mib: int) -> Cost:
    return Cost(seconds=seconds, mib=mib)


@pytest.fixture
def costs(store: Store) -> UnitCosts:
    return UnitCosts(store, SPARK, {"_C/moe/a.cu": (100.0, 3000), "_C/moe/b.cu": (40.0, 1000)}, host="x86_64")


def expect(costs: UnitCosts, *sources: str, **sizes: int) -> list[Cost]:
    units = [unit(source) for source in sources]
    found = costs.expected(units, {f"source/{name}.cu": size for name, size in sizes.items()})
    assert list(found) == [one.name for one in units]
    return list(found.values())


def test_what_was_learned_comes_first_and_is_kept(costs: UnitCosts, store: Store) -> None:
    assert costs.learned("_C/moe/a.cu") is None
    costs.learn("_C/moe/a.cu", cost(12.5, 700))
    again = UnitCosts(store, SPARK, costs.seeds, host="x86_64")
    assert again.learned("_C/moe/a.cu") == cost(12.5, 700)
    assert expect(again, "moe/a.cu") == [cost(12.5, 700)]
    again.learn("_C/moe/a.cu", cost(20, 600))
    assert costs.learned("_C/moe/a.cu") == cost(20, 600)


@pytest.mark.parametrize(
    ("target", "host"),
    [(Target("x86_64", "12.1a"), "x86_64"), (Target("aarch64", "9.0a"), "x86_64"), (SPARK, "aarch64")],
)
def test_other_machines_and_architectures_learn_for_themselves(costs, target, host):
    costs.learn("u", cost(1, 1))
    assert UnitCosts(costs.store, target, host=host).learned("u") is None
    assert UnitCosts(costs.store, SPARK, host="x86_64").learned("u") == cost(1, 1)


@pytest.mark.parametrize("stored", ["", '{"seconds": -1.0, "mib": 1}', '{"seconds": 1.0, "mib": -1}'])
def test_a_damaged_record_counts_as_none_and_heals(costs: UnitCosts, stored: str) -> None:
    costs.learn("u", cost(1, 1))
    (record,) = (costs.store.records / "unit-cost").rglob("*.json")
    record.write_text(f'{{"unit": "u", "cost": {stored}}}')
    assert costs.learned("u") is None
    costs.learn("u", cost(2, 2))
    assert costs.learned("u") == cost(2, 2)


def test_seeds_follow_the_pace_of_this_machine(costs: UnitCosts) -> None:
    costs.learn("_C/moe/a.cu", cost(25, 3100))
    assert expect(costs, "moe/a.cu", "moe/b.cu") == [cost(25, 3100), cost(10, 1000)]


def test_seeds_of_no_time_are_no_pace(store: Store) -> None:
    costs = UnitCosts(store, SPARK, {"_C/a.cu": (0.0, 0), "_C/b.cu": (8.0, 10)}, host="x86_64")
    costs.learn("_C/a.cu", cost(5, 5))
    assert expect(costs, "a.cu", "b.cu") == [cost(5, 5), cost(8, 10)]


def test_unknown_units_are_like_those_of_their_folder(costs: UnitCosts) -> None:
    costs.learn("_C/moe/c.cu", cost(70, 2000))
    costs.learn("_C/other/d.cu", cost(1, 1))
    *_, new = expect(costs, "moe/a.cu", "moe/b.cu", "moe/c.cu", "other/d.cu", "moe/new.cu")
    assert new == cost(70, 2000), "the median of the three"


def test_else_like_those_of_their_language(costs: UnitCosts) -> None:
    costs.learn("_C/x.cpp", cost(3, 300))
    *_, cuda, host = expect(costs, "moe/a.cu", "moe/b.cu", "x.cpp", "far/new.cu", "far/new.cpp")
    assert cuda == cost(70, 2000)
    assert host == cost(3, 300)


def test_where_nothing_is_known_the_larger_source_takes_longer(costs: UnitCosts) -> None:
    small, large, huge, host = expect(
        costs, "small.cu", "large.cu", "huge.cu", "x.cpp", small=1000, large=90_000, huge=90_000_000
    )
    assert small.seconds < large.seconds < huge.seconds < 200
    assert small.mib == large.mib > host.mib > 0
    assert host.seconds < small.seconds
