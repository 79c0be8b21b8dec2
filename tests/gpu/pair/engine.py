"""The process that serves: one engine, one level after another, a JSON line for each.

Started by `serve_pair.py` as ``python -m pair.engine SPEC``; the environment has chosen the
model runner before vLLM is imported. Lines are appended to the file that the
specification names, and the last one says that the process came to its end.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import time
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.reader import Vector, get_metrics_snapshot
from vllm.v1.metrics.stats import SchedulerStats

from pair.load import ACCEPTED, Counters, Observed, Request, expected, faults, workload
from pair.models import VOCABULARY, pair_arguments, words
from pair.parts import specification, writer

LEVEL_SECONDS = 120
CANARY_SECONDS = 30
FIRST_SECONDS = 240  # kernels may be compiled at their first use
SETTLE_SECONDS = 5
CANARY = Request("canary", prompt=48, output=1 + 4 * (ACCEPTED + 1), temperature=0.0)
METRICS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
    "vllm:generation_tokens": "generated",
    "vllm:request_success": "finished",
    "vllm:num_preemptions": "preempted",
}


class LiveBatch(StatLoggerBase):
    """Notes how many requests the scheduler says are running, step by step."""

    seen: set[int] = set()  # noqa: RUF012 - vLLM builds the logger; one engine a process

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        del vllm_config, engine_index

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: object,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Called by vLLM after each step."""
        if scheduler_stats is not None:
            self.seen.add(scheduler_stats.num_running_reqs)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


def counters() -> Counters:
    """vLLM's own counters, as its Prometheus endpoint would give them."""
    totals: dict[str, int] = {}
    per_position: tuple[int, ...] = ()
    for metric in get_metrics_snapshot():
        if isinstance(metric, Vector):
            per_position = tuple(metric.values)
        elif metric.name in METRICS:
            counter = METRICS[metric.name]
            totals[counter] = totals.get(counter, 0) + metric.value  # type: ignore[attr-defined]
    if missing := METRICS.keys() - {name for name, counter in METRICS.items() if counter in totals}:
        raise LookupError(f"vLLM has no metric {', '.join(sorted(missing))}")
    return Counters(per_position=per_position, **totals)


async def settled(before: Counters, wanted: Counters) -> Counters:
    """Return what the counters rose by: as soon as it is *wanted*, or what it is when time is up.

    The last step's counters may arrive a moment after its tokens.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    # vLLM announces no change of a counter: looking again is all that one can do.
    while (rise := counters().since(before)) != wanted and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return rise


async def ask(engine: AsyncLLM, request: Request) -> tuple[int, int]:
    """Stream one request to its end; return how many tokens arrived, and in how many chunks."""
    prompt = TokensPrompt(prompt_token_ids=words(random.Random(request.name), request.prompt))
    params = SamplingParams(
        max_tokens=request.output,
        ignore_eos=True,
        temperature=request.temperature,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    tokens, chunks, reason = 0, 0, None
    async for output in engine.generate(prompt, params, request.name):
        completion = output.outputs[0]
        tokens += len(completion.token_ids)
        chunks += 1
        reason = completion.finish_reason
        if not all(0 <= token < VOCABULARY for token in completion.token_ids):
            raise ValueError(f"a token of {list(completion.token_ids)} is not in the vocabulary")
    if reason != "length":
        raise ValueError(f"ended by {reason} after {tokens} tokens")
    return tokens, chunks


async def within(seconds: float, call: Awaitable[Any], what: str) -> Any:
    """Return what *call* gives in time; None, with a line in the log, for whatever the engine died of."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except Exception as error:  # noqa: BLE001 - it did not answer
        sys.stderr.write(f"{what}: {error!r}\n")
        sys.stderr.flush()
        return None


async def answers(engine: AsyncLLM, seconds: float = CANARY_SECONDS) -> bool:
    """Tell if the engine serves one more request in time."""
    answer = await within(seconds, ask(engine, CANARY), "canary")
    return answer is not None and answer[0] == CANARY.output


async def replays(engine: AsyncLLM) -> int:
    """CUDA graphs replayed since the last call; 0 when the worker does not answer."""
    taken = await within(CANARY_SECONDS, engine.collective_rpc("pair_take_replays"), "replays")
    return taken[0] if taken else 0


@dataclass
class Tally:
    """Return what the clients of one level received."""

    received: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    chunks: int = 0

    async def client(self, engine: AsyncLLM, requests: list[Request]) -> None:
        """Send *requests* one after the other; give up at the first failure."""
        for request in requests:
            try:
                tokens, chunks = await ask(engine, request)
            except Exception as error:  # noqa: BLE001 - reported as this request's failure
                self.errors.append(f"request {request.name}: {error!r}"[:500])
                return
            self.received[request.name] = tokens
            self.chunks += chunks


async def serve(engine: AsyncLLM, level: int) -> Observed:
    """Serve one level: *level* clients at once, each with its own requests."""
    tally = Tally()
    await replays(engine)
    LiveBatch.seen.clear()
    before, started = counters(), time.monotonic()
    try:
        async with asyncio.timeout(LEVEL_SECONDS):
            await asyncio.gather(*(tally.client(engine, requests) for requests in workload(level)))
    except TimeoutError:
        tally.errors.append(f"not done after {LEVEL_SECONDS} s")
    seconds = time.monotonic() - started
    rise = await settled(before, expected(level))
    sizes = LiveBatch.seen - {0}
    replayed = await replays(engine)
    return Observed(
        level=level,
        seconds=round(seconds, 3),
        received=tally.received,
        chunks=tally.chunks,
        counters=rise,
        peak=max(sizes, default=0),
        sizes=len(sizes),
        replays=replayed,
        canary=not engine.errored and await answers(engine),
        errors=tuple(tally.errors),
    )


async def run(spec: dict[str, Any]) -> None:
    """Boot, look at what booted, serve every level, and write a line for each."""
    write, started = writer(spec), time.monotonic()
    sizes = {"max_num_seqs": spec["max_num_seqs"], "max_num_batched_tokens": 4096}
    args = AsyncEngineArgs(**pair_arguments(spec), **sizes, worker_extension_cls="pair.worker.PairView")
    engine = AsyncLLM.from_engine_args(args, stat_loggers=[LiveBatch])
    try:
        async with asyncio.timeout(LEVEL_SECONDS):  # a worker whose answer cannot be sent never answers
            view, *others = await engine.collective_rpc("pair_boot")  # of each card
            modules = (await engine.collective_rpc("pair_modules", args=(spec["carried"],)))[0]
            binaries = (await engine.collective_rpc("pair_binaries", args=(spec["native"],)))[0]
        alive = await answers(engine, FIRST_SECONDS)
        gc.collect()
        gc.freeze()  # as vLLM's own server does: a full collection would stall the streams
        seconds = round(time.monotonic() - started, 1)
        boot = {"view": view, "others": others, "modules": modules, "binaries": binaries}
        write("boot", seconds=seconds, **boot, canary=alive)
        for level in spec["levels"]:
            seen = await serve(engine, level)
            found = faults(seen, graphs=not spec["eager"])
            tokens = sum(seen.received.values())
            write("level", **summary(seen, tokens), expected=asdict(expected(level)), faults=found)
            if engine.errored:
                break
        write("end", errored=engine.errored)
    finally:
        engine.shutdown()


def summary(seen: Observed, tokens: int) -> dict[str, Any]:
    """A level's figures as they are written."""
    return {
        "c": seen.level,
        "requests": len(seen.received),
        "tokens": tokens,
        "tok_s": round(tokens / seen.seconds, 1),
        "acceptance_length": round(seen.counters.acceptance_length, 4),
        "counters": asdict(seen.counters),
        **{name: getattr(seen, name) for name in ("chunks", "seconds", "peak", "sizes", "replays")},
    }


if __name__ == "__main__":
    asyncio.run(run(specification()))
