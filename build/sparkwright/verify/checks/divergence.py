"""First differences of greedy answers to one prompt, and the log-probability gap there.

Greedy answers of two healthy servers differ: rounding depends on kernels, those on the batch, and a near tie
may fall either way, after which nothing can be compared. So only the first difference of a pair of answers is
used: the log-probability gap of its two tokens in the reference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparkwright.engine.observations import Observation, Sample

BLOCK = 16
"""Tokens in a block of vLLM's KV cache on CUDA."""
_CHANCE = 1e-3
_LEAST_AT_ONE_PLACE = 4


class NoLogprobsError(ValueError):
    """A server sent no log-probabilities for what it generated."""


@dataclass(frozen=True)
class Difference:
    """The first token at which an answer leaves the reference.

    Attributes:
        position: of the token in the output, from 0.
        place: of the token in the whole sequence, prompt included.
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


@dataclass(frozen=True)
class Cluster:
    """More differences at one place than chance puts there.

    Attributes:
        what: the place, in words.
        count: prompts whose answers differ there.
        expected: number expected by chance.
        p: probability of so many at any place by chance.
    """

    what: str
    count: int
    expected: float
    p: float

    def __str__(self) -> str:
        return f"{self.count} answers part {self.what}, where chance would have {self.expected:.1f}"


def find_cluster(observed: Sequence[Pairing], null: Sequence[Pairing]) -> Cluster | None:
    """Return the clearest place at which answers differ more often than elsewhere, and than in the null.

    Tried are each position in the output, and each place within a block of the KV cache. If differences come
    at the same rate everywhere, their number at one place is about Poisson distributed; the chance is
    multiplied by the number of places. Each prompt counts once at a place, however often it was asked.
    """
    ways: tuple[tuple[Callable[[Difference], int], Callable[[int], str]], ...] = (
        (lambda difference: difference.position, lambda at: f"at output token {at}"),
        (
            lambda difference: difference.place % BLOCK,
            lambda at: f"at the same place in a KV block, {at} of {BLOCK}",
        ),
    )
    clusters = []
    for number, (key, name) in enumerate(ways):
        counts, others = _prompts_at(observed, key), _prompts_at(null, key)
        exposed = [length for pairing in observed for length in pairing.lengths]
        total = sum(counts.values())
        for place, count in counts.items():
            places = max(exposed) if number == 0 else BLOCK
            expected = total * _share(place, exposed) if number == 0 else total / BLOCK
            p = min(1.0, places * _poisson_tail(count, expected))
            if count >= _LEAST_AT_ONE_PLACE and p < _CHANCE and others[place] < count / 2:
                clusters.append(Cluster(name(place), count, expected, p))
    return min(clusters, key=lambda cluster: cluster.p, default=None)


def _prompts_at(pairings: Sequence[Pairing], key: Callable[[Difference], int]) -> Counter[int]:
    """Return the number of prompts that differ at each place."""
    places = {(d.prompt, key(d)) for pairing in pairings for d in pairing.found}
    return Counter(place for _, place in places)


def _share(position: int, lengths: Sequence[int]) -> float:
    """Return the share of all compared tokens that are at *position*."""
    return sum(length > position for length in lengths) / sum(lengths)


def _poisson_tail(count: int, mean: float) -> float:
    """Return the chance of *count* or more."""
    below = math.fsum(math.exp(-mean + i * math.log(mean) - math.lgamma(i + 1)) for i in range(count))
    return max(0.0, 1 - below)
