"""What faults do to the engine: to acceptance, to the duration of steps, and to its life."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkwright.verify.simulator.faults import Faults
    from sparkwright.verify.simulator.request import Request

BLOCK_TABLE = "RuntimeError: block_table must have shape (batch_size, max_num_blocks_per_seq)"


class EngineDeadError(Exception):
    """A step went wrong in a way that ends the engine; the message is what the log shows."""


class OutOfMemoryError(Exception):
    """The kernel kills the whole server."""


class Harm:
    """The faults of one server, as seen by its engine. Without faults it changes nothing."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def acceptance(self, request: Request, now: float, batch: int) -> float:
        """By how much the chance of acceptance is scaled; 1 when healthy.

        Args:
            request: whose draft it is.
            now: simulated seconds since the start.
            batch: requests in this step.
        """
        faults = self._faults
        if "inert" in faults or "nan-drafts" in faults:
            return 0.0
        factor = self._decayed(now)
        floor = faults.value("decay-cached", "floor")
        if floor is not None:
            factor *= 1 - (1 - floor) * max(request.cached, 0) / request.prompt_tokens
        beyond, floor = faults.value("long-context", "beyond"), faults.value("long-context", "floor")
        if beyond is not None and floor is not None and len(request.tokens) > beyond:
            factor *= floor
        power = faults.value("falls-with-load", "power")
        return factor if power is None else factor * batch**-power

    def _decayed(self, now: float) -> float:
        """What time has left of acceptance."""
        faults, factor = self._faults, 1.0
        onset, floor = faults.value("decay-step", "onset_s"), faults.value("decay-step", "floor")
        if onset is not None and floor is not None and now >= onset:
            factor = floor
        onset, over = faults.value("decay-linear", "onset_s"), faults.value("decay-linear", "over_s")
        floor = faults.value("decay-linear", "floor")
        if onset is not None and over is not None and floor is not None:
            factor *= max(floor, 1 - (1 - floor) * max(0.0, now - onset) / over)
        return factor

    def duration(self) -> float:
        """By how much a step's duration is scaled; 1 when healthy."""
        slow, flood = self._faults.value("slow", "factor"), self._faults.value("flood", "factor")
        return (slow or 1.0) / (flood or 1.0)

    def check_batch(self, batch: int, before: int) -> None:
        """Die where a fault says so.

        Args:
            batch: requests that decode in this step.
            before: the same in the step before.

        Raises:
            EngineDeadError: the engine dies.
            OutOfMemoryError: the server does.
        """
        faults = self._faults
        at = faults.value("crash-at", "batch")
        off_grid = faults.value("crash-off-grid", "batch")
        drain = faults.value("crash-on-drain", "batch")
        if (at is not None and batch >= at) or batch == off_grid or (batch == drain and batch < before):
            raise EngineDeadError(BLOCK_TABLE)
        memory = faults.value("oom-under-load", "batch")
        if memory is not None and batch >= memory:
            raise OutOfMemoryError
