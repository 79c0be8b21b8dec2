"""A cell's key, which is computed once, the requests of its load, and its deadlines."""

import itertools

import msgspec
import pytest
from msgspec.structs import replace

from sparkwright.engine import cell as cells
from sparkwright.engine.cell import Cell, Load, Message, Prompt, Tool
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.engine.client.load import output_lengths
from sparkwright.engine.client.payload import salted
from sparkwright.engine.client.request import patience
from sparkwright.engine.observations import FailureKind, Observation, RequestFailure, Sample

CELL = Cell(
    "sweep", "code c=1", Load(), (Prompt("code/0", "code", "Add two numbers."),), tags={"kind": "cold"}
)


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


def test_a_drain_goes_down_to_the_shortest_in_even_steps() -> None:
    lengths = output_lengths(Load(shape="drain", requests=64, max_tokens=400, min_tokens=16))
    assert (lengths[0], lengths[-1], len(lengths)) == (400, 16, 64)
    assert {before - after for before, after in itertools.pairwise(lengths)} == {6, 7}
    assert output_lengths(Load(shape="drain", requests=1, max_tokens=50)) == [50]


def test_a_salt_leaves_a_shared_beginning_alone() -> None:
    shared = Prompt(name="p", category="code", text="A long document. Why?", prefix="A long document.")
    assert salted(shared, "12").startswith("A long document.")
    assert salted(shared, "12").endswith(" Why?")
    assert "[12]" in salted(shared, "12")
    named = Prompt(name="p", category="code", text="A long document. Why?", prefix="document 1")
    assert salted(named, "12") == "A long document. Why?\n[12]"


def test_waiting_is_scaled_but_for_what_our_own_machine_may_lose() -> None:
    assert patience(60, 1) == 60
    assert patience(60, 60) == pytest.approx(2.0, abs=0.05)
    assert patience(60, 2) < 60


@pytest.mark.parametrize(
    "given", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", " http://h:1/v1//\n"]
)
def test_an_endpoint_is_the_servers_root(given: str) -> None:
    assert Endpoint(given, "m").url == "http://h:1"


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Endpoint("http://h", "m", api_key="secret"))
