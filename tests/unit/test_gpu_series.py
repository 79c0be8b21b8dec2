"""The scripts for a GPU call vLLM of two series: forms of draft_compare."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from pair import draft_compare


class Fake:
    """A tensor's shape, and what is done to it."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def unflatten(self, dim: int, sizes: tuple[int, ...]) -> Fake:
        return Fake(*self.shape[:dim], *sizes, *self.shape[dim + 1 :])

    def permute(self, *order: int) -> Fake:
        return Fake(*(self.shape[one] for one in order))


def test_caches_of_both_series_have_one_form() -> None:
    old, new = Fake(420, 2, 16, 4, 128), Fake(420, 4, 16, 256)
    assert draft_compare.sides(old, 420, 16) is old
    assert draft_compare.sides(new, 420, 16).shape == old.shape


@pytest.mark.parametrize("shape", [(420, 3, 16, 4, 128), (420, 4, 32, 256), (42, 4, 16, 256), (420, 16, 256)])
def test_a_cache_of_another_form_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        draft_compare.sides(Fake(*shape), 420, 16)


class Row(list[int]):
    """A slot mapping."""

    def clone(self) -> Row:
        return Row(self)

    def __setitem__(self, index: object, value: object) -> None:
        assert isinstance(index, slice)
        for one in range(*index.indices(len(self))):
            super().__setitem__(one, value)  # type: ignore[assignment,index]


class Mapping:
    """A tensor, which is no list."""

    def __init__(self, row: Row) -> None:
        self.row = row

    def clone(self) -> Mapping:
        return Mapping(self.row.clone())

    def __setitem__(self, index: object, value: object) -> None:
        self.row[index] = value


def test_a_planted_fault_skips_rows_of_one_mapping_or_of_each() -> None:
    whole = Mapping(Row(range(1, 6)))
    assert draft_compare.some_skipped(whole, 2).row == [-1, 2, -1, 4, -1]
    assert whole.row == [1, 2, 3, 4, 5]
    some = draft_compare.some_skipped([whole, None], 5)
    assert some[0].row == [-1, 2, 3, 4, 5]
    assert some[1] is None
    assert draft_compare.some_skipped(None, 2) is None
