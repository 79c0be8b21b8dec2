"""The prefix cache: warm answers are the cold ones, near ties aside, and the cache has to be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from verify_kit import context, profile, token_id

from sparkwright.verify.checks.prefix import Prefix
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.model import Finding, MetricsSnapshot, Observation, Sample, TokenLogprobs, Verdict

if TYPE_CHECKING:
    from sparkwright.verify.cell import Cell
    from sparkwright.verify.check import Context

CHECK = Prefix()
PLACE = 5


def to() -> Context:
    import dataclasses

    return dataclasses.replace(context(profile()), corpus=load_corpus())


def measure(cell: Cell, *, gap: float = 0.0, share: float = 0.9) -> Observation:
    """Answers to *cell*; warm ones leave the cold ones at one place, by a token *gap* nats less likely."""
    samples = []
    for prompt in cell.prompts:
        ids = [token_id(f"{prompt.name} {i}") for i in range(cell.load.max_tokens)]
        other = ids[PLACE] + 1
        top = {i: {f"token_id:{token}": -0.1} for i, token in enumerate(ids)}
        top[PLACE][f"token_id:{other}"] = -0.1 - gap
        if gap and cell.tags["cache"] == "warm":
            ids[PLACE] = other
        logprobs = tuple(TokenLogprobs(f"token_id:{token}", -0.1, top[i]) for i, token in enumerate(ids))
        samples.append(
            Sample(
                prompt=prompt.name, category=prompt.category, started=0, ended=1, prompt_tokens=300,
                output_tokens=len(ids), token_ids=tuple(ids), logprobs=logprobs,
            )
        )  # fmt: skip
    hits = share * 1800 if cell.tags["cache"] == "warm" else 0
    counters = {"generation_tokens": 0.0, "requests": 0.0, "running": 0.0, "waiting": 0.0, "start_s": 1.0}
    before = MetricsSnapshot(at=0, prefix_queries=0, prefix_hits=0, **counters)
    after = MetricsSnapshot(at=1, prefix_queries=1800, prefix_hits=hits, **counters)
    return Observation(cell=cell, samples=tuple(samples), before=before, after=after)


def judged(observations: list[Observation]) -> Finding:
    (finding,) = CHECK.judge(to(), observations)
    return finding


@pytest.mark.parametrize(("gap", "verdict"), [(0.0, Verdict.PASS), (0.05, Verdict.PASS), (3.0, Verdict.FAIL)])
def test_only_tokens_that_rounding_does_not_explain_fail(gap: float, verdict: Verdict) -> None:
    finding = judged([measure(cell, gap=gap) for cell in CHECK.plan(to())])
    assert finding.verdict is verdict
    assert (f"token {PLACE}" in finding.cause) is (verdict is Verdict.FAIL)


def test_a_cache_that_is_not_used_decides_nothing() -> None:
    assert judged([measure(cell, share=0.1) for cell in CHECK.plan(to())]).verdict is Verdict.INCONCLUSIVE


def test_a_missing_cell_never_passes() -> None:
    seen = [measure(cell) for cell in CHECK.plan(to())]
    for left in range(len(seen)):
        assert judged([*seen[:left], *seen[left + 1 :]]).verdict is Verdict.INCONCLUSIVE


def test_answers_without_log_probabilities_are_invalid() -> None:
    seen = [measure(cell, gap=3.0) for cell in CHECK.plan(to())]
    bare = [
        msgspec.structs.replace(
            observation,
            samples=tuple(msgspec.structs.replace(sample, logprobs=()) for sample in observation.samples),
        )
        for observation in seen
    ]
    assert judged(bare).verdict is Verdict.INVALID
