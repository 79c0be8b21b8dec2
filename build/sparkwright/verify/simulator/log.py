"""The server's log: lines as vLLM writes them, stamped with simulated time."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.verify.simulator.bootlog import Line
    from sparkwright.verify.simulator.clock import Clock


class Log:
    """Writes to a file, or to the standard error stream."""

    def __init__(self, path: Path | None, clock: Clock, dialect: str, pids: tuple[int, int]) -> None:
        self._clock, self._dialect = clock, dialect
        self.server_pid, self.engine_pid = pids
        self._logger = logging.Logger("simulator")  # noqa: LOG001 - its own, in nobody's tree
        handler = logging.StreamHandler() if path is None else logging.FileHandler(path, encoding="utf-8")
        self._logger.addHandler(handler)

    def line(self, line: Line) -> None:
        """Write one of the lines that vLLM has."""
        self.write(line.text, where=line.where(self._dialect), level=line.level, engine=line.engine)

    def write(self, text: str, *, where: str, level: str = "INFO", engine: bool = False) -> None:
        """Write a line of the server's process, or of the engine's; without a place, only what it says."""
        process = f"EngineCore pid={self.engine_pid}" if engine else f"APIServer pid={self.server_pid}"
        if not where:
            self._logger.info("(%s) %s", process, text)
            return
        stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(self._clock.wall()))
        self._logger.info("(%s) %s %s [%s] %s", process, level, stamp, where, text)

    def access(self, peer: str, request: str, status: int, reason: str) -> None:
        """Write a line about a request, as uvicorn does."""
        self._logger.info(
            '(APIServer pid=%d) INFO:     %s - "%s" %d %s', self.server_pid, peer, request, status, reason
        )

    def close(self) -> None:
        """Write no more."""
        for handler in self._logger.handlers:
            handler.close()
