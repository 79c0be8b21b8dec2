"""The capabilities that a server at an address lacks, found before the first cell."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter_ns
from typing import TYPE_CHECKING

from sparkwright.engine.capabilities import (
    BASELINE,
    GPU,
    LOG,
    PREFIX_CACHE,
    SPECULATION,
    TOKENIZE,
)
from sparkwright.engine.client import Endpoint, EndpointFacts
from sparkwright.engine.client.features import try_features
from sparkwright.engine.client.tokens import lacks_tokenizer
from sparkwright.engine.deadlines import Deadlines
from sparkwright.engine.metrics.snapshot import parse_snapshot
from sparkwright.engine.observations import BootFacts
from sparkwright.recipes import load_recipe
from sparkwright.verify.options import VerifyOptions

if TYPE_CHECKING:
    import aiohttp


async def find_lacking(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    known: EndpointFacts,
    deadlines: Deadlines,
    asked: Iterable[str] = (),
) -> dict[str, str]:
    """Return reasons by the capability that the server at *endpoint* lacks.

    What vLLM always has is required.

    Args:
        session: from `client.open_session`.
        endpoint: the server.
        known: facts that it reported.
        deadlines: deadlines of a request.
        asked: capabilities of `client.features` to try.
    """
    lacks = dict(known.lacks)
    if why := await lacks_tokenizer(session, endpoint, deadlines):
        lacks[TOKENIZE] = f"documents are sized by an estimate: {why}"
    return lacks | await try_features(session, endpoint, deadlines, asked)


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
    page = f"{options.url}/metrics"
    counters = parse_snapshot(known.metrics, perf_counter_ns(), page) if known.metrics else None
    expected = log.speculative_tokens > 0 or (recipe is not None and bool(recipe.speculative))
    if counters is None and not expected:
        lacks[SPECULATION] = "without vLLM's counters, speculation cannot be seen"
    elif counters is not None and counters.drafts < 0 and not expected:
        lacks[SPECULATION] = "this server does not speculate: it exposes no vllm:spec_decode_* series"
    cached = recipe is not None and recipe.flags.get("enable-prefix-caching") is True
    if counters is not None and counters.cache.get("enable_prefix_caching") == "False" and not cached:
        lacks[PREFIX_CACHE] = "this server has no prefix cache (enable_prefix_caching is False)"
    return lacks
