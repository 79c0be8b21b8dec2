"""What the server counts, as vLLM counts it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sparkwright.verify.simulator.request import Request

_SHORT: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
_PER_TOKEN: Final = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
_LONG: Final = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
_ITERATION: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Observations counted by upper bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _histograms() -> dict[str, Histogram]:
    return {
        "iteration_tokens_total": Histogram(_ITERATION),
        "request_prompt_tokens": Histogram(_SIZES),
        "request_generation_tokens": Histogram(_SIZES),
        "time_to_first_token_seconds": Histogram(_SHORT),
        "inter_token_latency_seconds": Histogram(_PER_TOKEN),
        "request_time_per_output_token_seconds": Histogram(_PER_TOKEN),
        "e2e_request_latency_seconds": Histogram(_LONG),
        "request_queue_time_seconds": Histogram(_LONG),
        "request_inference_time_seconds": Histogram(_LONG),
        "request_prefill_time_seconds": Histogram(_LONG),
        "request_decode_time_seconds": Histogram(_LONG),
    }


@dataclass
class Counters:
    """The counters of one start of the server.

    A *draft* is one request in one step with drafted tokens; the token that follows the accepted ones is not
    among them. Drafts count before an answer is cut at its end, generated tokens after that.
    """

    k: int
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    generated: int = 0
    prompt: int = 0
    prompt_cached: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    success: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )
    histograms: dict[str, Histogram] = field(default_factory=_histograms)

    def __post_init__(self) -> None:
        self.per_position = [0] * self.k

    def observe_draft(self, drafted: int, accepted: int) -> None:
        """Count one draft of *drafted* tokens of which the first *accepted* were accepted."""
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted += accepted
        for position in range(accepted):
            self.per_position[position] += 1

    def iteration(self, prefilled: int, generated: int) -> None:
        """Count one step of the engine."""
        self.histograms["iteration_tokens_total"].observe(prefilled + generated)
        self.generated += generated

    def tokens(self, request: Request, count: int, end: float) -> None:
        """Count *count* tokens that *request* got at the simulated moment *end*."""
        spans = request.spans
        end = max(end, spans.arrived)  # an engine that is late may be behind who has just come
        if spans.first < 0:
            spans.first = end
            self.prompt += request.prompt_tokens
            self.prompt_cached += request.cached
            self.histograms["time_to_first_token_seconds"].observe(end - spans.arrived)
        elif count:
            self.histograms["inter_token_latency_seconds"].observe(end - spans.last)
        spans.last = end

    def finished(self, request: Request) -> None:
        """Count a request that is done."""
        spans, observe = request.spans, self._observe
        self.success[request.finish] += 1
        observe("request_prompt_tokens", request.prompt_tokens)
        observe("request_generation_tokens", request.output_tokens)
        observe("e2e_request_latency_seconds", spans.last - spans.arrived)
        observe("request_queue_time_seconds", spans.scheduled - spans.arrived)
        observe("request_inference_time_seconds", spans.last - spans.scheduled)
        observe("request_prefill_time_seconds", spans.first - spans.scheduled)
        observe("request_decode_time_seconds", spans.last - spans.first)
        if request.output_tokens > 1:
            per_token = (spans.last - spans.first) / (request.output_tokens - 1)
            observe("request_time_per_output_token_seconds", per_token)

    def _observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)
