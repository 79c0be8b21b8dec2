"""The fleet's cells and their order."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from fleet import matrix
from fleet.matrix import Cell, Fleet
from fleet.shapes import DRAFTERS, SHAPES

V24, V33 = "0.24.0+spark.5.00512fd5", "0.33.0+spark.2.0ede9e4c"
CELL = Cell("dense", "dflash", "fp8", eager=False)


def test_every_kind_of_the_fleet_is_among_the_cells() -> None:
    for version in (V24, V33):
        every = Fleet(version).cells()
        names = [cell.name for cell in every]
        assert len(set(names)) == len(names)
        assert {cell.shape for cell in every} == set(SHAPES)
        assert {cell.drafter for cell in every} == set(DRAFTERS)
        assert {cell.cache for cell in every} == set(matrix.CACHES)
        for cell in every:
            own = Fleet(version).reference(cell)
            assert own in every
            assert (own.cache, own.drafter, own.eager) == (cell.cache, "none", True)
            assert Fleet(version).plain(cell) in every
    assert all(cell.runner == "v1" and cell.eager for cell in Fleet(V24, "cpu").cells())


def test_one_of_each_refusal_is_a_cell() -> None:
    def refused(version: str) -> set[str]:
        every = Fleet(version).cells()
        return {cell.name for cell in every if Fleet(version).expectation(cell).outcome == "refused"}

    assert refused(V33) == {"mla-none-nvfp4-v2-eager"}
    assert refused(V24) == {"mla-none-nvfp4-v1-eager", "hybrid-none-bf16-v2-eager"} | {
        f"{shape}-ngram-bf16-v2-eager" for shape in ("gemma4", "gptoss", "moe", "dense")
    }
    assert Fleet(V24).expectation(Cell("mla", cache="nvfp4")).pattern


def test_references_come_first_and_a_short_session_meets_some_of_everything() -> None:
    for version in (V24, V33):
        every = Fleet(version).cells()
        order = Fleet(version).ordered(every, set())
        assert sorted(cell.name for cell in order) == sorted(cell.name for cell in every)
        assert order[0].shape == "hybrid"  # its kernels take longest to compile
        for place, cell in enumerate(order):
            assert Fleet(version).reference(cell) in order[: place + 1]
            assert Fleet(version).plain(cell) in order[: place + 1]
        early = order[:80]
        for name in ("shape", "drafter", "cache", "eager"):
            assert {getattr(cell, name) for cell in early} == {getattr(cell, name) for cell in every}


def test_what_is_done_is_not_planned_again() -> None:
    done = {Fleet(V24).plain(CELL), Fleet(V24).reference(CELL)}
    assert Fleet(V24).ordered([CELL], done) == [CELL]
    assert Fleet(V24).ordered([CELL], {*done, CELL}) == []
