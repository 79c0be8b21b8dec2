"""The simulated clock, card and log, and the driver that runs the engine by them."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from sparkwright.verify.simulator.engine import (
    Counters,
    Engine,
    EngineDeadError,
    OutOfMemoryError,
    Request,
    StreamDelta,
)
from sparkwright.verify.simulator.faults import slow_state
from sparkwright.verify.simulator.settings import VERSION, Settings, plan_memory

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
_BUSY_W, _IDLE_W, _STUCK_W, _SPINNING_W = 40.0, 4.5, 14.0, 18.0
_TEMPERATURE_C: Final = 52  # no fault is of heat
_IDLE, _CAPPED = 0x1, 0x4  # reasons for clocks: nothing to do, the usual power cap


# The log -----------------------------------------------------------------------------------------------

_LARGEST: Final = 512


class LogLine(NamedTuple):
    """One line of the log.

    Attributes:
        where: the source file and line of vLLM 0.24 that write it; empty for a progress bar.
        engine: the engine's process writes it, not the API server's.
    """

    where: str
    text: str
    level: str = "INFO"
    engine: bool = True


def capture_sizes(settings: Settings) -> tuple[int, ...]:
    """Return the batch sizes (in tokens) that graphs are captured for, as the configuration lists them.

    vLLM logs the list before it rounds it to multiples of 1 + k for graphs of whole decode steps.
    """
    largest = min(_LARGEST, settings.max_num_seqs * (1 + settings.k) * 2)
    odd = 3 if "unrounded-graphs" in settings.faults else 0
    sizes = [1, 2, 4, *range(8 + odd, 256, 8), *range(256 + odd, _LARGEST + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def captured_sizes(settings: Settings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes that graphs are captured for: piecewise ones, and those of whole decode steps."""
    listed, step = capture_sizes(settings), 1 + settings.k
    if "unrounded-graphs" in settings.faults:
        rounded = listed
    else:
        rounded = tuple(sorted({-(-size // step) * step for size in listed}))
    rounded = tuple(size for size in rounded if size <= listed[-1])
    return rounded, tuple(size for size in rounded if step <= size <= step * settings.max_num_seqs)


def boot_lines(settings: Settings) -> Iterator[LogLine]:
    """Return the lines of a successful start, in order, up to the HTTP server's own."""
    values = _values(settings)
    states = {"k": settings.k, "estimated": values["graphs_gib"] > 0}
    holds = {*settings.faults.active, *(word for word, true in states.items() if true)}
    text = Path(__file__).with_name("boot.txt").read_text(encoding="utf-8")
    for line in (line for line in text.splitlines() if not line.startswith("#")):
        when, where, level, words = (part.strip() for part in line.split("|", 3))
        if all((word.lstrip("!") in holds) != word.startswith("!") for word in when.split()):
            yield LogLine(where.lstrip("@"), words.format_map(values), level, not where.startswith("@"))


def _values(settings: Settings) -> dict[str, Any]:
    """Return the values in the lines of a start by their names."""
    memory, (pieces, full) = plan_memory(settings), captured_sizes(settings)
    arguments = {
        "model": settings.model,
        "max_model_len": settings.max_model_len,
        "gpu_memory_utilization": settings.utilization,
        "kv_cache_dtype": memory.kv_dtype,
        "max_num_seqs": settings.max_num_seqs,
        "enable_prompt_tokens_details": True,
    }
    speculative = "None"
    if settings.k:
        arguments["speculative_config"] = {"method": settings.method, "num_speculative_tokens": settings.k}
        speculative = (
            f"SpeculativeConfig(method='{settings.method}', model='{settings.model}-{settings.method}', "
            f"num_spec_tokens={settings.k})"
        )
    return {
        **vars(settings),
        **vars(memory),
        "version": VERSION,
        "arguments": arguments,
        "speculative": speculative,
        "sizes": (sizes := list(capture_sizes(settings))),
        "largest_size": sizes[-1],
        "pieces": len(pieces),
        "largest_piece": pieces[-1],
        "full": len(full),
        "largest_full": max(full, default=0),
        "times": memory.kv_tokens / settings.max_model_len,
        "free": settings.total_gib - 3.1,
    }


def failing_lines(settings: Settings) -> tuple[LogLine, ...]:
    """Return the last lines of a start that fails; empty for one that succeeds."""
    faults = settings.faults
    if "boot-cuda-oom" in faults:
        reason = (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB. GPU 0 has a total "
            f"capacity of {settings.total_gib} GiB of which 1.12 GiB is free."
        )
    elif "boot-engine" in faults:
        reason = "ValueError: No valid attention backend found for cuda with head_size: 256, dtype: bfloat16."
    elif plan_memory(settings).kv_tokens < settings.max_model_len:
        reason = (
            "ValueError: To serve at least one request with the model's max seq len "
            f"({settings.max_model_len}), more KV cache is needed than is available."
        )
    else:
        return ()
    return (
        LogLine("core.py:1165", "EngineCore failed to start.", "ERROR"),
        LogLine("core.py:1165", "Traceback (most recent call last):", "ERROR"),
        LogLine("core.py:1165", reason, "ERROR"),
        LogLine(
            "api_server.py:581",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            "ERROR",
            engine=False,
        ),
    )


class Log:
    """A writer of log lines to a file, or to the standard error stream."""

    def __init__(self, path: Path | None, clock: Clock, pids: tuple[int, int]) -> None:
        self._clock = clock
        self.server_pid, self.engine_pid = pids
        self._logger = logging.Logger("simulator")  # noqa: LOG001 - independent of the logging hierarchy
        handler = logging.StreamHandler() if path is None else logging.FileHandler(path, encoding="utf-8")
        self._logger.addHandler(handler)

    def write(self, text: str, *, where: str, level: str = "INFO", engine: bool = False) -> None:
        """Write a line of the API server's process, or of the engine's; without a place, only its text."""
        process = f"EngineCore pid={self.engine_pid}" if engine else f"APIServer pid={self.server_pid}"
        if not where:
            self._logger.info("(%s) %s", process, text)
            return
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(self._clock.wall()))
        self._logger.info("(%s) %s %s [%s] %s", process, level, stamp, where, text)

    def close(self) -> None:
        """Write no more."""
        for handler in self._logger.handlers:
            handler.close()


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
        self.dead = ""
        self.exit_status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.started_s = clock.wall()
        self._queues: dict[Request, asyncio.Queue[StreamDelta | None]] = {}
        self._work = asyncio.Event()
        self._finished = 0
        self._due = math.inf  # end of the present step; infinite while none is made
        self._spins = False  # a kernel waits without end: full utilization, little power

    @property
    def card_reading(self) -> str:
        """The line of ``nvidia-smi`` of a card that works while a step is made, or waits in a kernel."""
        busy = self._spins or math.isfinite(self._due)
        clock, power = (_BUSY_MHZ, _BUSY_W) if busy else (_IDLE_MHZ, _IDLE_W)
        if busy and slow_state(self.settings.faults, self.clock.now()):
            clock, power = _STUCK_MHZ, _STUCK_W
        if self._spins:
            power = _SPINNING_W
        reasons = _CAPPED if busy else _IDLE
        return f"{clock}, {power:.2f}, {_TEMPERATURE_C}, {100 * busy}, {_MOST_MHZ}, 0x{reasons:016x}"

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
                self._spins = spins
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
