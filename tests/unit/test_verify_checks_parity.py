"""Parity: a patched server answers as the unpatched one does, near ties aside."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace
from talker_kit import Talker
from verify_kit import SEEDS, all_but_one, context, every, failing, profile

from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import FailureKind, Observation
from sparkwright.verify.checks import ALL
from sparkwright.verify.corpus import load_corpus

CHECK = ALL["parity"]


def to(**changes: Any) -> Any:
    sizes = profile(**{"lossless_prompts": 24, "categories": ("code", "math", "prose"), **changes})
    return dataclasses.replace(context(sizes), corpus=load_corpus())


def told(talker: Talker) -> list[Observation]:
    """What *talker* answers; a cell of the check has no tag for its kind, because all are answers."""
    asked = [(cell, replace(cell, tags={**cell.tags, "kind": "answers"})) for cell in CHECK.cells(to())]
    return [replace(talker.measure(tagged), cell=cell) for cell, tagged in asked]


def judged(observations: list[Observation], **changes: Any) -> Finding:
    (finding,) = CHECK.judge(to(**changes), observations)
    return finding


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_rounding_alone_passes(seed: int) -> None:
    assert judged(told(Talker(seed))).verdict is Verdict.PASS


def test_missing_cells_and_failed_requests_never_pass() -> None:
    seen = told(Talker())
    assert Verdict.PASS not in {judged(some).verdict for some in all_but_one(seen)}
    for at, observation in enumerate(seen):
        broken = failing(observation, FailureKind.RESET, which=slice(1))
        verdict = judged([*seen[:at], broken, *seen[at + 1 :]]).verdict
        assert verdict is (Verdict.FAIL if observation.cell.arm == "main" else Verdict.INVALID)


def test_answers_without_log_probabilities_are_invalid() -> None:
    assert judged([every(one, logprobs=()) for one in told(Talker(at=7))]).verdict is Verdict.INVALID
