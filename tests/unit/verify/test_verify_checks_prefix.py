"""The prefix cache: warm answers are the cold ones at lengths around blocks, and the cache has to be used."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from verify_kit import all_but_one, boot_facts, context, every, follow, profile, token_id

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import SPECULATION, Finding, Verdict
from sparkwright.engine.observations import MetricsSnapshot, Observation, Sample, TokenLogprobs
from sparkwright.verify.check import Context
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.prefix import OFFSETS
from sparkwright.verify.corpus import load_corpus

CHECK = ALL["prefix"]
PLACE = 5


def to(*blocks: int, lacks: tuple[str, ...] = (), **facts: Any) -> Context:
    facts = {"block_sizes": blocks or (16,), **facts}
    return dataclasses.replace(
        context(profile(), boot_facts(**facts)), corpus=load_corpus(), lacks=dict.fromkeys(lacks, "no")
    )


def length(prompt: Prompt) -> int:
    """Tokens of *prompt* for a tokenizer that has one for each word."""
    return len(prompt.text.split())


def measure(
    cell: Cell,
    *,
    gap: float = 0.0,
    shift: float = 0.0,
    share: float = 0.9,
    cold_share: float = 0.0,
    hit: Callable[[int], bool] = lambda _: True,
    tokens: Callable[[Prompt], int] = length,
    rounding: float = 0.0,
) -> Observation:
    """Answers to *cell*; warm ones to prompts of a length that is *hit* have a fault.

    Args:
        cell: the cell.
        gap: they leave the cold ones at one place, by a token so much less likely.
        shift: they have another distribution at each token.
        share: of the warm prompts' tokens that come from the cache.
        cold_share: the same of the cold ones.
        hit: tells by a prompt's length if it shows the fault.
        tokens: tokens of a prompt.
        rounding: answers of a batch have another distribution at each token.
    """
    samples = []
    for prompt in cell.prompts:
        ids = [token_id(f"{prompt.name} {i}") for i in range(cell.load.max_tokens)]
        faulty = cell.tags["cache"] in {"warm", "again"} and hit(tokens(prompt))
        other = ids[PLACE] + 1
        top = {i: {f"token_id:{token}": -0.1, "token_id:1": -2.5} for i, token in enumerate(ids)}
        top[PLACE][f"token_id:{other}"] = -0.1 - gap
        if cell.load.concurrency > 1:
            top = {i: {**found, "token_id:1": found["token_id:1"] + rounding} for i, found in top.items()}
        if shift and faulty:
            top = {i: {**found, "token_id:1": found["token_id:1"] + shift} for i, found in top.items()}
        if gap and faulty:
            ids[PLACE] = other
        logprobs = tuple(TokenLogprobs(f"token_id:{token}", -0.1, top[i]) for i, token in enumerate(ids))
        samples.append(
            Sample(
                prompt=prompt.name, category=prompt.category, started=7, ended=8,
                prompt_tokens=tokens(prompt), output_tokens=len(ids), token_ids=tuple(ids),
                logprobs=logprobs, text=f" {prompt.expect}.",
            )
        )  # fmt: skip
    queries = float(sum(sample.prompt_tokens for sample in samples))
    hits = {"warm": share, "again": share, "cold": cold_share}.get(cell.tags["cache"], 0.0) * queries
    counters = {"generation_tokens": 0.0, "requests": 0.0, "running": 0.0, "waiting": 0.0, "start_s": 1.0}
    before = MetricsSnapshot(at=0, prefix_queries=0, prefix_hits=0, **counters)
    after = MetricsSnapshot(at=1, prefix_queries=queries, prefix_hits=hits, **counters)
    return Observation(cell=cell, samples=tuple(samples), before=before, after=after)


def run(where: Context, **fault: Any) -> list[Observation]:
    """The observations of the whole check, one round of cells after the other."""
    return follow(CHECK, where, lambda cell: measure(cell, **fault))


def judged(observations: list[Observation], where: Context | None = None) -> Finding:
    return CHECK.judge(where or to(), observations)[0]


@pytest.mark.parametrize("blocks", [(16,), (128,), (16, 784)])
@pytest.mark.parametrize("lacks", [(), (SPECULATION,)])
def test_prompts_are_of_lengths_around_several_multiples_of_each_block(blocks, lacks):
    where = to(*blocks, lacks=lacks)
    cells = [observation.cell for observation in run(where)]
    assert [cell.name for cell in cells] == ["lengths", "cold c=1", "warm c=1", "again c=4"]
    lengths = [length(prompt) for prompt in cells[1].prompts]
    assert cells[1].prompts == cells[2].prompts == cells[3].prompts
    for block in blocks:
        of_block = {tokens for tokens in lengths if min(tokens % block, -tokens % block) <= 1}
        assert {tokens % block for tokens in of_block} == {offset % block for offset in OFFSETS}
        assert len({round(tokens / block) for tokens in of_block}) >= 3
    reusable = [(tokens - 1) // blocks[-1] for tokens in lengths if tokens >= blocks[-1]]
    assert min(reusable) >= (1 if lacks else 2)
    assert judged(run(where), where).verdict is Verdict.PASS


def test_a_context_that_holds_no_blocks_is_not_applicable() -> None:
    where = to(784, max_model_len=1024)
    assert {finding.verdict for finding in CHECK.judge(where, [])} == {Verdict.NOT_APPLICABLE}


@pytest.mark.parametrize(("gap", "verdict"), [(0.0, Verdict.PASS), (0.05, Verdict.PASS), (3.0, Verdict.FAIL)])
def test_only_tokens_that_rounding_does_not_explain_fail(gap: float, verdict: Verdict) -> None:
    finding = judged(run(to(), gap=gap))
    assert finding.verdict is verdict
    assert (f"token {PLACE}" in finding.cause) is (verdict is Verdict.FAIL)
    assert "all of them" not in finding.cause


def test_other_probabilities_fail_though_the_tokens_are_the_same() -> None:
    assert judged(run(to(), shift=0.1)).verdict is Verdict.PASS
    finding = judged(run(to(), shift=2.0))
    assert finding.verdict is Verdict.FAIL
    assert "nat apart in the mean" in finding.cause


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (0, "a multiple of 16 tokens"),
        (1, "one token more than a multiple of 16"),
        (15, "one token less than a multiple of 16"),
    ],
)
def test_a_cause_names_the_lengths(rest: int, said: str) -> None:
    finding = judged(run(to(), gap=3.0, hit=lambda tokens: tokens % 16 == rest))
    assert finding.verdict is Verdict.FAIL
    assert "6 of 18 answers depend on the prefix cache" in finding.cause
    assert finding.cause.endswith(f"all of them to prompts of {said}")


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"share": 0.1}, "the cache was not hit"),
        ({"cold_share": 0.5}, "nothing to compare with"),
        (
            {"tokens": lambda prompt: 16 * (length(prompt) // 16) + 5},
            "no prompt came to n * 16 -1, n * 16, n * 16 +1",
        ),
    ],
    ids=["an unused cache", "cached cold prompts", "other lengths"],
)
def test_what_shows_no_hit_of_the_wanted_lengths_decides_nothing(seen: dict[str, Any], said: str) -> None:
    finding = judged(run(to(), **seen))
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert said in finding.cause


def test_a_missing_cell_never_passes() -> None:
    assert {judged(seen).verdict for seen in all_but_one(run(to()))} == {Verdict.INCONCLUSIVE}


def test_answers_without_log_probabilities_are_invalid() -> None:
    assert judged([every(one, logprobs=()) for one in run(to(), gap=3.0)]).verdict is Verdict.INVALID


@pytest.mark.parametrize(
    ("shift", "rounding", "wrong"),
    [
        (0.05, 0.0001, True),  # as far as a wrong position moves those of float32
        (0.05, 0.05, False),  # bfloat16: rounding does so too
        (0.05, 0.003, False),  # bfloat16: a cold prefill rounds otherwise than a warm one, whatever the batch
        (0.05, 0.0, False),  # requests are served one after another
        (0.0002, 0.00001, False),  # rounding of another shape, in float32
    ],
)
def test_answers_farther_from_the_cold_ones_than_rounding_puts_them(shift, rounding, *, wrong):
    found = judged(run(to(), shift=shift, rounding=rounding))
    assert (found.verdict is Verdict.FAIL) == wrong, found.cause
    assert ("in warm c=1 answers depend on the prefix cache" in found.cause) == wrong


# What upstream knows of ---------------------------------------------------------------------------------


def test_a_cache_that_is_never_hit_fails() -> None:
    plain = to(speculative_tokens=0)
    finding = judged(run(plain, share=0.0), plain)
    assert finding.verdict is Verdict.FAIL
    assert "no token of any repeated document came from the prefix cache" in finding.cause
    assert "54360" not in finding.cause  # nothing drafts
    drafting = to(speculative_tokens=7)
    assert "vllm#54360" in judged(run(drafting, share=0.0), drafting).cause
    assert judged(run(drafting), drafting).verdict is Verdict.PASS


def test_a_cache_that_the_documents_do_not_fit_into_says_nothing() -> None:
    small = to(kv_tokens=64)
    assert judged(run(small, share=0.0), small).verdict is Verdict.INCONCLUSIVE
    large = to(kv_tokens=1 << 20)
    assert judged(run(large, share=0.0), large).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("version", "method", "named"),
    [
        ("0.33.0+spark.12", "dflash", True),
        ("0.30.0", "dspark", True),
        ("0.33.0", "mtp", False),
        ("0.29.0", "dflash", False),
        ("", "dflash", False),
    ],
)
def test_garbage_after_a_hit_is_known_of_some_drafters(version: str, method: str, *, named: bool) -> None:
    where = to(version=version, speculative_method=method, speculative_tokens=7)
    finding = judged(run(where, gap=3.0), where)
    assert finding.verdict is Verdict.FAIL
    assert ("vllm#60174" in finding.cause) == named
    assert judged(run(where), where).verdict is Verdict.PASS
