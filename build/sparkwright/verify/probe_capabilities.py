"""The capabilities that a server at an address lacks, found before the first cell."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

import msgspec

from sparkwright.engine.capabilities import BASELINE, GPU, LOG, PREFIX_CACHE, SPECULATION, TOOLS
from sparkwright.engine.cell import Load, Prompt, Tool
from sparkwright.engine.client import Endpoint, EndpointFacts, Exchange
from sparkwright.engine.client.endpoint import ABSENT
from sparkwright.engine.deadlines import Deadlines
from sparkwright.engine.metrics.snapshot import parse_snapshot
from sparkwright.engine.observations import BootFacts, FailureKind, Sample
from sparkwright.recipes import load_recipe
from sparkwright.verify.options import VerifyOptions

if TYPE_CHECKING:
    import aiohttp


_ATTEMPTS = 3
_TOKENS = 64
_REFUSED = ABSENT | {400, 422}
_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_LOAD = Load(chat=True, natural_stop=True, tools=(Tool(name="get_time", description="", parameters=_SCHEMA),))
_CALL = Prompt(name="trial", category="trial", text="Call get_time for the city “Oslo”.")


async def lacking_tools(
    session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines
) -> dict[str, str]:
    """Return the reason for which the server at *endpoint* calls no tools; empty if it may.

    Only a server that refuses every one of several requests lacks them, or one whose prompts are as long
    without tools as with them: its chat template leaves them out. Else one that answers is taken at its word,
    so that a broken parser is found by the check.
    """

    async def send(load: Load) -> Sample:
        return await Exchange(
            endpoint, _CALL, load, max_tokens=_TOKENS, deadlines=deadlines, speed=1.0, refusable=True
        ).run(session)

    why = ""
    for _ in range(_ATTEMPTS):
        sample = await send(_LOAD)
        failure = sample.failure
        if failure is None and not sample.tool_calls:
            without = (await send(msgspec.structs.replace(_LOAD, tools=()))).prompt_tokens
            if not sample.prompt_tokens == without > 0:
                return {}
            why = f"the chat template leaves tools out: a prompt has {without} tokens with and without them"
        elif (
            failure is not None
            and failure.kind in {FailureKind.STATUS, FailureKind.IN_BAND}
            and failure.status in _REFUSED
        ):
            why = f"requests for tools are refused: {failure.detail}"
        else:
            return {}
    return {TOOLS: why}


def lacking_facts(options: VerifyOptions, known: EndpointFacts, log: BootFacts) -> dict[str, str]:
    """Return reasons by the capability that neither the user gave nor counters or log show.

    What a recipe configures is never lacking: the checks find that it is missing.

    Raises:
        EndpointError: the counters are not those of vLLM.
    """
    recipe = load_recipe(options.recipe, options.use) if options.recipe else None
    lacks = {}
    if not options.baseline_url:
        lacks[BASELINE] = "no --baseline-url was given"
    if not options.log:
        lacks[LOG] = "the server's log was not given (--log)"
    elif max(log.total_gib, log.weights_gib, log.kv_gib) < 0 and log.graph_gib is None:
        lacks[GPU] = "the log names no memory of a GPU"
    counters = parse_snapshot(known.metrics, perf_counter_ns(), f"{options.url}/metrics")
    expected = log.speculative_tokens > 0 or (recipe is not None and bool(recipe.speculative))
    if counters.drafts < 0 and not expected:
        lacks[SPECULATION] = "this server does not speculate: it exposes no vllm:spec_decode_* series"
    cached = recipe is not None and recipe.flags.get("enable-prefix-caching") is True
    if counters.cache.get("enable_prefix_caching") == "False" and not cached:
        lacks[PREFIX_CACHE] = "this server has no prefix cache (enable_prefix_caching is False)"
    return lacks
