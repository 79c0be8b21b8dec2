"""Our own client as a program of its own, for `peers`.

python scripts/bench/peers_own.py URL MODEL LEVEL REQUESTS TOKENS FILE
"""

from __future__ import annotations

import asyncio
import csv
import sys
from pathlib import Path

from sparkwright.engine.cell import Cell, Deadlines, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint, open_session
from sparkwright.engine.client.load import run_load


async def measure(endpoint: Endpoint, level: int, requests: int, tokens: int, file: Path) -> None:
    """Write the times of chats, *level* at a time, to *file*."""
    prompts = tuple(
        Prompt(name=f"{number}", category="code", text=f"[{level} {number}] Write a function in Python.")
        for number in range(requests)
    )
    load = Load(concurrency=level, requests=requests, warm_up=level, max_tokens=tokens, chat=True)
    cell = Cell(check="client", name=f"peers c={level}", load=load, prompts=prompts)
    async with open_session(endpoint) as session:
        samples = await run_load(session, endpoint, cell, Deadlines(), speed=1.0)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["request", "ttft_ms", "tpot_ms"])
        for sample in samples:
            if sample.counted and sample.failure is None:
                writer.writerow([sample.request, sample.ttft_ms, sample.tpot_ms])


if __name__ == "__main__":
    url, model, level, requests, tokens, target = sys.argv[1:]
    asyncio.run(measure(Endpoint(url, model), int(level), int(requests), int(tokens), Path(target)))
