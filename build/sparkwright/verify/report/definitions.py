"""The definition of every aggregate of the report."""

from __future__ import annotations

from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
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
