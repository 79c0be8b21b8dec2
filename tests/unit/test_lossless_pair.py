"""The judge of losslessness on a GPU fires on each planted fault, and is silent on healthy twins."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
import lossless_pair
from pair import scoring
from pair.scoring import LosslessCase, Score

PLAIN = LosslessCase("v2", eager=True, kv="auto", drafter="plain")
PLANTED = LosslessCase("v2", eager=True, kv="auto", drafter="planted")
HEALTHY = Score(tokens=100, below=2, worst=0.05, same=3, requests=3)


def lines(case: LosslessCase, *, gap: float = 0.0, accepted: int = 5) -> list[dict[str, Any]]:
    """Return what a case of one request and its judge leave; *gap* belongs to half of its tokens."""
    return [
        {"kind": "level", "run": case.name, "c": 1, "drafts": 30, "accepted": accepted},
        {"kind": "score", "run": case.judge.name, "of": case.name, "c": 1, "gaps": [[0.0, gap] * 20],
         "same": [gap == 0]},
        {"kind": "end", "run": case.name},
    ]  # fmt: skip


def judged(tmp_path: Path, case: LosslessCase, log: str = "fine", **fields: Any) -> list[str]:
    (tmp_path / f"{case.name}.log").write_text(log, encoding="utf-8")
    args = argparse.Namespace(out=tmp_path, levels=[1])
    return lossless_pair.judge(case, 0, lines(case, **fields), args)


def test_a_healthy_case_passes(tmp_path: Path) -> None:
    assert judged(tmp_path, PLAIN) == []
    assert scoring.shortfalls(PLAIN, HEALTHY, 0.1) == []
    assert scoring.shortfalls(PLAIN.judge, HEALTHY, None) == []


def test_another_token_is_found(tmp_path: Path) -> None:
    assert any("3.000 nats" in fault for fault in judged(tmp_path, PLAIN, gap=3.0))


def test_a_planted_fault_must_be_found(tmp_path: Path) -> None:
    assert judged(tmp_path, PLANTED, gap=3.0, accepted=20) == []
    assert judged(tmp_path, PLANTED, accepted=20) == ["the planted fault was not found"]


def test_a_dead_engine_is_found(tmp_path: Path) -> None:
    assert judged(tmp_path, PLAIN, log="CUDA error: an illegal memory access") != []
    (tmp_path / f"{PLAIN.name}.log").touch()
    args = argparse.Namespace(out=tmp_path, levels=[1, 2])
    assert "c=2: never scored" in lossless_pair.judge(PLAIN, 0, lines(PLAIN), args)
    assert "came to its end: exit status None" in lossless_pair.judge(PLAIN, None, lines(PLAIN), args)


@pytest.mark.parametrize(
    ("score", "accepted", "words"),
    [
        (Score(100, 2, 0.3, 3, 3), 0.1, "0.300 nats"),
        (Score(100, 2, math.nan, 3, 3), 0.1, "nan nats"),
        (Score(100, 6, 0.1, 3, 3), 0.1, "6 of 100 tokens"),
        (Score(0, 0, math.nan, 0, 0), 0.1, "0 of 0 tokens"),
        (HEALTHY, 0.0, "not both outcomes"),
        (HEALTHY, 1.0, "not both outcomes"),
        (HEALTHY, None, "not both outcomes"),
    ],
)
def test_each_fault_has_its_words(score: Score, accepted: float | None, words: str) -> None:
    assert any(words in fault for fault in scoring.shortfalls(PLAIN, score, accepted))


def test_scores_are_summed_and_keep_what_is_no_number() -> None:
    found = scoring.scored([[0.0, 0.2], [0.1]], [True, False])
    assert found == Score(tokens=3, below=2, worst=0.2, same=1, requests=2)
    assert math.isnan(scoring.scored([[0.0, math.nan]], [True]).worst)
