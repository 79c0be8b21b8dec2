"""The simulated clock and card, and the driver that runs the engine by them."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections import deque
from typing import Final

from sparkwright.verify.simulator.engine import Engine, EngineDeadError, OutOfMemoryError
from sparkwright.verify.simulator.faults import Faults, slow_state
from sparkwright.verify.simulator.log import Log
from sparkwright.verify.simulator.request import Counters, Request, StreamDelta
from sparkwright.verify.simulator.settings import Settings

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


# The driver --------------------------------------------------------------------------------

DEAD: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_AT_ONCE: Final = 8  # deltas that are delivered before new requests are admitted
_GRACE_S: Final = 0.5  # real seconds from the engine's death to the server's, for error responses


class Driver:
    """One engine, its clock, and a queue of tokens for each request.

    Attributes:
        dead: the reason of the engine's death, or empty.
        exit_status: the server's exit status, once it must end.
        started_s: start of the server as its metrics give it, seconds since 1970.
    """

    def __init__(self, settings: Settings, clock: Clock, log: Log) -> None:
        self.settings, self.clock, self.log = settings, clock, log
        self.engine = Engine(settings)
        self.card = SimulatedCard(settings.faults)
        self.dead = ""
        self.exit_status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.started_s = clock.wall()
        self._queues: dict[Request, asyncio.Queue[StreamDelta | None]] = {}
        self._work = asyncio.Event()
        self._finished = 0
        self._due = math.inf  # end of the present step; infinite while none is made

    @property
    def card_reading(self) -> str:
        """The readings of the card. A machine that is late with its steps does not make it look idle."""
        return self.card.reading(min(self.clock.now(), self._due))

    def submit(self, request: Request) -> asyncio.Queue[StreamDelta | None]:
        """Queue *request*; the returned queue yields its tokens, and `None` if the engine dies."""
        queue: asyncio.Queue[StreamDelta | None] = asyncio.Queue()
        self._queues[request] = queue
        self.engine.add(request)
        self._work.set()
        return queue

    def cancel(self, request: Request) -> None:
        """Drop *request*, whose client has disconnected or has everything."""
        self.engine.abort(request)
        self._queues.pop(request, None)

    async def run(self) -> None:
        """Step until the engine dies."""
        due = self.clock.now()
        while not self.dead:
            if not self.engine.busy:
                self._due = math.inf
                self._work.clear()
                await self._work.wait()
                due = self.clock.now()
            after = self.settings.faults.value("dead-engine", "after")
            spins = len(self.engine.running) >= self.settings.faults.value_or("wedge", "batch", math.inf)
            if spins or (after is not None and self._finished >= after):
                self._due = math.inf
                self.card.spins = spins
                return  # undetected: /health still answers 200
            try:
                step = self.engine.step(due)
            except EngineDeadError as error:
                self.fail(str(error))
                return
            except OutOfMemoryError:
                os.kill(os.getpid(), signal.SIGKILL)
                return
            self._due = due + step.seconds
            self.card.work(due, self._due, len(step.deltas))
            due = await self.clock.sleep_until(due + step.seconds)
            for index, (request, delta) in enumerate(step.deltas, 1):
                self._deliver(request, delta)
                if not index % _AT_ONCE:
                    await asyncio.sleep(0)

    def _deliver(self, request: Request, delta: StreamDelta) -> None:
        queue = self._queues.get(request)
        if queue is not None:
            queue.put_nowait(delta)
        if delta.finish:
            self._finished += 1
            if self._finished == self.settings.faults.value("counter-reset", "after"):
                self.engine.counters = Counters(self.settings.k)
                self.started_s = self.clock.wall()

    def fail(self, reason: str) -> None:
        """Mark the engine dead, notify all waiting requests, and end the server soon."""
        if self.dead:
            return
        self.dead = reason
        for text in ("EngineCore encountered a fatal error.", "Traceback (most recent call last):", reason):
            self.log.write(text, where="core.py:1174", level="ERROR", engine=True)
        self.log.write(
            f"AsyncLLM output_handler failed: vllm.v1.engine.exceptions.EngineDeadError: {DEAD}",
            where="async_llm.py:708",
            level="ERROR",
        )
        for queue in self._queues.values():
            queue.put_nowait(None)
        asyncio.get_running_loop().call_later(_GRACE_S, self.stop, 1)

    def stop(self, status: int) -> None:
        """End the server with *status*."""
        if not self.exit_status.done():
            self.exit_status.set_result(status)
