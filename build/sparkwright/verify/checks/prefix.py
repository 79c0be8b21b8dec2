"""Comparison of greedy answers whose prompt came from the prefix cache with those computed in full.

Prompts are of lengths around multiples of the KV cache's block size: one token short of it, exactly so many,
and one more. There the last reused block, the first computed token and, in hybrids, the state to go on from
change places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkwright.base.digests import digest_of
from sparkwright.engine.capabilities import METRICS, PREFIX_CACHE
from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.verify.check import Context, RegisteredCheck
from sparkwright.verify.checks.blocks import OFFSETS, block_sizes, missing_words, sizings, write_sized
from sparkwright.verify.checks.common import (
    CheckedCells,
    Reason,
    conclude,
    describe,
    main_facts,
    not_applicable,
    triage,
)
from sparkwright.verify.checks.distance import distances
from sparkwright.verify.checks.divergence import NoLogprobsError, pair
from sparkwright.verify.checks.lossless import ALTERNATIVES, LIMIT_NAT
from sparkwright.verify.corpus import holds

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
MOST_LOST = 1


@dataclass(frozen=True)
class Prefix:
    """Documents once cold, then again one at a time, and once more several at a time."""

    name: str = "prefix"

    def plan(self, context: Context) -> tuple[Cell, ...]:
        """Return the cell whose requests show how many tokens the documents have."""
        seed = context.profile.seed
        trials = tuple(write_sized(one, seed, "trial") for one in sizings(context, LENGTH))
        return (_cell("lengths", "trial", 1, trials, seed),) if trials else ()

    def extend(self, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
        """Return the cold cell and the warm ones, once the documents' tokens are known."""
        seen = {observation.cell.key for observation in observations}
        return tuple(cell for cell in _planned(self, context, observations) if cell.key not in seen)

    def judge(self, context: Context, observations: Sequence[Observation]) -> list[Finding]:
        """Return a finding on answers that differ, and one on codes that are read from cached prompts."""
        seen = triage(self, context, observations, _planned(self, context, observations))
        return [_differences(context, seen), _codes(context, seen)]


CHECK = RegisteredCheck(Prefix(), profiles={"full": 85, "cpu": 45})


# Cells --------------------------------------------------------------------------------------------------


def _cell(name: str, cache: str, level: int, prompts: tuple[Prompt, ...], seed: int) -> Cell:
    load = Load(concurrency=level, requests=len(prompts), max_tokens=LENGTH, logprobs=ALTERNATIVES, seed=seed)
    return Cell(check="prefix", name=name, load=load, prompts=prompts, tags={"cache": cache})


def _planned(check: Prefix, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
    """Return all cells: the trials, and what follows from the tokens that their requests had.

    The time of the trials makes the documents those of this run: a server that runs for long still has the
    ones of the run before in its cache.
    """
    trials = check.plan(context)
    by_key = {observation.cell.key: observation for observation in observations}
    trial = by_key.get(trials[0].key) if trials else None
    if trial is None or not trial.counted:
        return trials
    tokens = {sample.prompt: sample.prompt_tokens for sample in trial.counted}
    seed = context.profile.seed
    longest = main_facts(context).max_model_len
    longest = longest - LENGTH if longest > 0 else 1 << 40
    prompts = []
    for sizing, tried in zip(sizings(context, LENGTH), trials[0].prompts, strict=True):
        for offset in OFFSETS:
            words = missing_words(sizing, tokens.get(tried.name, 0), offset, longest)
            if tokens.get(tried.name) and words is not None:
                salt = digest_of([trial.samples[0].started, offset])[:12]
                prompts.append(write_sized(sizing, seed, salt, words, f"{offset:+d}"))
    if not prompts:
        return trials
    cells = [("cold c=1", "cold", 1), *((f"{cache} c={level}", cache, level) for cache, level in WARM)]
    return (
        *trials, *(_cell(name, cache, level, tuple(prompts), seed) for name, cache, level in cells)
    )  # fmt: skip


# Judging ------------------------------------------------------------------------------------------------


@dataclass
class _Compared:
    """Warm answers beside the cold ones.

    Attributes:
        against: reasons against the server, or for which nothing can be said.
    """

    against: list[Reason] = field(default_factory=list)
    measured: dict[str, float | str] = field(default_factory=dict)


def _differences(context: Context, seen: CheckedCells) -> Finding:
    name = "answers do not depend on the prefix cache"
    definition = (
        "Greedy answers about documents that are not cached, and twice more when they are, of lengths around"
        " multiples of the KV cache's block size: at the first token where an answer leaves the cold one, by"
        " how much less likely it is there; and up to there, how far the tokens' probabilities differ."
    )
    if not seen.planned:
        block, longest = block_sizes(context)[0], main_facts(context).max_model_len
        return not_applicable(
            seen, name, definition, f"no prompt of several blocks of {block} fits into {longest} tokens"
        )
    try:
        compared = _compare(context, seen)
    except NoLogprobsError as error:
        compared = _Compared([(Verdict.INVALID, str(error))])
    measured = compared.measured
    return conclude(
        seen,
        name,
        definition,
        against=compared.against,
        passed=f"{measured.get('answers that differ', 0)} of {measured.get('answers', 0)} warm"
        f" answers differ, none by more than {measured.get('largest gap nat', 0)} nat",
        threshold=f"no gap above {LIMIT_NAT} nat, no answer with a mean distance above {LIMIT_KL} nat, and"
        f" in single precision answers one at a time at most {ROUNDINGS:.0f} times as far as two batch sizes"
        " are from each other, and any hit of documents that fit into the cache;"
        f" decides nothing where less than {LEAST_HIT:.0%} of the reusable blocks' tokens come from the"
        " cache, or where no prompt is of such a length",
        measured=measured,
        warnings=seen.notes,
        needs=(METRICS, PREFIX_CACHE),
    )


def _compare(context: Context, seen: CheckedCells) -> _Compared:
    """Return the comparison of warm answers with cold ones.

    Raises:
        NoLogprobsError: an answer has no log-probabilities where they are needed.
    """
    cold = next(iter(seen.tagged(cache="cold").sound), None)
    warm = [o for cache, _ in WARM for o in seen.tagged(cache=cache).sound]
    if cold is None or not warm:
        return _Compared([(Verdict.INCONCLUSIVE, "there are no answers to compare")])
    pairings = [(o.cell, pair(cold, o)) for o in warm]
    gaps = [gap for _, pairing in pairings for gap in pairing.gaps]
    means = {
        (describe(o.cell), prompt): sum(bounds) / len(bounds)
        for o in warm
        for prompt, bounds in distances(cold, o).items()
        if bounds
    }
    share = min(_reused(context, observation) for observation in warm)
    measured: dict[str, float | str] = {
        "answers": len(gaps),
        "answers that differ": sum(gap > 0 for gap in gaps),
        "largest gap nat": round(max(gaps, default=0.0), 4),
        "largest mean distance nat": round(max(means.values(), default=0.0), 4),
        "tokens of reusable blocks from the cache %": round(100 * share, 1),
        "block tokens": ", ".join(map(str, block_sizes(context))),
        "prompt tokens": ", ".join(map(str, sorted({s.prompt_tokens for s in cold.counted}))),
    }
    if unused := _never_hit(context, cold, warm):
        return _Compared([unused], measured)
    if undecided := _unfit(context, cold, share):
        return _Compared(undecided, measured)
    moved = _beyond_rounding(cold, warm, measured)
    wrong = {
        (describe(cell), found.prompt): (found.gap, str(found))
        for cell, pairing in pairings
        for found in pairing.found
        if found.gap > LIMIT_NAT
    }
    for (where, prompt), mean in means.items():
        if mean > LIMIT_KL and (where, prompt) not in wrong:
            wrong[where, prompt] = (0.0, f"{prompt}: probabilities are {mean:.2f} nat apart in the mean")
    return _Compared([_dependent(context, cold, wrong, len(gaps))] if wrong else moved, measured)


def _beyond_rounding(
    cold: Observation, warm: Sequence[Observation], measured: dict[str, float | str]
) -> list[Reason]:
    """Return the reason against warm answers that are farther from cold ones than rounding puts them.

    Two batch sizes give the distance that rounding makes on this server. Nothing is said where it is none,
    since requests were served one after another, or where it is not that of single precision.
    """
    by_level = {observation.cell.load.concurrency: observation for observation in warm}
    alone, several = by_level.get(1), by_level.get(max(by_level))
    if alone is None or several is None or several is alone:
        return []
    moved, rounding = _mean_distance(cold, alone), _mean_distance(alone, several)
    measured |= {"mean distance nat": float(f"{moved:.3g}"), "of rounding nat": float(f"{rounding:.3g}")}
    if not 0 < rounding <= FINE or moved <= max(LEAST_KL, ROUNDINGS * rounding):
        return []
    cause = (
        f"in {describe(alone.cell)} answers depend on the prefix cache: probabilities are {moved:.2g} nat"
        f" from the cold ones in the mean, {moved / rounding:.0f} times as far as rounding puts them"
        f" ({rounding:.2g} nat between two batch sizes)"
    )
    return [(Verdict.FAIL, cause)]


def _mean_distance(reference: Observation, other: Observation) -> float:
    """Return the mean distance of distributions over all answers, each up to its first difference."""
    bounds = [bound for found in distances(reference, other).values() for bound in found]
    return sum(bounds) / len(bounds) if bounds else 0.0


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
    return Verdict.FAIL, cause + _known_garbage(main_facts(context))


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
    facts = main_facts(context)
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
    rest = tokens % block
    if rest == 0:
        return f"a multiple of {block} tokens"
    if rest == 1:
        return f"one token more than a multiple of {block}"
    return f"one token less than a multiple of {block}" if rest == block - 1 else "other lengths"


def _unfit(context: Context, cold: Observation, share: float) -> list[Reason]:
    """Return the reasons for which answers say nothing of the cache."""
    found: list[Reason] = []
    if share < LEAST_HIT:
        shown = f"{share:.0%} of the warm prompts' tokens in reusable blocks were cached"
        found.append((Verdict.INCONCLUSIVE, f"{shown}: the cache was not hit"))
    if _hit_share(cold) > MOST_COLD:
        shown = f"{_hit_share(cold):.0%} of the cold prompts' tokens were cached"
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


def _hit_share(observation: Observation) -> float:
    hits, looked_up = _hits(observation)
    return hits / looked_up if looked_up > 0 else 0.0


def _reused(context: Context, observation: Observation) -> float:
    """Return the tokens from the cache over those of all blocks that may come from it.

    The last token is always computed, and with a drafter the last of the full blocks may be too.
    """
    block = block_sizes(context)[-1]
    drafts = int(main_facts(context).speculative_tokens > 0)
    reusable = sum(
        max(0, (sample.prompt_tokens - 1) // block - drafts) * block for sample in observation.counted
    )
    return _hits(observation)[0] / reusable if reusable else 0.0


def _codes(context: Context, seen: CheckedCells) -> Finding:
    """Return a finding on the code that each document states."""
    right = {cache: _right(seen.tagged(cache=cache).sound) for cache in ("cold", "warm", "again")}
    known = {name for name, found in right["cold"].items() if found}
    against: list[Reason] = []
    for cache, _ in WARM:
        lost = sorted(name for name in known if not right[cache].get(name, True))
        if len(lost) > MOST_LOST:
            shown = f"{len(lost)} of {len(known)} codes that were read from cold documents are wrong {cache}"
            against.append((Verdict.FAIL, f"{shown}, first that of {lost[0]}"))
    name = "what cached documents say is read"
    definition = "The code that a document states, in answers to the document cold and from the cache."
    if context.made_up:
        return not_applicable(seen, name, definition, "the model's weights are made up")
    if seen.tagged(cache="cold").sound and not known:
        return not_applicable(seen, name, definition, "this model reads no code from cold documents either")
    if not seen.planned:
        return not_applicable(seen, name, definition, "no prompt of several blocks fits")
    return conclude(
        seen,
        name,
        definition,
        against=against,
        passed="; ".join(f"{cache}: {sum(found.values())} of {len(found)}" for cache, found in right.items()),
        threshold=f"at most {MOST_LOST} of the codes that are right with a cold document are lost",
        measured={f"{cache} right": sum(found.values()) for cache, found in right.items()},
        lenient=True,
        needs=(METRICS, PREFIX_CACHE),
    )


def _right(observations: Sequence[Observation]) -> dict[str, bool]:
    """Tell for each document if its code is in the answer."""
    return {
        sample.prompt: holds(prompt.expect, sample.answer)
        for observation in observations
        for prompt in observation.cell.prompts
        for sample in observation.counted
        if sample.prompt == prompt.name
    }
