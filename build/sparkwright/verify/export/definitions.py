"""Definitions of exported fields, and their differences from the aggregates of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class FieldDefinition(NamedTuple):
    """The definition of one exported field.

    Attributes:
        text: how it is computed.
        ours: the report's aggregate that is nearest, and the difference; empty if it is the same.
    """

    text: str
    ours: str = ""


OWN: Mapping[str, str] = {
    "TTFT": "Time from the moment at which a request's bytes were handed to the socket (in an open loop of a"
    " capacity search: from when it was due) to the arrival of the first event with output, reasoning"
    " included. Percentiles over requests, linearly interpolated.",
    "TPOT": "(arrival of the last output - arrival of the first) ÷ (output tokens - 1), for each request with"
    " two tokens or more; tokens as the server's usage or token ids count them. Percentiles over requests,"
    " each with the same weight.",
    "chunk gap": "Time between two events with output of one request, pooled over requests. With speculation"
    " an event has several tokens, so it is no time per token.",
    "throughput (whole)": "Output tokens of all counted requests ÷ the time from the first of their starts to"
    " the last of their ends. Ramp-up and the tail, when few requests run, are in it.",
    "throughput (steady)": "Output tokens ÷ time over the window in which at least 95 % of the concurrency"
    " ran.",
    "decode rate": "Output tokens after each request's first ÷ the time between its first and last output,"
    " summed over requests before dividing: the rate of one request.",
    "acceptance": "Accepted ÷ drafted tokens, by the server's counters before and after the cell.",
    "mean acceptance length": "1 + accepted tokens ÷ drafts, by these counters: tokens a step and request.",
    "verify step": "Mean acceptance length ÷ decode rate.",
    "failed": "A request that did not end with [DONE], a finish reason and a plausible count of tokens; it is"
    " in no other figure.",
}
"""Definition of each aggregate of the report, by its name there."""

_START = (
    "Starts when bytes are handed to the socket; that program's clock starts before it takes a connection."
)
_LAST = "the last event with output, so [DONE] and usage are not in it"

AIPERF: Mapping[str, FieldDefinition] = {
    "request_count": FieldDefinition("Counted requests without a failure."),
    "error_request_count": FieldDefinition(
        "Counted requests that failed, by this project's rules.", "failed"
    ),
    "request_latency": FieldDefinition(
        f"From a request's start to {_LAST}. {_START}",
        "The report's duration of a cell ends with [DONE].",
    ),
    "time_to_first_token": FieldDefinition(
        f"From a request's start to its first event with output. {_START} An event with token ids and no text"
        " counts here, and not in aiperf.",
        "TTFT, but never from when an open loop's request was due",
    ),
    "time_to_second_token": FieldDefinition(
        "From the first event with output to the second; with speculation neither is one token."
    ),
    "inter_token_latency": FieldDefinition(
        "(request_latency - time_to_first_token) ÷ (output tokens - 1), for each request.", ""
    ),
    "inter_chunk_latency": FieldDefinition("Time between two events with output, pooled over requests."),
    "output_token_throughput_per_user": FieldDefinition(
        "1 ÷ inter_token_latency of each request, then averaged over requests.",
        "decode rate sums tokens and times before dividing, so it is lower where requests differ.",
    ),
    "output_sequence_length": FieldDefinition("Output tokens of a request, reasoning included."),
    "input_sequence_length": FieldDefinition("Prompt tokens of a request by the server's usage."),
    "benchmark_duration": FieldDefinition(
        f"From the first counted request's start to {_LAST}.", "The report's duration ends with [DONE]."
    ),
    "request_throughput": FieldDefinition("request_count ÷ benchmark_duration."),
    "output_token_throughput": FieldDefinition(
        "Output tokens of all counted requests ÷ benchmark_duration.",
        "throughput (whole), which ends with the last [DONE]",
    ),
    "total_token_throughput": FieldDefinition("Prompt and output tokens ÷ benchmark_duration."),
    "total_isl": FieldDefinition("Prompt tokens of all counted requests."),
    "total_osl": FieldDefinition("Output tokens of all counted requests."),
    "total_output_tokens": FieldDefinition("The same as total_osl."),
}
"""Fields of aiperf's summary that are filled."""

_WEIGHT = "Percentiles are the least value that such a share of the weight does not exceed, not interpolated."
_WINDOW = (
    "Over time, from the first counted request's start to the last one's end: events within 0.1 ms are one;"
    " each has a rate over half the distance to both neighbours, and weighs as much as that time. The mean is"
    " events ÷ time."
)

GUIDELLM: Mapping[str, FieldDefinition] = {
    "request_latency": FieldDefinition(f"From a request's start to its [DONE], in seconds. {_START}"),
    "time_to_first_token_ms": FieldDefinition(
        f"From a request's start to its first event with output. {_START} {_WEIGHT}",
        "TTFT has interpolated percentiles, and counts from when an open loop's request was due.",
    ),
    "time_to_first_output_token_ms": FieldDefinition(
        "The same to the first event with content other than reasoning."
    ),
    "time_per_output_token_ms": FieldDefinition(
        "(last output - request's start) ÷ output tokens: the wait for the first token is in it. A request"
        f" weighs as much as it has output tokens. {_WEIGHT}",
        "TPOT is without the first token and gives each request the same weight: it is not this figure.",
    ),
    "inter_token_latency_ms": FieldDefinition(
        "(last output - first output) ÷ (output tokens - 1). A request weighs as much as it has output tokens"
        f" after the first. {_WEIGHT}",
        "TPOT gives each request the same weight.",
    ),
    "requests_per_second": FieldDefinition(f"Ends of requests. {_WINDOW}"),
    "output_tokens_per_second": FieldDefinition(
        f"Tokens at the events that brought them. {_WINDOW} guidellm itself spreads tokens evenly over a"
        " request's events.",
        "The mean is throughput (whole).",
    ),
    "prompt_tokens_per_second": FieldDefinition(
        f"All tokens of a prompt, at its request's first output. {_WINDOW}"
    ),
    "tokens_per_second": FieldDefinition(f"The two before together. {_WINDOW}"),
    "request_concurrency": FieldDefinition(
        "Requests between their start and end, weighted by the time for which they were so many."
    ),
    "prompt_token_count": FieldDefinition("Prompt tokens of a request by the server's usage."),
    "output_token_count": FieldDefinition("Output tokens of a request by usage or token ids."),
    "total_token_count": FieldDefinition("Both together."),
    "request_streaming_iterations_count": FieldDefinition(
        "Events with output. guidellm counts those without output too."
    ),
    "output_tokens_per_iteration": FieldDefinition("Output tokens of a request ÷ its events with output."),
    "iter_tokens_per_iteration": FieldDefinition(
        "(Output tokens - 1) ÷ (events with output - 1) of a request."
    ),
}
"""Metrics of guidellm's report that are filled."""


def told(of: Mapping[str, FieldDefinition]) -> dict[str, str]:
    """Return each field's definition in one text."""
    return {
        name: f"{one.text} Nearest of sparkwright's own: {one.ours}" if one.ours else one.text
        for name, one in of.items()
    }
