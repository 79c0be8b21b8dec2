"""The simulated card: clock, power, temperature and utilization by the load, in ``nvidia-smi``'s words."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from sparkwright.verify.simulator.faults import Faults, slow_state

CARD_PAGE: Final = "/simulator/card"
"""The page with the readings: one line of CSV, see `engine.server.host.CARD_QUERY`."""

# A GB10 by reports of its users: 2.4 of 3.0 GHz under load, 500 to 850 MHz in its slow state.
_MOST_MHZ, _BUSY_MHZ, _IDLE_MHZ, _STUCK_MHZ = 3003, 2411, 208, 611
_IDLE_W, _BUSY_W, _REQUEST_W, _STUCK_W, _SPINNING_W = 4.5, 32.0, 0.5, 14.0, 18.0
_ROOM_C, _C_PER_W = 33.0, 0.6
_WINDOW_S: Final = 1.0  # over which the driver averages
_SLOW_C_S: Final = 60.0  # time in which the temperature follows
_IDLE, _CAPPED = 0x1, 0x4  # reasons for clocks: nothing to do, the usual power cap


class SimulatedCard:
    """A card that works for as long as steps take.

    Attributes:
        spins: it waits in a kernel: full utilization, little power.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._steps: deque[tuple[float, float, int]] = deque()
        self.spins = False
        self._warmth = 0.0  # watts, averaged over minutes
        self._at = 0.0

    def work(self, begin: float, end: float, requests: int) -> None:
        """Note a step between two simulated moments that brought tokens of so many requests."""
        self._steps.append((begin, end, requests))
        while self._steps and self._steps[0][1] < begin - 2 * _WINDOW_S:
            self._steps.popleft()

    def reading(self, now: float) -> str:
        """Return the line of ``nvidia-smi`` at the simulated time *now*."""
        begin = now - _WINDOW_S
        spans = [(max(0.0, min(end, now) - max(start, begin)), many) for start, end, many in self._steps]
        busy = min(1.0, sum(seconds for seconds, _ in spans) / _WINDOW_S)
        requests = sum(seconds * many for seconds, many in spans) / _WINDOW_S
        clock, power = float(_BUSY_MHZ if busy else _IDLE_MHZ), busy * _BUSY_W + requests * _REQUEST_W
        if slow_state(self._faults, now):
            clock, power = min(clock, _STUCK_MHZ), min(power, _STUCK_W)
        if self.spins:
            busy, clock, power = 1.0, _BUSY_MHZ, _SPINNING_W
        power = max(power, _IDLE_W)
        temperature = _ROOM_C + _C_PER_W * self._warm(now, power)
        reasons = _CAPPED if busy else _IDLE
        return f"{clock:.0f}, {power:.2f}, {temperature:.0f}, {100 * busy:.0f}, {_MOST_MHZ}, 0x{reasons:016x}"

    def _warm(self, now: float, power: float) -> float:
        share = 1 - math.exp(-max(0.0, now - self._at) / _SLOW_C_S)
        self._warmth += share * (power - self._warmth)
        self._at = now
        return self._warmth
