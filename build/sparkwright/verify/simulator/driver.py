"""The driver that runs the engine by the simulated clock and delivers the tokens of each step."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from typing import Final

from sparkwright.verify.simulator.machine import SimulatedCard
from sparkwright.verify.simulator.clock import Clock
from sparkwright.verify.simulator.engine import Engine
from sparkwright.verify.simulator.fault_effects import EngineDeadError, OutOfMemoryError
from sparkwright.verify.simulator.log import Log
from sparkwright.verify.simulator.request import Counters, Request, StreamDelta
from sparkwright.verify.simulator.settings import Settings

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
