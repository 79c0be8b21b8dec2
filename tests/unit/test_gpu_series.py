"""What the scripts for a GPU take from two series of vLLM: forms of caches, backends."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import nvfp4_kv
from nvfp4 import serve
from pair import caches


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
    assert caches.sides(old, 420, 16) is old
    assert caches.sides(new, 420, 16).shape == old.shape


@pytest.mark.parametrize("shape", [(420, 3, 16, 4, 128), (420, 4, 32, 256), (42, 4, 16, 256), (420, 16, 256)])
def test_a_cache_of_another_form_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        caches.sides(Fake(*shape), 420, 16)


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
    assert caches.some_skipped(whole, 2).row == [-1, 2, -1, 4, -1]
    assert whole.row == [1, 2, 3, 4, 5]
    some = caches.some_skipped([whole, None], 5)
    assert some[0].row == [-1, 2, 3, 4, 5]
    assert some[1] is None
    assert caches.some_skipped(None, 2) is None


def test_parts_that_a_series_lacks_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = ["nvfp4_kv.py", "--out", str(tmp_path), "--series", "0.33", "--only"]
    monkeypatch.setattr(sys, "argv", [*command, "serve,quality"])
    assert isinstance(nvfp4_kv.arguments(), argparse.Namespace)
    monkeypatch.setattr(sys, "argv", [*command, "serve,pack"])
    with pytest.raises(SystemExit):
        nvfp4_kv.arguments()


LAYERS = {
    "model.layers.0.self_attn.attn": {"dtype": "nvfp4", "backend": "TRITON_ATTN"},
    "model.layers.7.self_attn.attn": {"dtype": "bfloat16", "backend": "FLASH_ATTN"},
}


def odd(changes: dict[str, dict[str, str]]) -> list[str]:
    spec = {
        "cache": "nvfp4",
        "backend": "TRITON_ATTN",
        "layers": 7,
        "speculative_extra": {"kv_cache_dtype": "bfloat16", "attention_backend": "FLASH_ATTN"},
    }
    return serve.odd_layers(spec, {name: layer | changes.get(name, {}) for name, layer in LAYERS.items()})


def test_layers_that_are_as_asked_are_not_odd() -> None:
    assert odd({}) == []
    assert odd({"model.layers.7.self_attn.attn": {"dtype": "auto"}}) == []


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("change", [{"dtype": "fp8"}, {"backend": "FLEX_ATTENTION"}])
def test_a_layer_over_another_cache_or_backend_is_odd(name: str, change: dict[str, str]) -> None:
    assert odd({name: change}) == [name]
