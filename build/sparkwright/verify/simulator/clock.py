"""The simulated clock."""

from __future__ import annotations

import asyncio
import time
from typing import Final

_MOST_LATE_S: Final = 0.5  # real seconds; a machine that is slower than this stretches simulated time


class Clock:
    """Simulated seconds since its creation, *speed* of them in a real second."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self.epoch_s = time.time()
        self._origin = time.perf_counter()

    def now(self) -> float:
        """Return simulated seconds since the start."""
        return (time.perf_counter() - self._origin) * self.speed

    def wall(self) -> float:
        """Return the simulated time of day, in seconds since 1970."""
        return self.epoch_s + self.now()

    async def sleep_until(self, moment: float) -> float:
        """Sleep until the simulated *moment*; returns it, or the present where that is long past.

        Being late does not move the moments that follow, so that rates stay right while a busy machine
        catches up; only lateness of more than half a second is given up.
        """
        late = (self.now() - moment) / self.speed
        await asyncio.sleep(max(0.0, -late))
        return moment if late < _MOST_LATE_S else self.now()

    async def sleep(self, seconds: float) -> None:
        """Sleep for simulated *seconds*."""
        await asyncio.sleep(seconds / self.speed)
