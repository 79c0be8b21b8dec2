"""The lateness of the client's event loop, which limits the accuracy of its times."""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import TracebackType
from typing import Self

_EVERY_S = 0.05


class LagProbe:
    """A timer every 50 ms whose lateness is recorded; an async context manager."""

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def worst_ms(self) -> float:
        """Return the greatest lateness of a timer, in milliseconds."""
        return max(self._late_ms, default=0.0)

    @property
    def p99_ms(self) -> float:
        """Return the 99th percentile of lateness, in milliseconds."""
        ordered = sorted(self._late_ms)
        return ordered[int(0.99 * (len(ordered) - 1) + 0.5)] if ordered else 0.0

    async def _watch(self) -> None:
        while True:
            due = perf_counter() + _EVERY_S
            try:
                await asyncio.sleep(_EVERY_S)
            finally:
                # When it is over meanwhile, a timer that is overdue counts too.
                self._late_ms.append(max(0.0, perf_counter() - due) * 1e3)
