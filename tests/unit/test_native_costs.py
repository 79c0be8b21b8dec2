"""What a unit is expected to take: learned, seeded, guessed."""

import pytest

from sparkwright.native.model import Cost, Target, Unit
from sparkwright.native.schedule import UnitCosts
from sparkwright.store import Store

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


def test_later_builds_move_the_mean_and_memory_rises_at_once(costs: UnitCosts) -> None:
    costs.learn("u", cost(100, 1000))
    costs.learn("u", cost(200, 2000))
    assert costs.learned("u") == cost(140, 2000)
    costs.learn("u", cost(140, 1000))
    assert costs.learned("u") == cost(140, 1600)


@pytest.mark.parametrize(
    ("target", "host"),
    [(Target("x86_64", "12.1a"), "x86_64"), (Target("aarch64", "9.0a"), "x86_64"), (SPARK, "aarch64")],
)
def test_other_machines_and_architectures_learn_for_themselves(costs, target, host):
    costs.learn("u", cost(1, 1))
    assert UnitCosts(costs.store, target, host=host).learned("u") is None
    assert UnitCosts(costs.store, SPARK, host="x86_64").learned("u") == cost(1, 1)


@pytest.mark.parametrize(
    "damage",
    ["", "no json", "[]", "{}", '{"cost": 3}', '{"cost": {"seconds": "x", "mib": 1}}',
     '{"cost": {"seconds": -1.0, "mib": 1}}', '{"cost": {"seconds": 1.0}}'],
)  # fmt: skip
def test_a_damaged_record_counts_as_none_and_heals(costs: UnitCosts, damage: str) -> None:
    costs.learn("u", cost(1, 1))
    (record,) = (costs.store.records / "unit-cost").rglob("*.json")
    record.write_text(damage)
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
