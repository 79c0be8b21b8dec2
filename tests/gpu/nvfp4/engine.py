"""The process that serves a tiny model over one kind of cache: ``python -m nvfp4.engine SPEC``.

What is asked, and what is counted, is `pair`'s; here the cache's type is chosen, the pool has a size in
bytes, and the drafter may be missing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from pair import engine as served
from pair.load import Observed, faults, workload
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.v1.engine.async_llm import AsyncLLM

from nvfp4.record import Recorder
from nvfp4.serve import odd_layers

SECONDS = 60  # for one level


def arguments(spec: dict[str, Any]) -> Any:
    """`pair`'s engine arguments, over the named cache, with or without the drafter."""
    found = served.engine_args(spec)
    found.kv_cache_dtype = spec["cache"]
    found.attention_backend = spec["backend"]
    found.kv_cache_memory_bytes = spec["cache_bytes"]
    found.worker_extension_cls = "nvfp4.worker.CacheView"
    if not spec["eager"]:  # graphs of whole decode steps, without compiling the model
        found.compilation_config = CompilationConfig(
            mode=CompilationMode.NONE, cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY
        )
    if not spec["drafter"]:
        found.speculative_config = None
    else:
        found.speculative_config |= spec["speculative_extra"]
    return found


async def plain(engine: AsyncLLM, level: int) -> tuple[list[str], int, float]:
    """Serve one level without a drafter: what is wrong, tokens and seconds."""
    tally, started = served.Tally(), time.monotonic()
    served.LiveBatch.seen.clear()
    try:
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(tally.client(engine, requests) for requests in workload(level)))
    except TimeoutError:
        tally.errors.append(f"not done after {SECONDS} s")
    seconds = time.monotonic() - started
    found = list(tally.errors)
    asked = {request.name: request.output for client in workload(level) for request in client}
    if tally.received != asked:
        wrong = {name for name in asked if tally.received.get(name) != asked[name]}
        found.append(f"{len(wrong)} of {len(asked)} requests ended otherwise than asked")
    peak = max(served.LiveBatch.seen, default=0)
    if peak != level:
        found.append(f"at most {peak} requests ran at once")
    if engine.errored or not await served.answers(engine):
        found.append("the engine did not answer the request that followed")
    return found, sum(tally.received.values()), seconds


async def drafted(engine: AsyncLLM, level: int, *, graphs: bool) -> tuple[list[str], int, float]:
    """Serve with the drafter, and compare every counter with its prediction."""
    seen: Observed = await served.serve(engine, level)
    # How many graphs are replayed depends on the mode, which is not `pair`'s here.
    found = [fault for fault in faults(seen, graphs=graphs) if "CUDA graph" not in fault]
    return found, sum(seen.received.values()), seen.seconds


async def run(spec: dict[str, Any], record: Recorder) -> None:
    """Boot, look at the caches, serve every level."""
    name, started = spec["run"], time.monotonic()
    engine = AsyncLLM.from_engine_args(arguments(spec), stat_loggers=[served.LiveBatch])
    try:
        async with asyncio.timeout(SECONDS):
            view = (await engine.collective_rpc("pair_boot"))[0]
            caches = (await engine.collective_rpc("nvfp4_caches"))[0]
        alive = await served.answers(engine, served.FIRST_SECONDS)
        record.write("boot", run=name, seconds=round(time.monotonic() - started, 1), view=view, caches=caches)
        record.check(f"{name}: first request", alive, f"{time.monotonic() - started:.1f} s")
        judge(spec, view, caches, record)
        for level in spec["levels"]:
            if spec["drafter"]:
                found, tokens, seconds = await drafted(engine, level, graphs=not spec["eager"])
            else:
                found, tokens, seconds = await plain(engine, level)
            record.write("level", run=name, c=level, tokens=tokens, seconds=round(seconds, 3), faults=found)
            record.check(f"{name}: c={level}", not found, "; ".join(found[:6]))
            if engine.errored:
                break
        record.check(f"{name}: alive at the end", not engine.errored)
    finally:
        engine.shutdown()


def judge(spec: dict[str, Any], view: dict[str, Any], caches: dict[str, Any], record: Recorder) -> None:
    """Check that every layer has the requested cache and backend, and that the named runner runs."""
    layers = caches["layers"]
    kinds = sorted({f"{layer['dtype']} on {layer['backend']}" for layer in layers.values()})
    odd = odd_layers(spec, layers)
    record.check(
        f"{spec['run']}: caches",
        layers and not odd,
        f"{len(layers)} layers: {', '.join(kinds)}{'; not as asked: ' if odd else ''}{', '.join(odd)}",
    )
    drafted_layers = spec["layers"] + (spec["drafter_layers"] if spec["drafter"] else 0)
    record.check(f"{spec['run']}: layers", len(layers) == drafted_layers, f"{len(layers)}")
    second = ".worker.gpu." in view["runner"]
    record.check(f"{spec['run']}: runner", second == (spec["runner"] == "v2"), view["runner"])
    record.check(f"{spec['run']}: graphs", bool(view["captured"]) != spec["eager"], str(view["captured"]))


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    recorder = Recorder(Path(given["lines"]), "serve")
    try:
        asyncio.run(run(given, recorder))
    except BaseException as error:
        recorder.check(f"{given['run']}: engine", ok=False, detail=f"{type(error).__name__}: {error}"[:600])
        raise
    recorder.write("end", name=given["run"])
