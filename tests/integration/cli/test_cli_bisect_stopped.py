"""Bisections that run twice at once, or meet no network: journals stay whole."""

import json
from typing import Any

import pytest
from bisect_kit import DOUBLED, JUDGE, judge, patch_twice
from http_index import Fault
from tiny_release import CLAMP, make_tiny
from world import World, finish, wait_until

from sparkwright.base.errors import BusyError, FetchError

ENDS = ("bisect", "HEAD~1", "HEAD", "--json")


@pytest.fixture
def patched(world: World) -> World:
    return patch_twice(world)


def journal(world: World) -> list[dict[str, Any]]:
    """Return every line of the journal; one that is cut does not parse."""
    (path,) = (world.root / ".sparkwright" / "bisect").glob("*/journal.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


WAITING = """\
import time
from pathlib import Path
folder = Path({folder!r})
(folder / "started").touch()
while not (folder / "gate").exists():
    time.sleep(0.02)
"""


def test_a_second_search_of_the_same_pair_says_busy_and_leaves_the_journal_alone(patched: World) -> None:
    words = (*ENDS, "--judge", judge(patched, WAITING.format(folder=str(patched.folder)) + JUDGE))
    first = patched.start(*words)
    wait_until((patched.folder / "started").exists, patience_s=120)
    before = journal(patched)
    second = patched.call(*words)
    assert second.status == BusyError.exit_code
    assert journal(patched) == before
    (patched.folder / "gate").touch()
    ran = finish(first)
    assert (ran.status, ran.json["changes"]) == (0, ["doubled:added"])
    after = journal(patched)
    assert patched.good(*words).json["steps"] == ran.json["steps"]
    assert journal(patched) == after


def offer_later_releases(world: World) -> None:
    for number in range(3, 9):
        text = DOUBLED if number >= 6 else CLAMP
        world.offer(make_tiny(f"1.{number}.0", changes=(("vllm/clamp.py", text),)))
    world.list_carries([])


def test_a_network_that_fails_in_the_middle_gives_no_verdict(world, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)  # between one try and the next
    offer_later_releases(world)
    words = ("bisect", "spark@1.2.0", "spark@1.8.0", "--judge", judge(world), "--json")
    words = (*words, "--deterministic")
    world.index.faults += [Fault(), Fault(), *[Fault(status=503)] * 200]
    ran = world.call(*words)
    assert ran.status == FetchError.exit_code
    before = journal(world)
    assert [one["kind"] for one in before] == ["bisection", "evaluation", "evaluation"], "both ends"
    world.index.faults.clear()
    ran = world.good(*words)
    assert ran.json["changes"] == ["1.6.0"]
    assert journal(world)[: len(before)] == before
