"""Equalities that the counters must satisfy among each other and with the clients, and their deviations.

A figure without a satisfied identity is not evidence: a crashed engine, a second client on the server, a
harness that counts characters, a drafter's counter with another meaning, all show here first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparkwright.engine.metrics.counters import (
    SeriesAbsentError,
    Speculation,
    SpeculationAbsentError,
    counter_delta,
    ensure_same_process,
    speculation,
)
from sparkwright.engine.observations import MetricsSnapshot, Sample

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
