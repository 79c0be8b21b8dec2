"""Comparison of answers to the same prompts: greedy tokens, their probabilities, and solved tasks.

Greedy answers of two healthy servers differ: rounding depends on kernels, those on the batch, and a near tie
may fall either way, after which nothing can be compared. So only the first difference of a pair of answers is
used: the log-probability gap of its two tokens in the reference. `answers_agree` is the comparison of every
check, whatever its reference: a plain server, another wheel, a stored file, a cold cache, an earlier run.

Distances of next-token distributions are taken where both servers had generated the same tokens before.
Servers report a few of the most likely tokens alone, so the Kullback-Leibler divergence is bounded from
below: each token is a term p ln(p/q) - p + q, which is never negative and grows as p and q part. Of a token
that one side does not report, that side's probability is at most that of its least likely reported token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Verdict
from sparkwright.engine.observations import Observation, Sample
from sparkwright.verify.checks.common import answered
from sparkwright.verify.checks.triage import Reason, describe
from sparkwright.verify.corpus import holds
from sparkwright.verify.statistics import mcnemar

ALTERNATIVES = 5
"""Log-probabilities that are requested with each token."""
LIMIT_NAT = 0.5
"""A gap that rounding does not explain: at logits around 20, bfloat16 has steps of 0.125."""
MARGIN = 2.0
"""Least distance of a gap beyond the largest of a server from itself. That is the largest of some dozen gaps,
and the largest of as many others exceeds it in every other run of two equal servers, if only by a little."""
NOISY_NAT = 1.0
"""Gap of a server from itself beyond which nothing can be compared with it."""
BLOCK = 16
"""Tokens in a block of vLLM's KV cache on CUDA."""
_CHANCE = 1e-3
_LEAST_AT_ONE_PLACE = 4
_LEAST = -50.0
"""Log-probabilities below are taken for this one: vLLM writes -9999 for minus infinity."""

Pair = tuple[Observation, Observation]
"""Answers of a reference, and others to the same prompts."""


class NoLogprobsError(ValueError):
    """A server sent no log-probabilities for what it generated."""


@dataclass(frozen=True)
class Difference:
    """The first token at which an answer leaves the reference.

    Attributes:
        position: of the token in the output, from 0; *place* is that in the whole sequence, prompt included.
        gap: log-probability of the reference's most likely token there less that of the other answer's token,
            both as the reference has them, in nats.
        least: true if the gap is a lower bound: the token was not among the reference's alternatives.
    """

    prompt: str
    position: int
    place: int
    gap: float
    least: bool = False

    def __str__(self) -> str:
        size = f"{'at least ' * self.least}{self.gap:.2f} nat"
        return f"{self.prompt} at token {self.position}: a token {size} less likely than the most likely one"


@dataclass(frozen=True)
class Pairing:
    """All answers of one cell beside those of the reference.

    Attributes:
        differences: by prompt, in order; `None` where the answers are the same.
        lengths: tokens that were compared, by prompt: up to the first difference or the end.
    """

    differences: tuple[tuple[str, Difference | None], ...]
    lengths: tuple[int, ...]

    @property
    def found(self) -> list[Difference]:
        """All differences."""
        return [difference for _, difference in self.differences if difference is not None]

    @property
    def gaps(self) -> list[float]:
        """Gap by prompt, 0 where answers are the same."""
        return [0.0 if difference is None else difference.gap for _, difference in self.differences]


def pair(reference: Observation, other: Observation) -> Pairing:
    """Return the comparison of answers to the same prompts.

    Raises:
        NoLogprobsError: the reference has no log-probabilities where they are needed.
    """
    by_prompt = {sample.prompt: sample for sample in reference.counted}
    differences, lengths = [], []
    for sample in other.counted:
        base = by_prompt.get(sample.prompt)
        if base is None:
            continue
        one, two = _tokens(base), _tokens(sample)
        length = min(len(one), len(two))
        position = next((i for i in range(length) if one[i] != two[i]), None)
        found = None if position is None else _difference(base, sample, position)
        differences.append((sample.prompt, found))
        lengths.append(length if position is None else position + 1)
    return Pairing(tuple(differences), tuple(lengths))


def _tokens(sample: Sample) -> tuple[object, ...]:
    """Return the tokens of an answer, by id where they are known."""
    if sample.token_ids:
        return sample.token_ids
    if sample.logprobs:
        return tuple(entry.token for entry in sample.logprobs)
    raise NoLogprobsError(f"the answer to {sample.prompt} came without token ids and log-probabilities")


def _difference(base: Sample, other: Sample, position: int) -> Difference:
    if position >= len(base.logprobs) or not base.logprobs[position].top:
        raise NoLogprobsError(f"the answer to {base.prompt} has no log-probabilities at token {position}")
    top = base.logprobs[position].top
    known = position < len(other.logprobs)
    token = other.logprobs[position].token if known else f"token_id:{other.token_ids[position]}"
    likely = max(top.values())
    gap = likely - top.get(token, min(top.values()))
    return Difference(base.prompt, position, base.prompt_tokens + position, gap, token not in top)


@dataclass(frozen=True)
class Agreement:
    """Answers beside those of a reference, and the reference beside itself.

    Attributes:
        pairings: by cell.
        null: of answers that differ by rounding alone, such as those of the reference at two batch sizes.
        against: reason for which nothing can be compared.
    """

    pairings: tuple[tuple[Cell, Pairing], ...] = ()
    null: tuple[Pairing, ...] = ()
    against: tuple[Reason, ...] = ()

    @cached_property
    def gaps(self) -> list[float]:
        """Gap of each answer, 0 where it is the reference's."""
        return [gap for _, pairing in self.pairings for gap in pairing.gaps]

    @cached_property
    def null_gaps(self) -> list[float]:
        """The same of the reference from itself."""
        return [gap for pairing in self.null for gap in pairing.gaps]

    @property
    def usual(self) -> float:
        """Largest gap of the reference from itself."""
        return max(self.null_gaps, default=0.0)

    @property
    def limit(self) -> float:
        """Gap that rounding does not explain."""
        return max(LIMIT_NAT, MARGIN * self.usual)

    @property
    def fewest(self) -> int:
        """Smallest number of prompts of a cell that were compared."""
        return min((len(pairing.lengths) for _, pairing in self.pairings), default=0)

    @property
    def figures(self) -> dict[str, float | str]:
        """Number of answers, of those that differ, and the largest gap."""
        return {
            "answers": len(self.gaps),
            "answers that differ": sum(gap > 0 for gap in self.gaps),
            "largest gap nat": round(max(self.gaps, default=0.0), 4),
        }

    def beyond(self, limit: float, how: str) -> str:
        """Return number and worst of the answers that part by more than *limit*; empty without any."""
        found = [
            (difference, describe(cell))
            for cell, pairing in self.pairings
            for difference in pairing.found
            if difference.gap > limit
        ]
        if not found:
            return ""
        worst, where = max(found, key=lambda entry: entry[0].gap)
        return f"{len(found)} of {len(self.gaps)} answers {how}, such as in {where} {worst}"


def answers_agree(pairs: Iterable[Pair], null: Iterable[Pair] = ()) -> Agreement:
    """Return the comparison of greedy answers with a reference's, and of the *null* with itself."""
    try:
        own = tuple(pair(reference, other) for reference, other in null)
        return Agreement(tuple((other.cell, pair(reference, other)) for reference, other in pairs), own)
    except NoLogprobsError as error:
        return Agreement(against=((Verdict.INVALID, str(error)),))


def too_noisy(who: str, gap: float) -> list[Reason]:
    """Return the reason for which nothing can be compared with a server that differs from itself by *gap*."""
    if gap <= NOISY_NAT:
        return []
    return [(Verdict.INCONCLUSIVE, f"{who} at tokens {gap:.2f} nat apart, too far for a comparison")]


def own_gaps(observation: Observation) -> list[tuple[str, int, float]]:
    """Return the gap of each generated token to the most likely one, as the server itself reports it.

    Returns:
        Prompt, position and gap in nats of every token, zeros included; a greedy server has nothing else.

    Raises:
        NoLogprobsError: an answer has no log-probabilities.
    """
    gaps = []
    for sample in observation.counted:
        if not sample.logprobs:
            raise NoLogprobsError(f"the answer to {sample.prompt} has no log-probabilities")
        for position, entry in enumerate(sample.logprobs):
            # One without text is the answer's end: llama.cpp forbids it where a length is requested, and
            # reports it all the same.
            likely = max((value for token, value in entry.top.items() if token), default=entry.logprob)
            gaps.append((sample.prompt, position, max(0.0, likely - entry.logprob)))
    return gaps


# Fixed places --------------------------------------------------------------------------------------------


def find_cluster(observed: Sequence[Pairing], null: Sequence[Pairing]) -> str:
    """Return the clearest place at which answers differ more often than elsewhere, and than in the null.

    Tried are each position in the output, and each place within a block of the KV cache. If differences come
    at the same rate everywhere, their number at one place is about Poisson distributed; the chance is
    multiplied by the number of places. Each prompt counts once at a place, however often it was asked.

    Returns:
        Number of answers and place, in words; empty if there is none.
    """
    from scipy.special import pdtrc

    ways: tuple[tuple[Callable[[Difference], int], Callable[[int], str]], ...] = (
        (lambda difference: difference.position, lambda at: f"at output token {at}"),
        (
            lambda difference: difference.place % BLOCK,
            lambda at: f"at the same place in a KV block, {at} of {BLOCK}",
        ),
    )
    clusters: list[tuple[float, str]] = []
    exposed = [length for pairing in observed for length in pairing.lengths]
    for number, (key, name) in enumerate(ways):
        counts, others = _prompts_at(observed, key), _prompts_at(null, key)
        total = sum(counts.values())
        for place, count in counts.items():
            places, share = BLOCK, 1 / BLOCK
            if number == 0:  # of all compared tokens, those that are at this position
                places, share = max(exposed), sum(length > place for length in exposed) / sum(exposed)
            expected = total * share
            p = min(1.0, places * float(pdtrc(count - 1, expected)))  # so many or more
            if count >= _LEAST_AT_ONE_PLACE and p < _CHANCE and others[place] < count / 2:
                where = f"{count} answers part {name(place)}, where chance would have {expected:.1f}"
                clusters.append((p, where))
    return min(clusters, key=lambda cluster: cluster[0], default=(0.0, ""))[1]


def _prompts_at(pairings: Sequence[Pairing], key: Callable[[Difference], int]) -> Counter[int]:
    """Return the number of prompts that differ at each place."""
    places = {(d.prompt, key(d)) for pairing in pairings for d in pairing.found}
    return Counter(place for _, place in places)


# Distances ----------------------------------------------------------------------------------------------


def kl_bound(reference: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return a lower bound of the divergence of *other* from *reference*, in nats, by log-probabilities."""
    if not reference or not other:
        return 0.0
    most_p, most_q = min(reference.values()), min(other.values())
    bound = 0.0
    for token in reference.keys() | other.keys():
        log_p, log_q = reference.get(token), other.get(token)
        if log_p is None:
            log_q = other[token]
            log_p = min(most_p, log_q)
        elif log_q is None:
            log_q = min(most_q, log_p)
        log_p, log_q = max(log_p, _LEAST), max(log_q, _LEAST)
        p = math.exp(log_p)
        bound += p * (log_p - log_q) - p + math.exp(log_q)
    return max(0.0, bound)


def distances(reference: Observation, other: Observation) -> dict[str, list[float]]:
    """Return by prompt the bound at each token of two answers, up to the first at which they differ.

    Up to there, and at that token too, both servers continue the same text. Prompts without
    log-probabilities on both sides are left out.
    """
    by_prompt = {sample.prompt: sample for sample in reference.counted}
    found: dict[str, list[float]] = {}
    for sample in other.counted:
        base = by_prompt.get(sample.prompt)
        if base is not None and base.logprobs and sample.logprobs:
            bounds = found.setdefault(sample.prompt, [])
            for one, two in zip(base.logprobs, sample.logprobs, strict=False):
                bounds.append(kl_bound(one.top, two.top))
                if one.token != two.token:
                    break
    return found


def mean_of(answers: Iterable[Sequence[float]]) -> float:
    """Return the mean over the tokens of all *answers*; 0 without any."""
    values = [value for bounds in answers for value in bounds]
    return sum(values) / len(values) if values else 0.0


def mean_distance(pairs: Iterable[Pair]) -> float:
    """Return the mean distance of all tokens of *pairs*, of each answer up to its first difference."""
    return mean_of(bounds for pair_ in pairs for bounds in distances(*pair_).values())


# Tasks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solved:
    """Tasks that two servers were given: how many each solved, and which only one of them did."""

    total: int
    before: int
    after: int
    lost: tuple[str, ...]
    won: int

    @classmethod
    def of(cls, before: Mapping[str, bool], after: Mapping[str, bool]) -> Solved:
        """Compare the tasks that both were given."""
        common = sorted(before.keys() & after.keys())
        lost = tuple(name for name in common if before[name] and not after[name])
        won = sum(after[name] and not before[name] for name in common)
        return cls(len(common), sum(before[n] for n in common), sum(after[n] for n in common), lost, won)

    @property
    def p(self) -> float:
        """Chance of so unequal a number of lost and won ones (McNemar's exact test)."""
        return mcnemar(len(self.lost), self.won)


def right_answers(observations: Iterable[Observation]) -> dict[str, bool]:
    """Tell for each answer to a prompt that expects a string, by cell and prompt, if it holds that."""
    return {
        f"{observation.cell.name} {sample.prompt}": holds(expect, sample.text)
        for observation in observations
        for sample, expect in answered(observation)
    }
