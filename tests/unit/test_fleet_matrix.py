"""The fleet's cells and their order."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from fleet import matrix
from fleet.matrix import Cell, Fleet
from fleet.shapes import DRAFTERS, SHAPES

V24, V33 = "0.24.0+spark.5.00512fd5", "0.33.0+spark.2.0ede9e4c"


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
