"""Measure the errors of the verify client's figures at several concurrencies, by the simulator's own notes.

    python scripts/bench/client.py [--levels 1,8,64] [--rate 400] [--tokens 256] [--beside FOLDER]

The goal, at 64 requests and 400 events a second: 99 of 100 times to the first token are wrong by 3 ms at
most, and times per output token by 1 %. With ``--beside``, the client of ``vllm bench serve`` is measured in
the same way; FOLDER is a vllm package, installed or unpacked, and that one file of it is all that runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sparkwright.engine.client import LagProbe, calibrate
from sparkwright.engine.client.calibrate import EVENTS_PER_S, Floor
from sparkwright.engine.observations import Chunk, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.engine.client import Endpoint

TTFT_GOAL_MS = 3.0
TPOT_GOAL_PERCENT = 1.0
HEAD = ("c", "requests", "events/s", "TTFT p50 ms", "p99 ms", "of it read", "TPOT p50 %", "p99 %", "loop lag")


def main() -> int:
    """Print one row for each concurrency; 1 if our client misses the goal at any."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--levels", default="1,8,64")
    options.add_argument("--rate", type=float, default=EVENTS_PER_S)
    options.add_argument("--tokens", type=int, default=256)
    options.add_argument("--beside", type=Path)
    chosen = options.parse_args()
    levels = [int(level) for level in chosen.levels.split(",")]
    floors = asyncio.run(calibrate.calibrate(levels, tokens=chosen.tokens, events_per_s=chosen.rate))
    show("sparkwright", floors)
    if chosen.beside:
        show(
            "vllm bench serve", asyncio.run(measure_other(chosen.beside, levels, chosen.tokens, chosen.rate))
        )
    met = all(
        floor.ttft_p99_ms <= TTFT_GOAL_MS and floor.tpot_p99_percent <= TPOT_GOAL_PERCENT for floor in floors
    )
    goal = f"goal (TTFT p99 <= {TTFT_GOAL_MS:g} ms, TPOT p99 <= {TPOT_GOAL_PERCENT:g} %)"
    print(f"{goal}: {'met' if met else 'missed'}")
    return 0 if met else 1


def show(title: str, floors: Sequence[Floor]) -> None:
    """Print a table."""
    print(title)
    print("  ".join(HEAD))
    for floor in floors:
        errors = (floor.ttft_p50_ms, floor.ttft_p99_ms, floor.read_p99_ms)
        figures = (*errors, floor.tpot_p50_percent, floor.tpot_p99_percent, floor.lag_p99_ms)
        row = [str(floor.concurrency), str(floor.requests), f"{floor.events_per_s:.0f}"]
        row += [f"{value:.3f}" for value in figures]
        print("  ".join(cell.rjust(len(head)) for cell, head in zip(row, HEAD, strict=True)))


# The client of vllm bench serve -------------------------------------------------------------------------


def load_other(folder: Path) -> Any:
    """Return the module of *folder* that sends requests; stand-ins replace its unused progress bar."""
    path = folder / "benchmarks" / "lib" / "endpoint_request_func.py"
    spec = importlib.util.spec_from_file_location("other_client", path)
    if spec is None or spec.loader is None or not path.exists():
        raise SystemExit(f"{folder} is not a vllm package: it has no {path.relative_to(folder)}")
    bar = ModuleType("tqdm.asyncio")
    bar.tqdm = object  # type: ignore[attr-defined]
    for name, module in (("regex", re), ("tqdm", ModuleType("tqdm")), ("tqdm.asyncio", bar)):
        sys.modules.setdefault(name, module)
    other = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = other
    spec.loader.exec_module(other)
    return other


async def measure_other(folder: Path, levels: list[int], tokens: int, rate: float) -> list[Floor]:
    """Measure as `calibrate.calibrate`, with the other client."""
    other = load_other(folder)
    with tempfile.TemporaryDirectory(prefix="sparkwright-floor-") as name:
        place = Path(name)
        options = ("--step-ms", f"0,{1000 / rate:g},0,0.01")
        async with calibrate.simulator(place, *options, seqs=max(levels)) as endpoint:
            return [await other_floor(other, level, endpoint, place, tokens) for level in levels]


async def other_floor(other: Any, level: int, endpoint: Endpoint, place: Path, tokens: int) -> Floor:
    """Return the other client's error, in a closed loop of *level* after a warm-up."""
    import aiohttp

    requests = max(100, 3 * level)
    samples: list[Sample] = []
    turns = iter(range(-level, requests))
    # As `vllm bench serve` makes it.
    connector = aiohttp.TCPConnector(
        limit=level, limit_per_host=level, ttl_dns_cache=300, keepalive_timeout=60
    )
    async with LagProbe() as probe, aiohttp.ClientSession(connector=connector) as session:

        async def client() -> None:
            for number in turns:
                name = f"other-{level}-{number}"
                asked = other.RequestFuncInput(
                    prompt=f"[{level} {number}] Write a function in Python.",
                    api_url=endpoint.url + "/v1/completions",
                    prompt_len=0,
                    output_len=tokens,
                    model=endpoint.model,
                    ignore_eos=True,
                    request_id=name,
                )
                done = await other.async_request_openai_completions(asked, session)
                if number >= 0:
                    samples.append(as_sample(f"cmpl-{name}", done))

        async with asyncio.TaskGroup() as group:
            for _ in range(level):
                group.create_task(client())
                await asyncio.sleep(0.25 / level)
    known: dict[str, calibrate.CalibrationTruth] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while not {sample.request for sample in samples} <= known.keys():
                await asyncio.sleep(0.1)
                known = calibrate.read_truth(place / "truth.jsonl")
    return calibrate.floor(level, samples, known, lag_p99_ms=probe.p99_ms)


def as_sample(request: str, done: Any) -> Sample:
    """Return what the other client says of one request, in our terms."""
    if not done.success:
        raise SystemExit(f"the other client failed: {done.error}")
    start = int(done.start_time * 1e9)
    first, last = start + int(done.ttft * 1e9), start + int(done.latency * 1e9)
    between = [Chunk(at=first, tokens=1)] * (len(done.itl) - 1)
    return Sample(
        prompt=request,
        category="code",
        request=request,
        started=start,
        ended=last,
        chunks=(Chunk(at=first, tokens=1), *between, Chunk(at=last, tokens=1)),
        output_tokens=done.output_tokens,
    )


if __name__ == "__main__":
    raise SystemExit(main())
