"""Parity: a patched server answers as the unpatched one does, near ties aside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from test_verify_lossless import Talker
from verify_kit import SEEDS, context, profile

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import FailureKind, Observation, RequestFailure
from sparkwright.verify.checks import ALL
from sparkwright.verify.corpus import load_corpus

CHECK = ALL["parity"]


def to(**changes: Any) -> Any:
    sizes = profile(**{"lossless_prompts": 24, "categories": ("code", "math", "prose"), **changes})
    return replace(context(sizes), corpus=load_corpus())


def told(talker: Talker) -> list[Observation]:
    """What *talker* answers; a cell of the check has no tag for its kind, because all are answers."""
    planned = CHECK.cells(to())
    asked = [msgspec.structs.replace(cell, tags={**cell.tags, "kind": "answers"}) for cell in planned]
    seen = [talker.measure(cell) for cell in asked]
    return [
        msgspec.structs.replace(observation, cell=cell)
        for observation, cell in zip(seen, planned, strict=True)
    ]


def judged(observations: list[Observation], **changes: Any) -> Finding:
    (finding,) = CHECK.judge(to(**changes), observations)
    return finding


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_rounding_alone_passes(seed: int) -> None:
    assert judged(told(Talker(seed))).verdict is Verdict.PASS


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_wrong_tokens_fail_and_name_the_place(seed: int) -> None:
    finding = judged(told(Talker(seed, at=7)))
    assert finding.verdict is Verdict.FAIL
    assert "token 7" in finding.cause


def test_missing_cells_and_failed_requests_never_pass() -> None:
    seen = told(Talker())
    for left in range(len(seen)):
        assert judged([*seen[:left], *seen[left + 1 :]]).verdict is not Verdict.PASS
    failure = RequestFailure(kind=FailureKind.RESET, detail="reset")
    for at, observation in enumerate(seen):
        broken = msgspec.structs.replace(observation.samples[0], failure=failure)
        spoiled = msgspec.structs.replace(observation, samples=(broken, *observation.samples[1:]))
        verdict = judged([*seen[:at], spoiled, *seen[at + 1 :]]).verdict
        assert verdict is (Verdict.FAIL if observation.cell.arm == "main" else Verdict.INVALID)


def test_answers_without_log_probabilities_are_invalid() -> None:
    seen = told(Talker(at=7))
    bare = [
        msgspec.structs.replace(
            observation,
            samples=tuple(msgspec.structs.replace(sample, logprobs=()) for sample in observation.samples),
        )
        for observation in seen
    ]
    assert judged(bare).verdict is Verdict.INVALID
