"""The fleet's cells and their order."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from fleet import matrix
from fleet.drafters import DRAFTERS
from fleet.matrix import Cell
from fleet.shapes import SHAPES

V24, V33 = "0.24.0+spark.5.00512fd5", "0.33.0+spark.2.0ede9e4c"
CELL = Cell("dense", "dflash", "fp8", eager=False)


def test_every_kind_of_the_fleet_is_among_the_cells() -> None:
    for version in (V24, V33):
        every = matrix.cells(version)
        names = [cell.name for cell in every]
        assert len(set(names)) == len(names)
        assert {cell.shape for cell in every} == set(SHAPES)
        assert {cell.drafter for cell in every} == set(DRAFTERS)
        assert {cell.cache for cell in every} == set(matrix.CACHES)
        for cell in every:
            own = matrix.reference(cell, version)
            assert own in every
            assert (own.cache, own.drafter, own.eager) == (cell.cache, "none", True)
            assert matrix.plain(cell, version) in every
    assert {cell.shape for cell in matrix.cells(V24, cards=2)} == {"hybrid", "gemma4", "moe"}
    assert all(cell.runner == "v1" and cell.eager for cell in matrix.cells(V24, device="cpu"))


def test_one_of_each_refusal_is_a_cell() -> None:
    def refused(version: str) -> set[str]:
        every = matrix.cells(version)
        return {cell.name for cell in every if matrix.expectation(cell, version).outcome == "refused"}

    assert refused(V33) == {"mla-none-nvfp4-v2-eager"}
    assert refused(V24) == {"mla-none-nvfp4-v1-eager", "hybrid-none-bf16-v2-eager"} | {
        f"{shape}-ngram-bf16-v2-eager" for shape in ("gemma4", "gptoss", "moe", "dense", "image")
    }
    assert matrix.expectation(Cell("mla", cache="nvfp4"), V24).pattern


def test_references_come_first_and_pairs_before_repetitions() -> None:
    order = [cell for cell, _ in matrix.ordered(matrix.cells(V24), {}, V24)]
    assert sorted(cell.name for cell in order) == sorted(cell.name for cell in matrix.cells(V24))
    assert order[0] == Cell("hybrid")  # its kernels take longest to compile
    for place, cell in enumerate(order):
        assert matrix.reference(cell, V24) in order[: place + 1]
        assert matrix.plain(cell, V24) in order[: place + 1]
    early, all_pairs = order[:100], {pair for cell in order for pair in matrix.groups(cell) if len(pair) == 2}
    met = {pair for cell in early for pair in matrix.groups(cell) if len(pair) == 2}
    assert len(met) > 0.97 * len(all_pairs)


def test_cells_that_were_served_lower_the_value_of_their_likes_and_refused_ones_do_not() -> None:
    first = Cell("hybrid", "dflash", "fp8")
    twin = replace(first, eager=False)
    served = dict(matrix.ordered([twin], {first: True}, V24))[twin]
    refused = dict(matrix.ordered([twin], {first: False}, V24))[twin]
    assert served < refused
