"""What is sent: pure functions of a load and its clock."""

import itertools

import pytest

from sparkwright.engine.cell import Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.engine.client.load import output_lengths
from sparkwright.engine.client.payload import salted
from sparkwright.engine.client.request import patience

PLAIN = Prompt(name="p", category="code", text="Say it.")


def test_a_drain_goes_down_to_the_shortest_in_even_steps() -> None:
    lengths = output_lengths(Load(shape="drain", requests=64, max_tokens=400, min_tokens=16))
    assert (lengths[0], lengths[-1], len(lengths)) == (400, 16, 64)
    assert {before - after for before, after in itertools.pairwise(lengths)} == {6, 7}
    assert output_lengths(Load(shape="drain", requests=1, max_tokens=50)) == [50]


def test_other_shapes_ask_for_the_same_each_time() -> None:
    assert output_lengths(Load(shape="burst", requests=3, max_tokens=9)) == [9, 9, 9]


def test_a_salt_comes_first() -> None:
    assert salted(PLAIN, "12") == "[12]\nSay it."
    assert salted(PLAIN, "") == "Say it."


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
