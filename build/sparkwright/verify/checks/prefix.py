"""Comparison of greedy answers whose prompt came from the prefix cache with those computed in full.

Prompts are of lengths around multiples of the KV cache's block size: one token short of it, exactly so many,
and one more. There the last reused block, the first computed token and, in hybrids, the state to go on from
change places.

No tokenizer is available here. A trial request of a document shows the tokens that it has; words that are one
token each in the tokenizers in use then make up the rest. A document's mark and code have as many digits each
time, so that another document of the same words has as many tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparkwright.base.digests import digest_of
from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.findings import SPECULATION, Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.verify.check import Context
from sparkwright.verify.checks.answers import (
    ALTERNATIVES,
    LIMIT_NAT,
    Agreement,
    answers_agree,
    distances,
    mean_distance,
    mean_of,
)
from sparkwright.verify.checks.common import Check, Values, conclude, not_applicable
from sparkwright.verify.checks.triage import CheckedCells, Reason, describe
from sparkwright.verify.corpus import write_notes

OFFSETS = (-1, 0, 1)
"""Tokens from a multiple of the block size: one short of it, exactly so many, and one more."""

USUAL_BLOCK = 16
"""vLLM's block size on CUDA where nothing asks for another."""

_LEAST_TOKENS = 160  # for notes, a fact and a question
_MULTIPLES = (0, 1, 3)  # added to the smallest multiple
_LONGEST = 8192  # where the server does not name its longest request
_FILLED = 0.7  # of the wanted tokens that notes take by an estimate; words make up the rest
_NAMES = ("Marrowgate", "Tindlehope", "Osterwick", "Quillhaven", "Silverholt", "Hollowmere")
# Common words, each of which is one token after a space in the tokenizers of Llama, Qwen, Gemma and GPT-2.
_WORDS = """
the of and to in is that it for on was with as be by this are at from or an have not they which one had were
all their there been has when who will more no if out so up what about into than time only could these two may
then do first any my now such like our over man me even most made after also did
"""

LENGTH = 24
WARM = (("warm", 1), ("again", 4))
LEAST_HIT = 0.5
"""Share of the tokens in reusable blocks that come from the cache at the least."""
MOST_COLD = 0.1
"""Share of a cold prompt's tokens that may come from the cache: a template's beginning."""
LIMIT_KL = 0.1
"""Mean distance of an answer's distributions, in nats: rounding makes some thousandths."""
ROUNDINGS = 10.0
"""Mean distance of warm answers from cold ones, one at a time, in multiples of that between two batch sizes,
which rounding makes. A position that is off by one moves probabilities of bfloat16 no farther than rounding
does, and those of float32 far beyond."""
FINE = 1e-8
"""Largest distance that counts as rounding of single precision; 4e-12 was seen on a CPU. In bfloat16,
prefills of different lengths may be farther apart than batches are, and nothing is concluded."""
LEAST_KL = 1e-6


def cells(context: Context, seen: Mapping[str, Observation]) -> Iterator[Cell]:
    """Yield trials of the documents, and once their tokens are known the documents cold, warm and warm again.

    The time of the trials makes the documents those of this run: a server that runs for long still has the
    ones of the run before in its cache.
    """
    seed, sizes = context.profile.seed, sizings(context, LENGTH)
    if not sizes:
        return
    trials = _cell(context, "lengths", "trial", 1, [write_sized(one, seed, "trial") for one in sizes])
    yield trials
    trial = seen.get(trials.key)
    if trial is None or not trial.counted:
        return
    tokens = {sample.prompt: sample.prompt_tokens for sample in trial.counted}
    longest = context.main.max_model_len
    longest = longest - LENGTH if longest > 0 else 1 << 40
    prompts = []
    for sizing, tried in zip(sizes, trials.prompts, strict=True):
        for offset in OFFSETS:
            words = missing_words(sizing, tokens.get(tried.name, 0), offset, longest)
            if tokens.get(tried.name) and words is not None:
                salt = digest_of([trial.samples[0].started, offset])[:12]
                prompts.append(write_sized(sizing, seed, salt, words, f"{offset:+d}"))
    for cache, level in (("cold", 1), *WARM) if prompts else ():
        yield _cell(context, f"{cache} c={level}", cache, level, prompts)


def judge(context: Context, seen: CheckedCells) -> list[Finding]:
    """Return one finding, on answers that differ."""
    if not seen.planned:
        block, longest = block_sizes(context)[0], context.main.max_model_len
        why = f"no prompt of several blocks of {block} fits into {longest} tokens"
        return [not_applicable(seen, "prefix.answers", why)]
    cold = next(iter(seen.tagged(cache="cold").sound), None)
    warm = [o for cache, _ in WARM for o in seen.tagged(cache=cache).sound]
    against: list[Reason] = [(Verdict.INCONCLUSIVE, "there are no answers to compare")]
    measured: Values = {}
    if cold is not None and warm:
        found = answers_agree((cold, o) for o in warm)
        against = list(found.against)
        if not against:
            against, measured = _compared(context, cold, warm, found)
    return [
        conclude(
            seen,
            "prefix.answers",
            against=against,
            passed=f"{measured.get('answers that differ', 0)} of {measured.get('answers', 0)} warm"
            f" answers differ, none by more than {measured.get('largest gap nat', 0)} nat",
            measured=measured,
            warnings=seen.notes,
        )
    ]


CHECK = Check("prefix", cells, judge)


def _cell(context: Context, name: str, cache: str, level: int, prompts: Sequence[Prompt]) -> Cell:
    return context.cell(
        "prefix",
        name,
        prompts,
        tags={"cache": cache},
        concurrency=level,
        max_tokens=LENGTH,
        logprobs=ALTERNATIVES,
    )


# Judging ------------------------------------------------------------------------------------------------


def _compared(
    context: Context, cold: Observation, warm: Sequence[Observation], found: Agreement
) -> tuple[list[Reason], Values]:
    """Return the reasons against warm answers, or for which nothing can be said, and the figures."""
    means = {
        (describe(o.cell), prompt): mean_of([bounds])
        for o in warm
        for prompt, bounds in distances(cold, o).items()
        if bounds
    }
    share = min(_reused(context, observation) for observation in warm)
    measured: Values = {
        **found.figures,
        "largest mean distance nat": round(max(means.values(), default=0.0), 4),
        "tokens of reusable blocks from the cache %": round(100 * share, 1),
        "block tokens": ", ".join(map(str, block_sizes(context))),
        "prompt tokens": ", ".join(map(str, sorted({s.prompt_tokens for s in cold.counted}))),
    }
    if unused := _never_hit(context, cold, warm):
        return [unused], measured
    if undecided := _unfit(context, cold, share):
        return undecided, measured
    moved = _beyond_rounding(cold, warm, measured)
    wrong = {
        (describe(cell), one.prompt): (one.gap, str(one))
        for cell, pairing in found.pairings
        for one in pairing.found
        if one.gap > LIMIT_NAT
    }
    for (where, prompt), mean in means.items():
        if mean > LIMIT_KL and (where, prompt) not in wrong:
            wrong[where, prompt] = (0.0, f"{prompt}: probabilities are {mean:.2f} nat apart in the mean")
    return [_dependent(context, cold, wrong, len(found.gaps))] if wrong else moved, measured


def _beyond_rounding(cold: Observation, warm: Sequence[Observation], measured: Values) -> list[Reason]:
    """Return the reason against warm answers that are farther from cold ones than rounding puts them.

    Two batch sizes give the distance that rounding makes on this server. Nothing is said where it is none,
    since requests were served one after another, or where it is not that of single precision.
    """
    by_level = {observation.cell.load.concurrency: observation for observation in warm}
    alone, several = by_level.get(1), by_level.get(max(by_level))
    if alone is None or several is None or several is alone:
        return []
    moved, rounding = mean_distance([(cold, alone)]), mean_distance([(alone, several)])
    measured |= {"mean distance nat": float(f"{moved:.3g}"), "of rounding nat": float(f"{rounding:.3g}")}
    if not 0 < rounding <= FINE or moved <= max(LEAST_KL, ROUNDINGS * rounding):
        return []
    cause = (
        f"in {describe(alone.cell)} answers depend on the prefix cache: probabilities are {moved:.2g} nat"
        f" from the cold ones in the mean, {moved / rounding:.0f} times as far as rounding puts them"
        f" ({rounding:.2g} nat between two batch sizes)"
    )
    return [(Verdict.FAIL, cause)]


def _dependent(
    context: Context, cold: Observation, wrong: dict[tuple[str, str], tuple[float, str]], total: int
) -> Reason:
    """Return the reason against *wrong* answers: their number, their lengths and the worst of them."""
    tokens = {sample.prompt: sample.prompt_tokens for sample in cold.counted}
    kinds = {prompt: _kind(context, tokens[prompt]) for prompt in tokens}
    hit = {kinds[prompt] for _, prompt in wrong}
    where, _ = max(wrong, key=lambda key: wrong[key][0])
    shown = max(wrong.values())[1]
    cause = f"{len(wrong)} of {total} answers depend on the prefix cache, such as in {where} {shown}"
    if len(hit) < len(set(kinds.values())):
        cause += f"; all of them to prompts of {' and '.join(sorted(hit))}"
    return Verdict.FAIL, cause + _known_garbage(context.main)


def _known_garbage(facts: BootFacts) -> str:
    """Return what upstream knows of wrong answers after a hit with such a drafter; empty for others."""
    from packaging.version import InvalidVersion, Version

    try:
        since = Version(facts.version) >= Version("0.30")
    except InvalidVersion:
        return ""
    if not since or facts.speculative_method not in {"dflash", "dspark"}:
        return ""
    return (
        "; vllm#60174 is of this kind: DFlash 2 and DSpark drafters over NVFP4 weights, from 0.30 on, open"
        " when last seen. Serve without prefix caching, by another method, or by FP8 weights"
    )


def _never_hit(context: Context, cold: Observation, warm: Sequence[Observation]) -> Reason | None:
    """Return the reason against a cache that was looked up and had nothing, though all fit into it."""
    facts = context.main
    counts = [_hits(observation) for observation in warm]
    fits = facts.kv_tokens < 0 or sum(sample.prompt_tokens for sample in cold.counted) <= facts.kv_tokens
    if not fits or any(hits > 0 or looked_up <= 0 for hits, looked_up in counts):
        return None
    cause = "no token of any repeated document came from the prefix cache"
    if facts.speculative_tokens > 0:
        cause += "; vllm#54360 is of this kind: a hybrid model with a drafter whose hits are all lost"
    return Verdict.FAIL, cause


def _kind(context: Context, tokens: int) -> str:
    """Return the kind of a prompt's length, in words."""
    block = block_sizes(context)[-1]
    kinds = {
        block - 1: f"one token less than a multiple of {block}",
        1: f"one token more than a multiple of {block}",
        0: f"a multiple of {block} tokens",
    }
    return kinds.get(tokens % block, "other lengths")


def _unfit(context: Context, cold: Observation, share: float) -> list[Reason]:
    """Return the reasons for which answers say nothing of the cache."""
    found: list[Reason] = []
    if share < LEAST_HIT:
        shown = f"{share:.0%} of the warm prompts' tokens in reusable blocks were cached"
        found.append((Verdict.INCONCLUSIVE, f"{shown}: the cache was not hit"))
    hits, looked_up = _hits(cold)
    if looked_up > 0 and hits / looked_up > MOST_COLD:
        shown = f"{hits / looked_up:.0%} of the cold prompts' tokens were cached"
        found.append((Verdict.INCONCLUSIVE, f"{shown}: there is nothing to compare with"))
    for block in block_sizes(context):
        rests = {sample.prompt_tokens % block for sample in cold.counted}
        if missing := [offset for offset in OFFSETS if offset % block not in rests]:
            shown = ", ".join(f"n * {block}{f' {offset:+d}' * bool(offset)}" for offset in missing)
            found.append((Verdict.INCONCLUSIVE, f"no prompt came to {shown} tokens"))
    return found


def _hits(observation: Observation) -> tuple[float, float]:
    """Return the prompt tokens from the cache, and those looked up; zeros where no counter says so."""
    before, after = observation.before, observation.after
    if before is None or after is None or min(before.prefix_queries, before.prefix_hits) < 0:
        return 0.0, 0.0
    return after.prefix_hits - before.prefix_hits, after.prefix_queries - before.prefix_queries


def _reused(context: Context, observation: Observation) -> float:
    """Return the tokens from the cache over those of all blocks that may come from it.

    The last token is always computed, and with a drafter the last of the full blocks may be too.
    """
    block = block_sizes(context)[-1]
    drafts = int(context.main.speculative_tokens > 0)
    reusable = sum(
        max(0, (sample.prompt_tokens - 1) // block - drafts) * block for sample in observation.counted
    )
    return _hits(observation)[0] / reusable if reusable else 0.0


# Documents of an exact length -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizing:
    """One document whose length is to be a *multiple* of blocks of *block* tokens."""

    block: int
    multiple: int

    @property
    def name(self) -> str:
        """Name within a run, such as ``16x10``."""
        return f"{self.block}x{self.multiple}"


def block_sizes(context: Context) -> tuple[int, ...]:
    """Return the tokens of blocks to test, the largest last; hybrids may have several."""
    return context.main.block_sizes or (USUAL_BLOCK,)


def sizings(context: Context, answer_tokens: int) -> tuple[Sizing, ...]:
    """Return the documents to size: three multiples of each block size, as far as requests may be so long.

    A drafter that reads hidden states has the last cached block computed again, so that there is one more.
    """
    longest = context.main.max_model_len
    longest = (longest if longest > 0 else _LONGEST) - answer_tokens - max(OFFSETS)
    least = 2 if SPECULATION in context.lacks else 3
    found = []
    for block in block_sizes(context):
        first = max(least, -(-_LEAST_TOKENS // block))
        found += [Sizing(block, first + more) for more in _MULTIPLES if (first + more) * block <= longest]
    return tuple(found)


def write_sized(sizing: Sizing, seed: int, salt: str, words: int = 0, label: str = "") -> Prompt:
    """Return a document of *sizing* with *words* more words, a token each; `expect` is the code in it.

    Another *salt* gives another mark and code, of as many tokens; *label* is the end of its name.
    """
    random_ = random.Random(f"sized {sizing.name} {seed}")  # noqa: S311 - words, not secrets
    name = random_.choice(_NAMES)
    number = int(digest_of(["sized", sizing.name, seed, salt])[:15], 16)
    mark, code = f"{number % 10**12:012d}", f"{100_000 + number // 10**12 % 900_000}"
    tokens = max(1, int(_FILLED * (sizing.block * sizing.multiple - _LEAST_TOKENS / 2)))
    notes = write_notes(tokens, seed + sizing.block * sizing.multiple)
    head, _, rest = notes.partition("\n\n")
    padding = "".join(f" {word}" for word in random_.choices(_WORDS.split(), k=words))
    text = (
        f"Record {mark}.\n{head}\n\nThe code for {name} is {code}.\n\n{rest}\nIndex:{padding}\n\n"
        f"Question: What is the code for {name}?\nAnswer: The code for {name} is"
    )
    return Prompt(name=f"sized/{sizing.name}{label}/{mark}", category="extraction", text=text, expect=code)


def missing_words(sizing: Sizing, tokens: int, offset: int, longest: int) -> int | None:
    """Return the words that bring a document of *tokens* to a multiple of the block size and *offset*.

    Where it is longer than was wanted, the next multiple is taken; `None` if that is beyond *longest*.
    """
    multiple = max(sizing.multiple, -(-(tokens - offset) // sizing.block))
    wanted = multiple * sizing.block + offset
    return wanted - tokens if wanted <= longest else None
