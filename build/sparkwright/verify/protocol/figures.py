"""The aggregates of llama-benchy 0.4.0, computed from observations by its definitions.

Times are seconds of the server's clock. Where both programs see the same events they give the same figures;
`DEVIATIONS` says what is seen otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from sparkwright.verify.statistics import summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sparkwright.engine.observations import Sample

DEFINITIONS = {
    "pp t/s": "Prompt tokens over est_ppt, for one request at a time; mean over requests. With more requests"
    " at a time, in total: prompt tokens of a batch over the time from its first request to the last of its"
    " first tokens; mean over batches.",
    "tg t/s": "Tokens after a request's first chunk over the time from that chunk to the last, for one"
    " request at a time; mean over requests. With more, in total: such tokens of a batch over the time from"
    " its first token to its last; mean over batches.",
    "t/s (req)": "The rate of one request by itself, mean over requests.",
    "peak t/s": "Most tokens in any window of one second, over the requests of a batch together (req: of"
    " one request); all of them over their duration where that is below a second. Tokens of one chunk are"
    " spread evenly between the chunk before and itself.",
    "ttfr": "From the request to the first event with a choice, also one without text such as a chat's role.",
    "est_ppt": "ttfr less the latency: the mean of three requests for the model list (api), of three answers"
    " of one token (generation), or 0 (none); never below 0.",
    "e2e_ttft": "From the request to the first event with generated text or reasoning.",
    "±": "Standard deviation of the population, over requests or batches as the mean.",
}
"""Definition of each column."""

DEVIATIONS = (
    (
        "The clock starts when the request's bytes are handed to the socket; llama-benchy's before it takes a"
        " connection. Arrivals are read from the kernel's timestamps where it gives them, not when the"
        " program comes to reading."
    ),
    (
        "A chunk with token ids and no text counts as output here, such as the end of sequence or a part of a"
        " character; llama-benchy drops its tokens."
    ),
    "Prompts are generated notes instead of a book, of lengths fitted to the server's own counts.",
    "Between two batches a short plain request is sent and the server's counters are read.",
)
"""Differences to llama-benchy that can change a figure."""

_WINDOW_S = 1.0
_PLAUSIBLE = 0.2  # of the expected prompt tokens: a count further off is not used


@dataclass(frozen=True)
class Metric:
    """Mean and spread of some values.

    Attributes:
        mean: arithmetic mean.
        std: standard deviation of the population.
        values: all of them.
    """

    mean: float
    std: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class ProtocolFigures:
    """The figures of one test: all batches of one prompt length, output length, depth and concurrency.

    Attributes:
        pp: rate of prompts, tokens a second, all requests of a batch together.
        pp_req: the same of one request.
        tg: rate of generation, all requests of a batch together.
        tg_req: the same of one request.
        peak: highest rate within a second, all requests of a batch together.
        peak_req: the same of one request.
        ttfr: time to the first response, ms.
        est_ppt: estimated time of the prompt's processing, ms.
        e2e_ttft: time to the first token, ms.
    """

    pp: Metric | None
    pp_req: Metric | None
    tg: Metric | None
    tg_req: Metric | None
    peak: Metric | None
    peak_req: Metric | None
    ttfr: Metric | None
    est_ppt: Metric | None
    e2e_ttft: Metric | None


@dataclass(frozen=True)
class _Request:
    """One request, in seconds of the server's clock since the batch's first request."""

    start: float
    first_response: float
    prompt_tokens: int
    tokens: tuple[float, ...]

    @property
    def later(self) -> int:
        """Number of tokens after those of the first chunk."""
        return sum(at > self.tokens[0] for at in self.tokens)


def protocol_figures(
    batches: Sequence[Sequence[Sample]], concurrency: int, expected: int, latency_s: float, speed: float
) -> ProtocolFigures:
    """Return the figures of a test.

    Args:
        batches: requests of each batch; failed ones are left out.
        concurrency: requests at a time.
        expected: tokens of a prompt, used where the server's count is more than a fifth off.
        latency_s: taken off the time to the first response, in seconds of the server's clock.
        speed: server's seconds in one of the client's.
    """
    made = [requests for batch in batches if (requests := _requests(batch, expected, speed))]
    each = [request for requests in made for request in requests]
    ppt = [(request, max(0.0, request.first_response - request.start - latency_s)) for request in each]
    pp_req = _metric(request.prompt_tokens / seconds for request, seconds in ppt if seconds > 0)
    tg_req = _metric(
        request.later / (request.tokens[-1] - request.tokens[0]) for request in each if request.later
    )
    together = concurrency > 1
    return ProtocolFigures(
        pp=_metric(map(_prompt_rate, made)) if together else pp_req,
        pp_req=pp_req,
        tg=_metric(rate for requests in made if (rate := _rate(requests))) if together else tg_req,
        tg_req=tg_req,
        peak=_metric(peak([at for request in requests for at in request.tokens]) for requests in made),
        peak_req=_metric(peak(request.tokens) for request in each),
        ttfr=_metric(1e3 * (request.first_response - request.start) for request in each),
        est_ppt=_metric(1e3 * seconds for _, seconds in ppt),
        e2e_ttft=_metric(1e3 * (request.tokens[0] - request.start) for request in each),
    )


def _prompt_rate(requests: Sequence[_Request]) -> float:
    begin = min(request.start for request in requests)
    return sum(request.prompt_tokens for request in requests) / (
        max(request.tokens[0] for request in requests) - begin
    )


def _rate(requests: Sequence[_Request]) -> float:
    """Return the rate of generation of a batch; 0 where all tokens came in first chunks."""
    span = max(request.tokens[-1] for request in requests) - min(request.tokens[0] for request in requests)
    return sum(request.later for request in requests) / span if span > 0 else 0.0


def peak(times: Iterable[float]) -> float:
    """Return the highest number of *times* a second, in any window of one that ends with one of them."""
    ordered = sorted(times)
    span = ordered[-1] - ordered[0]
    if 0 < span < _WINDOW_S:
        return len(ordered) / span
    most = first = 0
    for last, at in enumerate(ordered):
        while first < last and ordered[first] <= at - _WINDOW_S:
            first += 1
        most = max(most, last - first + 1)
    return most / _WINDOW_S


def _requests(batch: Sequence[Sample], expected: int, speed: float) -> list[_Request]:
    answered = [sample for sample in batch if sample.failure is None and sample.chunks]
    if not answered:
        return []
    origin = min(sample.started for sample in answered)

    def seconds(at: int) -> float:
        return (at - origin) / 1e9 * speed

    return [
        _Request(
            start=seconds(sample.started),
            first_response=seconds(sample.responded or sample.first),
            prompt_tokens=_prompt_tokens(sample, expected),
            tokens=tuple(seconds(at) for at in token_times(sample)),
        )
        for sample in answered
    ]


def _prompt_tokens(sample: Sample, expected: int) -> int:
    near = sample.prompt_tokens > 0 and abs(sample.prompt_tokens - expected) < expected * _PLAUSIBLE
    return sample.prompt_tokens if near else expected


def token_times(sample: Sample) -> list[int]:
    """Return the time of each generated token of a request with output, in ns of its clock.

    Tokens of a chunk are spread evenly from the chunk before to its own time, those of the first one come at
    its time. Where chunks have no counts, all tokens are spread evenly from the first chunk to the last.
    """
    chunks = sample.chunks
    if not all(chunk.tokens for chunk in chunks):
        count = sample.output_tokens or len(chunks)
        step = (sample.last - sample.first) / max(count - 1, 1)
        return [round(sample.first + step * number) for number in range(count)]
    times = [sample.first] * chunks[0].tokens
    for before, chunk in pairwise(chunks):
        step = (chunk.at - before.at) / chunk.tokens
        times += [round(before.at + step * (number + 1)) for number in range(chunk.tokens)]
    return times


def _metric(values: Iterable[float]) -> Metric | None:
    known = tuple(values)
    if not known:
        return None
    of = summary(known)
    return Metric(of.mean, of.std, known)
