"""A level of the serving proof on a GPU: its requests and counters, and each planted fault among them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from pair import load
from pair.load import Observed

LEVEL = 17


def healthy(level: int = LEVEL) -> Observed:
    received = {request.name: request.output for client in load.workload(level) for request in client}
    return Observed(
        level=level,
        seconds=1.0,
        received=received,
        chunks=10 * len(received),
        counters=load.expected(level),
        peak=level,
        sizes=level,
        replays=100,
        canary=True,
    )


def altered(seen: Observed, **counters: Any) -> Observed:
    return replace(seen, counters=replace(seen.counters, **counters))


# --- what is asked


# --- what must come of it


@pytest.mark.parametrize("level", [1, 17, 65])
def test_a_healthy_level_has_no_faults(level: int) -> None:
    assert load.faults(healthy(level), graphs=True) == []
    assert load.faults(replace(healthy(level), replays=0), graphs=False) == []


def lost(seen: Observed) -> Observed:
    return replace(seen, received={k: v for k, v in seen.received.items() if k != "17-3-1"})


def short(seen: Observed) -> Observed:
    return replace(seen, received=seen.received | {"17-3-1": seen.received["17-3-1"] - 1})


@pytest.mark.parametrize(
    ("sick", "words"),
    [
        (lost(healthy()), "request 17-3-1 did not finish"),
        (short(healthy()), "request 17-3-1 gave"),
        (replace(healthy(), received=healthy().received | {"x": 1}), "request x was never asked"),
        (replace(healthy(), errors=("request 17-0-0: EngineDeadError()",)), "EngineDeadError"),
        (replace(healthy(), chunks=2 * LEVEL), "nothing was streamed"),
        (altered(healthy(), drafts=load.expected(LEVEL).drafts + 1), "drafts rose by"),
        (altered(healthy(), accepted=load.expected(LEVEL).accepted - 1), "accepted rose by"),
        (altered(healthy(), per_position=(1, 1, 1)), "per_position rose by"),
        (altered(healthy(), generated=0), "generated rose by 0"),
        (altered(healthy(), preempted=1), "preempted rose by 1"),
        (replace(healthy(), peak=16), "at most 16 requests ran at once instead of 17"),
        (replace(healthy(), replays=0), "no CUDA graph was replayed"),
        (replace(healthy(), canary=False), "did not answer"),
    ],
)
def test_each_planted_fault_is_found(sick: Observed, words: str) -> None:
    found = load.faults(sick, graphs=True)
    assert len(found) == 1
    assert words in found[0]


def test_a_replayed_graph_is_a_fault_in_eager_mode() -> None:
    assert load.faults(healthy(), graphs=False) == ["100 CUDA graphs were replayed in eager mode"]
