"""A cell's key follows from what is sent, and is computed once."""

from dataclasses import dataclass

import msgspec
import pytest
from msgspec.structs import replace

from sparkwright.base.digests import digest_of
from sparkwright.engine import cell as cells
from sparkwright.engine.cell import Cell, Load, Message, Prompt, Tool
from sparkwright.engine.observations import FailureKind, Observation, RequestFailure, Sample

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
    monkeypatch.setattr(cells, "digest_of", counted)
    cell = replace(CELL)
    assert {cell.key for _ in range(5)} == {"f9ada9eaa3fd32fd"}  # as runs have it that are on disk
    assert counted.calls == 1
    other = replace(cell, boot=1)
    assert other.key != cell.key
    assert counted.calls == 2


def test_messages_tools_pictures_a_schema_and_a_budget_change_the_key() -> None:
    load, prompt = CELL.load, CELL.prompts[0]
    said = replace(prompt, history=(Message(role="user", content="Hello."),))
    tool = Tool(name="add", description="Add.", parameters={"type": "object"})
    changed = (
        replace(CELL, prompts=(said,)),
        replace(CELL, load=replace(load, tools=(tool,))),
        replace(CELL, load=replace(load, schema={"type": "object"})),
        replace(CELL, load=replace(load, thinking_budget=8)),
        replace(CELL, prompts=(replace(prompt, images=("data:,",)),)),
    )
    assert len({CELL.key, *(cell.key for cell in changed)}) == 6
    for cell in changed:
        assert msgspec.json.decode(msgspec.json.encode(cell), type=Cell).key == cell.key


def test_thinking_is_part_of_the_key_of_chats_alone() -> None:
    def key(**load: bool) -> str:
        return replace(CELL, load=Load(**load)).key

    assert key() == key(thinking=True)
    assert key(chat=True) != key(chat=True, thinking=True)


def test_rightly_refused_requests_are_none_that_failed() -> None:
    def seen(how: str, *statuses: int) -> Observation:
        failures = [
            RequestFailure(kind=FailureKind.STATUS, detail="no", status=status) if status else None
            for status in statuses
        ]
        samples = tuple(
            Sample(prompt="p", category="c", started=0, ended=1, failure=failure) for failure in failures
        )
        tags = {cells.REFUSED: how} if how else {}
        return Observation(cell=replace(CELL, tags=tags), samples=samples)

    def counts(observation: Observation) -> tuple[int, int]:
        return len(observation.refused), len(observation.failed)

    assert counts(seen("", 400, 400)) == (0, 2)
    assert counts(seen("must", 400, 422)) == (2, 0)
    assert counts(seen("must", 400, 500)) == (1, 1)
    assert counts(seen("must", 400, 0)) == (1, 0)
    assert counts(seen("may", 400, 400)) == (2, 0)
    assert counts(seen("may", 400, 0)) == (0, 1)
    assert counts(seen("may", 0, 0)) == (0, 0)
