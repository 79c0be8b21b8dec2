"""The effects of faults on the engine: acceptance, reused blocks, durations, and ends."""

from __future__ import annotations

from sparkwright.verify.simulator.faults import Faults, slow_state
from sparkwright.verify.simulator.request import Request

BLOCK_TABLE = "RuntimeError: block_table must have shape (batch_size, max_num_blocks_per_seq)"

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


class EngineDeadError(Exception):
    """A step failed in a way that ends the engine; the message is the one in the log."""


class OutOfMemoryError(Exception):
    """The kernel kills the whole server."""


class FaultEffects:
    """The effects of one server's faults on its engine; without faults there are none."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def acceptance(self, request: Request, now: float, batch: int) -> float:
        """Return the factor on the chance of acceptance; 1 when healthy.

        Args:
            request: the request whose draft is verified.
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
        """Return the factor on acceptance that depends on time."""
        faults, factor = self._faults, 1.0
        onset, floor = faults.value("decay-step", "onset_s"), faults.value("decay-step", "floor")
        if onset is not None and floor is not None and now >= onset:
            factor = floor
        onset, over = faults.value("decay-linear", "onset_s"), faults.value("decay-linear", "over_s")
        floor = faults.value("decay-linear", "floor")
        if onset is not None and over is not None and floor is not None:
            factor *= max(floor, 1 - (1 - floor) * max(0.0, now - onset) / over)
        return factor

    def reuse(self, request: Request, blocks: int, size: int) -> None:
        """Apply the faults of reused blocks to *request*, of which the cache has so many *blocks*.

        Args:
            request: the request, which has not begun.
            blocks: blocks that it takes from the cache.
            size: tokens of a block.
        """
        if not blocks:
            return
        faults = self._faults
        rate = faults.value("stale-cache", "rate")
        if len(request.tokens) % size == 0 and rate is None:
            rate = faults.value("stale-block", "rate")
        if rate is not None:
            request.generator.go_wrong(rate)
        error = faults.value("late-state", "error")
        if error is not None and len(request.hashes) > blocks:
            request.generator.misjudge(error)

    def duration(self, now: float) -> float:
        """Return the factor on the duration of a step that begins at *now*; 1 when healthy."""
        slow, flood = self._faults.value("slow", "factor"), self._faults.value("flood", "factor")
        stuck = self._faults.value_or("slow-state", "factor", 1.0) if slow_state(self._faults, now) else 1.0
        return (slow or 1.0) * stuck / (flood or 1.0)

    def check_prompt(self, tokens: int, longest: int) -> None:
        """Raise if a fault ends the engine at a prompt of so many *tokens*, of *longest* at the most.

        Raises:
            EngineDeadError: the engine dies.
        """
        share = self._faults.value("limit-crash", "share")
        if share is not None and tokens >= share * longest:
            raise EngineDeadError(ILLEGAL)

    def check_batch(self, batch: int, before: int) -> None:
        """Raise if a fault ends the engine or the server at this batch size.

        Args:
            batch: requests that decode in this step.
            before: the same for the step before.

        Raises:
            EngineDeadError: the engine dies.
            OutOfMemoryError: the server dies.
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
