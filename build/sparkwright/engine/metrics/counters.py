"""The difference of a server's counters between two snapshots, and what it contradicts.

Definitions are vLLM's (``vllm/v1/spec_decode/metrics.py``): one *draft* is one request in one step with
draft tokens; *accepted* leaves out the token that the target model adds to each draft. With MAL the mean
acceptance length and *k* the drafted tokens per draft, ``MAL = 1 + accepted / drafts = 1 + k * rate``.

A figure without a satisfied identity is not evidence: a crashed engine, a second client on the server, a
harness that counts characters, a drafter's counter with another meaning, all show there first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparkwright.engine.metrics.snapshot import COUNTERS
from sparkwright.engine.observations import MetricsSnapshot, Sample


class CountersResetError(ValueError):
    """Counters decreased, or another process responds: the server was restarted in between."""


class SeriesAbsentError(ValueError):
    """The server does not expose a required counter."""


class SpeculationAbsentError(SeriesAbsentError):
    """The server exposes no counters of speculative decoding: it is off, or has other names."""


@dataclass(frozen=True)
class Speculation:
    """The speculative decoding between two snapshots.

    Without any draft, rates are 0 and the mean acceptance length is 1: each step gave one token.

    Attributes:
        drafts: requests times steps with draft tokens.
        draft_tokens: drafted tokens.
        accepted: drafted tokens that were accepted.
        per_position: the same by position in the draft.
        generation_tokens: generated tokens, drafted or not; -1 if not exposed.
        requests: finished requests; -1 if not exposed.
    """

    drafts: float
    draft_tokens: float
    accepted: float
    per_position: tuple[float, ...]
    generation_tokens: float
    requests: float

    @property
    def acceptance_rate(self) -> float:
        """Return the share of drafted tokens that were accepted, 0 to 1."""
        return _ratio(self.accepted, self.draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """Return tokens per draft and step, with the target model's own (MAL)."""
        return 1 + _ratio(self.accepted, self.drafts)

    @property
    def position_rates(self) -> tuple[float, ...]:
        """Return the share of drafts accepted at each position, 0 to 1; never increasing."""
        return tuple(_ratio(count, self.drafts) for count in self.per_position)

    @property
    def k(self) -> float:
        """Return the tokens per draft."""
        return _ratio(self.draft_tokens, self.drafts)


def speculation(before: MetricsSnapshot, after: MetricsSnapshot) -> Speculation:
    """Return the speculative decoding between two snapshots.

    Raises:
        SpeculationAbsentError: there are no counters of speculative decoding.
        CountersResetError: the server was restarted in between.
    """
    ensure_same_process(before, after)
    if min(after.drafts, after.draft_tokens, after.accepted) < 0:
        raise SpeculationAbsentError("the server exposes no vllm:spec_decode_* counters")
    return Speculation(
        drafts=counter_delta(before, after, "drafts"),
        draft_tokens=counter_delta(before, after, "draft_tokens"),
        accepted=counter_delta(before, after, "accepted"),
        per_position=_position_deltas(before, after),
        generation_tokens=_optional_delta(before, after, "generation_tokens"),
        requests=_optional_delta(before, after, "requests"),
    )


def hit_rate(before: MetricsSnapshot, after: MetricsSnapshot) -> float:
    """Return the share of looked-up prompt tokens found in the prefix cache, 0 to 1; 0 if none was looked up.

    Raises:
        SeriesAbsentError: there are no counters of the prefix cache.
        CountersResetError: the server was restarted in between.
    """
    ensure_same_process(before, after)
    hits = counter_delta(before, after, "prefix_hits")
    return _ratio(hits, counter_delta(before, after, "prefix_queries"))


def step_time_ms(mal: float, decode_rate: float) -> float:
    """Return the time of one verify step, in ms: tokens a step, over tokens a second of one request.

    It separates the engine's speed from the drafter's quality: with one request at a time it does not depend
    on the generated text. In published tables of three models it varies by 1.0 to 2.7 % over six categories.

    Raises:
        ValueError: the rate is not positive, or the length below 1.
    """
    if not decode_rate > 0 or not mal >= 1:
        raise ValueError(f"no step time from {mal} tokens a step and {decode_rate} tokens a second")
    return 1000 * mal / decode_rate


def counter_delta(before: MetricsSnapshot, after: MetricsSnapshot, name: str) -> float:
    """Return the increase of the counter in the field *name*.

    A counter that is absent before and present after was created meanwhile, and so started at 0.

    Raises:
        SeriesAbsentError: it is in neither.
        CountersResetError: it decreased or vanished.
    """
    start, end = getattr(before, name), getattr(after, name)
    if start < 0 and end < 0:
        raise SeriesAbsentError(f"the server exposes no {COUNTERS[name]}")
    if end < max(start, 0):
        went = "went away" if end < 0 else f"went back from {start:.0f} to {end:.0f}"
        raise CountersResetError(f"{COUNTERS[name]} {went}: the server was started again")
    return float(end - max(start, 0))


def ensure_same_process(before: MetricsSnapshot, after: MetricsSnapshot) -> None:
    """Check that one process counted from the first snapshot to the second.

    Raises:
        CountersResetError: the process's start changed, or any counter decreased or vanished.
        ValueError: the second snapshot was taken before the first.
    """
    if after.at < before.at:
        raise ValueError("the second snapshot was taken before the first")
    if after.start_s != before.start_s:
        raise CountersResetError(
            f"the server's start changed from {before.start_s:.2f} to {after.start_s:.2f} s"
        )
    for name in COUNTERS:
        _optional_delta(before, after, name)
    _position_deltas(before, after)


def _optional_delta(before: MetricsSnapshot, after: MetricsSnapshot, name: str) -> float:
    try:
        return counter_delta(before, after, name)
    except SeriesAbsentError:
        return -1.0


def _position_deltas(before: MetricsSnapshot, after: MetricsSnapshot) -> tuple[float, ...]:
    earlier, later = before.accepted_per_position, after.accepted_per_position
    earlier = earlier or (0.0,) * len(later)
    if len(earlier) != len(later) or any(end < start for start, end in zip(earlier, later, strict=True)):
        raise CountersResetError("accepted tokens by position went back: the server was started again")
    return tuple(end - start for start, end in zip(earlier, later, strict=True))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


TOKENS_LIMIT = 0.03  # steps without drafts, near the longest length, and structured output
CLIENTS_LIMIT = 0.01  # a canary beside the load
EXACT_LIMIT = 1e-9  # counters are whole numbers


@dataclass(frozen=True)
class Identity:
    """One equality or bound that must hold.

    Attributes:
        deviation: its deviation, as a share of the larger side; 0 is exact.
        limit: the largest allowed deviation.
    """

    name: str
    deviation: float
    limit: float

    @property
    def broken(self) -> bool:
        """Tell if it does not hold."""
        return not self.deviation <= self.limit


def identities(
    before: MetricsSnapshot, after: MetricsSnapshot, samples: Sequence[Sample], *, steps: float = 0
) -> tuple[Identity, ...]:
    """Return all identities that the exposed counters allow to check.

    Args:
        before: counters while the server was idle, before the load.
        after: counters while the server was idle, after the load.
        samples: every request sent in between, warm-ups and failed ones included.
        steps: requests times steps of the engine that there may have been, with and without drafts; 0 if
            each step has a draft.

    Raises:
        CountersResetError: the server was restarted in between.
    """
    ensure_same_process(before, after)
    found = [*_of_clients(before, after, samples), *_of_cache(before, after)]
    try:
        spec = speculation(before, after)
    except SpeculationAbsentError:
        return tuple(found)
    preemptions = max(after.preemptions, 0) - max(before.preemptions, 0)
    return (*found, *_of_drafts(spec), *_of_tokens(spec, preemptions, steps))


def _of_tokens(spec: Speculation, preemptions: float, steps: float) -> Iterator[Identity]:
    """Check that every token comes from a draft, from the target after it, or from a request's prompt.

    So ``generated = accepted + drafts + requests``. But a request's last step may bring up to k tokens beyond
    its end, which are accepted and not generated; and a preempted request starts once more from its
    prompt. Drafters that find nothing to draft at times (n-gram, suffix) add steps of one token without a
    draft. Between these bounds nothing deviates.
    """
    if spec.generation_tokens < 0 or spec.requests < 0:
        return
    most = spec.accepted + spec.drafts + spec.requests + preemptions
    least = most - preemptions - spec.k * spec.requests
    off = max(spec.generation_tokens - max(most, spec.accepted + steps), least - spec.generation_tokens, 0.0)
    yield _identity(
        "generated tokens = accepted + drafts + requests",
        off,
        max(most, spec.generation_tokens),
        TOKENS_LIMIT,
    )


def _of_drafts(spec: Speculation) -> Iterator[Identity]:
    """Check the bounds of drafts."""
    yield _identity(
        "accepted tokens <= drafted tokens", spec.accepted - spec.draft_tokens, spec.accepted, EXACT_LIMIT
    )
    if not spec.per_position:
        return
    total = sum(spec.per_position)
    yield _identity(
        "accepted tokens = their sum over positions",
        abs(spec.accepted - total),
        max(spec.accepted, total),
        EXACT_LIMIT,
    )
    most = spec.drafts * len(spec.per_position)
    yield _identity(
        "drafted tokens <= drafts x positions", spec.draft_tokens - most, spec.draft_tokens, EXACT_LIMIT
    )
    steps = (spec.drafts, *spec.per_position)
    rise = max(later - earlier for earlier, later in pairwise(steps))
    yield _identity("acceptance falls from position to position", rise, max(spec.per_position), EXACT_LIMIT)


def _of_clients(
    before: MetricsSnapshot, after: MetricsSnapshot, samples: Sequence[Sample]
) -> Iterator[Identity]:
    """Check the server's counts against the clients'; a failed request may have brought more tokens."""
    good = [sample for sample in samples if sample.failure is None]
    failed = len(samples) - len(good)
    for name, counter, counted in (
        ("generated tokens = clients' own count", "generation_tokens", sum(s.output_tokens for s in good)),
        ("prompt tokens = clients' own count", "prompt_tokens", sum(s.prompt_tokens for s in good)),
        ("finished requests = clients' own count", "requests", len(good)),
    ):
        try:
            grown = counter_delta(before, after, counter)
        except SeriesAbsentError:
            continue
        excess = grown - counted
        off = max(-excess, 0.0 if failed else excess)
        yield _identity(name, off, max(grown, counted), CLIENTS_LIMIT)


def _of_cache(before: MetricsSnapshot, after: MetricsSnapshot) -> Iterator[Identity]:
    """Check that the tokens found in the cache were looked up."""
    try:
        hits = counter_delta(before, after, "prefix_hits")
        queries = counter_delta(before, after, "prefix_queries")
    except SeriesAbsentError:
        return
    yield _identity("tokens found in the prefix cache <= looked up", hits - queries, hits, EXACT_LIMIT)


def _identity(name: str, off: float, whole: float, limit: float) -> Identity:
    off = max(0.0, off)
    return Identity(name, off / whole if whole > 0 else off, limit)
