"""Trial requests to a server that is no vLLM: which of OpenAI's and vLLM's fields and endpoints it has.

A capability is lacking only if each of several requests shows so: an answer that fails now and then is a
defect, which the checks find.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from sparkwright.base.errors import EndpointError
from sparkwright.engine.capabilities import (
    COMPLETIONS,
    END_MARK,
    EXTENSIONS,
    FIXED_LENGTH,
    LOGPROBS,
    TOKEN_COUNTS,
)
from sparkwright.engine.cell import Load, Prompt
from sparkwright.engine.client.endpoint import ABSENT, ATTEMPTS
from sparkwright.engine.client.request import Exchange
from sparkwright.engine.observations import FailureKind

if TYPE_CHECKING:
    import aiohttp

    from sparkwright.engine.client.endpoint import Endpoint
    from sparkwright.engine.deadlines import Deadlines
    from sparkwright.engine.observations import Sample

# Small models end an answer to a question of one word at once, without the chat's template.
_PROMPT = Prompt(name="trial", category="trial", text="Count from one to ten: one, two, three,")
_TOKENS = 32
_REFUSED = frozenset({400, 422})


async def try_requests(
    session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines
) -> dict[str, str]:
    """Return reasons by the capability that the server at *endpoint* lacks.

    Raises:
        EndpointError: it answers no request for text, in any form.
    """
    lacks = await _form(session, endpoint, deadlines)
    loose = frozenset({*lacks, FIXED_LENGTH, TOKEN_COUNTS})
    if await _ends_unmarked(session, endpoint, loose, deadlines):
        lacks[END_MARK] = "streams end without [DONE]: a finish reason is their end"
        loose |= {END_MARK}
    fixed = [await _send(session, endpoint, loose, deadlines, Load()) for _ in range(ATTEMPTS)]
    if not any(sample.counted_by for sample in fixed):
        lacks[TOKEN_COUNTS] = "streams bring neither usage nor token ids: rates are not given in tokens"
    if EXTENSIONS in lacks or await _stops_early(session, endpoint, frozenset(lacks), deadlines):
        lacks[FIXED_LENGTH] = "answers end by themselves, whatever length is requested (no ignore_eos)"
    load = Load(logprobs=2)
    probed = [
        await _send(session, endpoint, frozenset({*lacks, FIXED_LENGTH}), deadlines, load)
        for _ in range(ATTEMPTS)
    ]
    if not any(sample.logprobs for sample in probed):
        lacks[LOGPROBS] = "answers bring no log-probabilities"
    return lacks


async def _form(session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines) -> dict[str, str]:
    """Return the lacking capabilities of the first form of request that is answered."""
    no_completions = {COMPLETIONS: "there is no POST /v1/completions: all requests are chats"}
    no_extensions = {EXTENSIONS: "requests with vLLM's own fields are refused"}
    told = ""
    for lacks in ({}, no_extensions, no_completions, {**no_completions, **no_extensions}):
        loose = frozenset({*lacks, FIXED_LENGTH, TOKEN_COUNTS, END_MARK})
        for _ in range(ATTEMPTS):
            sample = await _send(session, endpoint, loose, deadlines, Load())
            if sample.failure is None:
                return dict(lacks)
            told = f"{sample.failure.kind}: {sample.failure.detail}"
            if sample.failure.kind is FailureKind.STATUS and sample.failure.status in ABSENT | _REFUSED:
                continue
            raise _unanswered(endpoint, told)
    raise _unanswered(endpoint, told)


async def _ends_unmarked(
    session: aiohttp.ClientSession, endpoint: Endpoint, lacks: frozenset[str], deadlines: Deadlines
) -> bool:
    """Tell if every stream ends with a finish reason and without ``[DONE]``."""
    for _ in range(ATTEMPTS):
        sample = await _send(session, endpoint, lacks, deadlines, Load())
        kind = sample.failure.kind if sample.failure is not None else None
        if kind is not FailureKind.TRUNCATED or not sample.finish_reason:
            return False
    return True


async def _stops_early(
    session: aiohttp.ClientSession, endpoint: Endpoint, lacks: frozenset[str], deadlines: Deadlines
) -> bool:
    """Tell if every answer of a requested length ends before it."""
    for _ in range(ATTEMPTS):
        sample = await _send(session, endpoint, lacks, deadlines, Load())
        if sample.failure is None and sample.finish_reason == "length":
            return False
    return True


async def _send(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    lacks: frozenset[str],
    deadlines: Deadlines,
    load: Load,
) -> Sample:
    tried = dataclasses.replace(endpoint, lacks=lacks)
    exchange = Exchange(tried, _PROMPT, load, max_tokens=_TOKENS, deadlines=deadlines, speed=1.0)
    return await exchange.run(session)


def _unanswered(endpoint: Endpoint, told: str) -> EndpointError:
    return EndpointError(
        f"{endpoint.url} answers no trial request",
        because=told,
        next_step="see the server's log; name its model by --model",
    )
