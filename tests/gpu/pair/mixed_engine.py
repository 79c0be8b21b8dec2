"""The process that serves one case of `quantised_draft.py`; a JSON line for each thing that happens.

Started as ``python -m pair.mixed_engine SPEC``; the environment has chosen the model runner before vLLM is
imported.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.engine.async_llm import AsyncLLM

from pair.engine import FIRST_SECONDS, LiveBatch, answers, ask, engine_args, serve, summary
from pair.load import Request, expected, faults

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

FIRST = Request("first", prompt=200, output=2, temperature=0.0)
SECOND = Request("second", prompt=200, output=2, temperature=0.0)
CACHE_BYTES = 3 << 30
SETTLE_SECONDS = 0.5


def mixed_args(spec: dict[str, Any]) -> AsyncEngineArgs:
    """The engine's arguments: those of every pair, and the caches."""
    args = engine_args(spec)
    draft = {} if spec["draft"] is None else {"kv_cache_dtype": spec["draft"]}
    if (spec["draft"] or spec["dtype"]) in ("fp8", "nvfp4") or spec["backend"] != "TRITON_ATTN":
        draft["attention_backend"] = "TRITON_ATTN"  # fp8 would be read by FlashAttention 3 where there is one
    windows = spec["windows"] and spec["dtype"] != "auto"
    return replace(
        args,
        kv_cache_dtype=spec["dtype"],
        kv_cache_dtype_skip_layers=["sliding_window"] if windows else [],
        kv_cache_memory_bytes=CACHE_BYTES,  # engines that boot side by side must not measure each other
        attention_backend=AttentionBackendEnum[spec["backend"]],
        worker_extension_cls="pair.mixed_view.MixedView",
        speculative_config={**(args.speculative_config or {}), **draft},
    )


async def call(engine: AsyncLLM, method: str) -> Any:
    """Call a method of the worker."""
    async with asyncio.timeout(60):
        return (await engine.collective_rpc(method))[0]


async def stale(engine: AsyncLLM) -> None:
    """Fill the cache with stale bytes, which nobody may know as a cached prefix."""
    await engine.reset_prefix_cache()
    await call(engine, "mix_poison")


async def drafts(engine: AsyncLLM, request: Request) -> list[float]:
    """The logits of the first draft after *request*'s prompt."""
    await asyncio.sleep(SETTLE_SECONDS)  # the step after the last request's may be under way
    await call(engine, "mix_take_drafts")
    async with asyncio.timeout(FIRST_SECONDS):
        await ask(engine, request)
    taken: list[float] = await call(engine, "mix_take_drafts")
    return taken


async def run(spec: dict[str, Any]) -> None:
    """Boot, plant stale bytes, compare drafts, serve every level, and say what was seen."""
    lines = Path(spec["lines"])

    def write(kind: str, **fields: Any) -> None:
        with lines.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, "run": spec["run"], **fields}) + "\n")

    started = time.monotonic()
    engine = AsyncLLM.from_engine_args(mixed_args(spec), stat_loggers=[LiveBatch])
    try:
        await call(engine, "pair_boot")
        weights = await call(engine, "mix_weights")
        await call(engine, "mix_watch")
        await stale(engine)
        alive = await answers(engine, FIRST_SECONDS)
        write("boot", seconds=round(time.monotonic() - started, 1), weights=weights, canary=alive)
        pair = {"first": await drafts(engine, FIRST), "second": await drafts(engine, SECOND)}
        for level in spec["levels"]:
            await stale(engine)
            seen = await serve(engine, level)
            tokens = sum(seen.received.values())
            found = faults(seen, graphs=not spec["eager"])
            write("level", **summary(seen, tokens), expected=asdict(expected(level)), faults=found)
            if engine.errored:
                break
        write("view", drafts=pair, **await call(engine, "mix_seen"))
        write("end", errored=engine.errored)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
