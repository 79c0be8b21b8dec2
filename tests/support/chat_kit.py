"""Cells of chats, answered by the simulator's own model and response format, without a server or a clock."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

from msgspec.structs import replace
from simulator_kit import settings
from verify_kit import Server, by_name, follow

from sparkwright.engine.cell import Cell, Prompt
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.engine.client.payload import body_of
from sparkwright.engine.client.reply import Reply
from sparkwright.engine.findings import Finding
from sparkwright.engine.observations import FailureKind, Observation, RequestFailure, Sample
from sparkwright.verify.check import Context
from sparkwright.verify.checks.common import Check
from sparkwright.verify.simulator.engine import StreamDelta
from sparkwright.verify.simulator.model import EOS
from sparkwright.verify.simulator.params import ApiError, make_request, parse_params
from sparkwright.verify.simulator.response import ResponseBuilder, usage_of
from sparkwright.verify.simulator.settings import Settings

STEP_NS = 50_000_000
TOKENS = 3  # in a chunk, as with speculation


def observe(cell: Cell, server: Settings) -> Observation:
    """Return the observation of *cell* on a server with these settings."""
    first = crc32(cell.key.encode()) % 100_000 + 1  # a server counts the requests of all cells
    samples = tuple(answer(cell, prompt, server, number) for number, prompt in enumerate(cell.prompts, first))
    counters = Server(k=0)
    return Observation(cell=cell, samples=samples, before=counters.snapshot(), after=counters.snapshot())


def answer(cell: Cell, prompt: Prompt, server: Settings, number: int) -> Sample:
    """Return one request's sample: what the client makes of the simulator's events."""
    load, reply = cell.load, Reply()
    body = json.loads(body_of(Endpoint("http://simulated", server.model), prompt, "", load, load.max_tokens))
    at = number
    try:
        for event in events(body, server, number):
            at += STEP_NS
            reply.take(json.dumps(event).encode(), at)
    except ApiError as error:
        failure = RequestFailure(kind=FailureKind.STATUS, detail=str(error), status=error.status)
        return Sample(
            prompt=prompt.name, category=prompt.category, started=number, ended=at + 1, failure=failure
        )
    reply.take(b"[DONE]", at)
    return Sample(
        prompt=prompt.name,
        category=prompt.category,
        started=number,
        ended=at,
        chunks=tuple(reply.chunks),
        prompt_tokens=reply.prompt_tokens,
        output_tokens=reply.output_tokens,
        counted_by=reply.counted_by,
        finish_reason=reply.finish_reason,
        text=reply.text,
        token_ids=tuple(reply.token_ids),
        reasoning_chars=reply.chars("reasoning"),
        tool_chars=reply.chars("tool"),
        tool_calls=reply.tool_calls,
        failure=reply.problem(max_tokens=load.max_tokens, natural_stop=True),
    )


def events(body: dict[str, Any], server: Settings, number: int = 1) -> Iterator[dict[str, Any]]:
    """Return the events of a chat."""
    params = parse_params(body, server, chat=True)
    request = make_request(params, server, number)
    builder = ResponseBuilder(params, request, server, created=0)
    yield from builder.opening()
    while not request.finish:
        kept = []
        for _ in range(TOKENS):
            delta = request.accept((request.generator.next(0),), EOS)
            kept += delta.choices
            if request.finish:
                break
        yield builder.delta(StreamDelta(tuple(kept), request.finish))
    yield builder.event([], usage_of(request))


def judged(check: Check, context: Context, *faults: str, **changes: Any) -> dict[str, Finding]:
    """Return the findings of *check* on a server with *faults*, by name; cells that it adds are measured."""
    server = settings(*faults, **changes)
    seen = follow(check, context, lambda cell: observe(cell, server))
    return by_name(check.judge(context, seen))


def judged_with(
    check: Check, context: Context, server: Settings, change: Callable[[Sample], Sample], kind: str = ""
) -> dict[str, Finding]:
    """Return the findings of *check* where *change* is made to each answer, or to those of *kind*."""
    seen = []
    for cell in check.cells(context):
        found = observe(cell, server)
        if kind in {"", cell.tags["kind"]}:
            found = replace(found, samples=tuple(map(change, found.samples)))
        seen.append(found)
    return by_name(check.judge(context, seen))
