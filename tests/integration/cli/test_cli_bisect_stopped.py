"""Bisections that are killed, run twice at once, or meet a full disk or no network: journals stay whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from bisect_kit import DOUBLED, JUDGE, judge, patch_twice
from http_index import Fault
from kit import small_disk
from tiny_release import CLAMP, make_tiny
from world import World, clean_environment, finish, wait_until

from sparkwright.base.errors import BusyError, FetchError, NotInStoreError, StorageError

ENDS = ("bisect", "--good=HEAD~1", "--bad=HEAD", "--json")


@pytest.fixture
def patched(world: World) -> World:
    return patch_twice(world)


def records(text: str) -> list[dict[str, Any]]:
    """Every line of a journal; one that is cut does not parse."""
    return [json.loads(line) for line in text.splitlines()]


def journal(world: World) -> list[dict[str, Any]]:
    (path,) = (world.root / ".sparkwright" / "bisect").glob("*/journal.jsonl")
    return records(path.read_text())


def evaluated(found: list[dict[str, Any]]) -> list[tuple[tuple[str, ...], int]]:
    return [(tuple(one["applied"]), one["attempt"]) for one in found if one["kind"] == "evaluation"]


# Kills the command that runs it, when it judges a candidate for the first time.
KILLING = """\
import os, signal
from pathlib import Path
spec = Path(os.environ["SPARKWRIGHT_SPEC"])
import json
seen = Path({folder!r}, json.loads(spec.read_text())["digest"])
if not seen.exists():
    seen.touch()
    os.kill(os.getppid(), signal.SIGKILL)
    raise SystemExit(1)
"""


def test_a_search_that_is_killed_at_every_step_ends_with_the_same_answer(patched: World) -> None:
    seen = patched.folder / "seen"
    seen.mkdir()
    text = KILLING.format(folder=str(seen)) + JUDGE
    words = (*ENDS, "--deterministic", "--judge", judge(patched, text))
    kept: list[dict[str, Any]] = []
    for kills in range(20):  # noqa: B007 - the number of kills is what counts
        ran = finish(patched.start(*words))
        now = journal(patched)
        assert now[: len(kept)] == kept, "nothing that was written is lost or changed"
        kept = now
        if ran.status != -signal.SIGKILL:
            break
    assert (ran.status, ran.json["changes"]) == (0, ["doubled:added"])
    asked = evaluated(kept)
    assert len(asked) == len(set(asked)) == kills == len(ran.json["steps"])


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


def test_searches_of_one_pair_that_begin_together_judge_nothing_twice(patched: World) -> None:
    words = (*ENDS, "--deterministic", "--judge", judge(patched))
    ran = [finish(child) for child in [patched.start(*words) for _ in range(3)]]
    assert {one.status for one in ran} <= {0, BusyError.exit_code}
    assert {tuple(one.json["changes"]) for one in ran if one.status == 0} == {("doubled:added",)}
    asked = evaluated(journal(patched))
    assert len(asked) == len(set(asked))


def test_two_searches_of_different_pairs_run_beside_each_other(patched: World) -> None:
    text = judge(patched)
    pairs = [(*ENDS, "--judge", text), (*ENDS, "--judge", text, "--deterministic")]
    ran = [finish(child) for child in [patched.start(*words) for words in pairs]]
    assert [one.json["changes"] for one in ran] == [["doubled:added"]] * 2
    assert len({one.json["id"] for one in ran}) == 2


# Runs in a mount namespace of its own, with a small disk at argv[1] that it fills but for some pages.
STARVED = """
import json, pathlib, shutil, subprocess, sys
disk, command = pathlib.Path(sys.argv[1]), sys.argv[2:]
ballast, found = disk / "ballast", []
for pages in (0, 6, 9, None):
    ballast.unlink(missing_ok=True)
    if pages is not None:
        with ballast.open("wb") as file:
            file.write(bytes(shutil.disk_usage(disk).free - 4096 * pages))
    done = subprocess.run(command, capture_output=True, text=True)
    journals = [path.read_text() for path in disk.glob("*/journal.jsonl")]
    found.append([done.returncode, done.stdout, done.stderr, journals])
print(json.dumps(found))
"""
# The last line of its output goes into the journal.
TALKING = "print('so much to say ' * 200)\n"


@pytest.mark.slow
def test_a_search_on_a_full_disk_stops_and_goes_on_once_there_is_space(patched: World) -> None:
    (patched.root / ".sparkwright").mkdir(exist_ok=True)
    disk = patched.root / ".sparkwright" / "bisect"
    prefix = small_disk(disk, "400k")
    words = (*ENDS, "--deterministic", "--judge", judge(patched, TALKING + JUDGE))
    done = subprocess.run(
        [*prefix, sys.executable, "-c", STARVED, str(disk), sys.executable, "-m", "sparkwright", *words],
        cwd=patched.root,
        env={**clean_environment(), **patched.environment},
        check=True,
        capture_output=True,
        text=True,
    )
    *full, (status, out, err, (whole,)) = json.loads(done.stdout)
    assert [one[0] for one in full] == [StorageError.exit_code] * len(full), full
    assert (status, json.loads(out)["changes"]) == (0, ["doubled:added"]), err
    kept: list[dict[str, Any]] = []
    lengths = []
    for text in [*(text for _, _, _, journals in full for text in journals), whole]:
        lines = text.splitlines(keepends=True)
        now = records("".join(line for line in lines if line.endswith("\n")))
        assert now[: len(kept)] == kept, "nothing that was written is lost or changed"
        kept = now
        lengths.append(len(evaluated(now)))
    assert 0 < lengths[-2] < lengths[-1], "one ran full after some evaluations"
    asked = evaluated(kept)
    assert len(asked) == len(set(asked)) == len(json.loads(out)["steps"])


def offer_later_releases(world: World) -> None:
    for number in range(3, 9):
        text = DOUBLED if number >= 6 else CLAMP
        world.offer(make_tiny(f"1.{number}.0", changes=(("vllm/clamp.py", text),)))
    world.list_carries([])


def test_what_the_store_lacks_is_named_without_a_network(world: World) -> None:
    offer_later_releases(world)
    words = ("bisect", "--good=spark@1.2.0", "--bad=spark@1.8.0", "--judge", judge(world), "--json")
    assert world.call(*words, "--offline").status == NotInStoreError.exit_code
    ran = world.good(*words)
    assert ran.json["changes"] == ["1.6.0"]
    again = world.good(*words, "--offline")
    assert again.json["steps"] == ran.json["steps"]


def test_a_network_that_fails_in_the_middle_gives_no_verdict(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # between one try and the next
    offer_later_releases(world)
    words = ("bisect", "--good=spark@1.2.0", "--bad=spark@1.8.0", "--judge", judge(world), "--json")
    words = (*words, "--deterministic")
    world.index.faults += [Fault(), Fault(), *[Fault(status=503)] * 200]
    ran = world.call(*words)
    assert ran.status == FetchError.exit_code
    before = journal(world)
    assert len(evaluated(before)) == 2, "both ends"
    assert before[-1]["kind"] == "stopped"
    (state,) = world.good("bisect", "status", "--json").json
    assert (state["result"], len(state["stopped"])) == (None, 1)
    world.index.faults.clear()
    ran = world.good(*words)
    assert ran.json["changes"] == ["1.6.0"]
    assert journal(world)[: len(before)] == before
