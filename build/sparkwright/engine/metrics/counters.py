"""The difference of a server's counters between two snapshots.

Definitions are vLLM's (``vllm/v1/spec_decode/metrics.py``): one *draft* is one request in one step with
draft tokens; *accepted* leaves out the token that the target model adds to each draft. With MAL the mean
acceptance length and *k* the drafted tokens per draft, ``MAL = 1 + accepted / drafts = 1 + k * rate``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.engine.metrics.snapshot import COUNTERS
from sparkwright.engine.observations import MetricsSnapshot


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

    Args:
        mal: mean acceptance length, in tokens a step.
        decode_rate: of one request, in tokens a second (1000 / TPOT in ms).

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
