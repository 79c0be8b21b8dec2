"""The requests of a cell in seconds of the server's clock, as forms of other programs need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.engine.observations import Observation, Sample


@dataclass(frozen=True)
class TimedRequest:
    """A counted request that did not fail, with its times since the first one's start.

    Attributes:
        sample: the request.
        start: its start.
        first: arrival of its first output.
        content: arrival of the first output that is not reasoning; that of the first if there is none.
        last: arrival of its last output.
        end: its end.
        chunks: arrival of each event with output.
    """

    sample: Sample
    start: float
    first: float
    content: float
    last: float
    end: float
    chunks: tuple[float, ...]

    @property
    def inter_token(self) -> float | None:
        """Seconds per token after the first; `None` for fewer than two tokens."""
        later = self.sample.output_tokens - 1
        return (self.last - self.first) / later if later > 0 else None


def timed_requests(observation: Observation, speed: float) -> tuple[TimedRequest, ...]:
    """Return the counted requests of a cell, in the order of their starts.

    Args:
        observation: of the cell.
        speed: server's seconds in one of the client's.
    """
    counted: Sequence[Sample] = sorted(
        (sample for sample in observation.counted if sample.chunks), key=lambda sample: sample.started
    )
    if not counted:
        return ()
    origin = counted[0].started

    def seconds(at: int) -> float:
        return (at - origin) / 1e9 * speed

    return tuple(
        TimedRequest(
            sample=sample,
            start=seconds(sample.started),
            first=seconds(sample.first),
            content=seconds(
                next((chunk.at for chunk in sample.chunks if chunk.kind != "reasoning"), sample.first)
            ),
            last=seconds(sample.last),
            end=seconds(sample.ended),
            chunks=tuple(seconds(chunk.at) for chunk in sample.chunks),
        )
        for sample in counted
    )


def failed_of(observation: Observation) -> list[Sample]:
    """Return the counted requests that failed."""
    return [sample for sample in observation.failed if sample.counted]
