"""How wrong the verify client's figures are at several concurrencies, against the simulator's own notes.

    python scripts/bench/client.py [--levels 1,8,64] [--rate 400] [--tokens 256]

The goal: at 64 requests and 400 events a second, 99 of 100 times to the first token are wrong by 3 ms or less,
and times per output token by 1 % or less.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from sparkwright.verify.client.calibrate import EVENTS_PER_S, calibrate

if TYPE_CHECKING:
    from sparkwright.verify.client.calibrate import Floor

TTFT_GOAL_MS = 3.0
TPOT_GOAL_PERCENT = 1.0
HEAD = ("c", "requests", "events/s", "TTFT p50 ms", "p99 ms", "TPOT p50 %", "p99 %", "loop lag p99 ms")


def main() -> int:
    """Print one row for each concurrency; 1 if the goal is missed at any."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--levels", default="1,8,64")
    options.add_argument("--rate", type=float, default=EVENTS_PER_S)
    options.add_argument("--tokens", type=int, default=256)
    chosen = options.parse_args()
    levels = [int(level) for level in chosen.levels.split(",")]
    floors = asyncio.run(calibrate(levels, tokens=chosen.tokens, events_per_s=chosen.rate))
    print("  ".join(HEAD))
    for floor in floors:
        print("  ".join(cell.rjust(len(head)) for cell, head in zip(row(floor), HEAD, strict=True)))
    met = all(
        floor.ttft_p99_ms <= TTFT_GOAL_MS and floor.tpot_p99_percent <= TPOT_GOAL_PERCENT for floor in floors
    )
    print(
        f"goal (TTFT p99 <= {TTFT_GOAL_MS:g} ms, TPOT p99 <= {TPOT_GOAL_PERCENT:g} %):",
        "met" if met else "missed",
    )
    return 0 if met else 1


def row(floor: Floor) -> list[str]:
    """The cells of one row."""
    errors = (floor.ttft_p50_ms, floor.ttft_p99_ms, floor.tpot_p50_percent, floor.tpot_p99_percent)
    figures = [f"{value:.3f}" for value in (*errors, floor.lag_p99_ms)]
    return [str(floor.concurrency), str(floor.requests), f"{floor.events_per_s:.0f}", *figures]


if __name__ == "__main__":
    raise SystemExit(main())
