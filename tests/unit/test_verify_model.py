"""A cell's key follows from what is sent, and is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.verify import model
from sparkwright.verify.model import Cell, Load, Prompt

if TYPE_CHECKING:
    import pytest

CELL = Cell(
    "sweep", "code c=1", Load(), (Prompt("code/0", "code", "Add two numbers."),), tags={"kind": "cold"}
)


@dataclass
class Counted:
    """`digest_of`, and how often it was called."""

    calls: int = 0

    def __call__(self, value: object) -> str:
        self.calls += 1
        return digest_of(value)


def test_a_key_is_computed_once_and_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    monkeypatch.setattr(model, "digest_of", counted)
    cell = msgspec.structs.replace(CELL)
    told = to_builtins(CELL)
    for prompt in told["prompts"]:
        del prompt["messages"]
    assert {cell.key for _ in range(5)} == {digest_of(told)[:16]}
    assert counted.calls == 1
    other = msgspec.structs.replace(cell, boot=1)
    assert other.key != cell.key
    assert counted.calls == 2


def test_a_known_key_changes_neither_the_cell_nor_its_json() -> None:
    fresh, used = msgspec.structs.replace(CELL), msgspec.structs.replace(CELL)
    assert used.key
    assert fresh == used
    assert msgspec.json.encode(fresh) == msgspec.json.encode(used)
    assert msgspec.json.decode(msgspec.json.encode(used), type=Cell) == fresh
