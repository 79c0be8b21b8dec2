"""Talk with a program line by line while it runs: requests to its standard input, replies from its output."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess  # noqa: TID251
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

from sparkwright.base.process.run import TAIL, Completed, log_end, not_started
from sparkwright.base.process.session import kill_group

_PIECE = 1 << 16
_LONGEST = 1 << 27  # of a line: no program says so much at once


class Dialogue:
    """A running program in a session of its own, for the length of a ``with`` block.

    In a session of its own it gets no Ctrl-C: it learns of the end of this process, however that comes, by
    the end of its input, and has time to clean up.
    """

    def __init__(
        self, argv: Sequence[str | Path], *, patience_s: float = 60.0, output: IO[bytes] | None = None
    ) -> None:
        """Start the program.

        It is killed *patience_s* after the end of its input; a file *output* takes its output, of which
        `line` returns nothing then.

        Raises:
            ToolError: it does not exist, or may not be run.
        """
        self.argv = tuple(str(part) for part in argv)
        self._patience_s, self._started = patience_s, time.monotonic()
        self._rest, self._searched = bytearray(), 0
        self._result: Completed | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the dialogue
        pipe = subprocess.PIPE
        try:
            self._child = subprocess.Popen(
                self.argv,
                stdin=pipe,
                stdout=output or pipe,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise not_started(self.argv, error) from error

    def send(self, data: bytes) -> bool:
        """Write *data* to its input; return false if it no longer reads."""
        if self._child.stdin is None:
            return False
        left = memoryview(data)
        try:
            while left:
                left = left[self._child.stdin.write(left) or 0 :]
        except OSError:
            return False
        return True

    def line(self, wait_s: float) -> bytes | None:
        """Return its next line without the newline; `None` if none came in time.

        Raises:
            EOFError: its output has ended, or has a line without end.
        """
        end = time.monotonic() + wait_s
        while (at := self._rest.find(b"\n", self._searched)) < 0:
            self._searched = len(self._rest)
            if self._child.stdout is None:
                raise EOFError
            ready, _, _ = select.select([self._child.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            piece = os.read(self._child.stdout.fileno(), _PIECE)
            if not piece or len(self._rest) > _LONGEST:
                raise EOFError
            self._rest += piece
        found = bytes(self._rest[:at])
        del self._rest[: at + 1]
        self._searched = 0
        return found

    def poll(self) -> int | None:
        """Return its exit status; `None` while it runs."""
        return self._child.poll()

    def kill(self) -> None:
        """Kill it; `end` returns its result."""
        kill_group(self._child)

    def end(self) -> Completed:
        """End its input, wait until it has ended, and return the result; kill it where it takes too long."""
        if self._result is not None:
            return self._result
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(self._patience_s)
        finally:
            kill_group(self._child)
            if self._child.stdout is not None:
                self._child.stdout.close()
        with self._errors as errors:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL))
            said = errors.read().decode(errors="replace")
        seconds = time.monotonic() - self._started
        self._result = Completed(self.argv, self._child.returncode, b"", said, seconds)
        log_end(self._result, None)
        return self._result

    def __enter__(self) -> Self:
        """Return the dialogue itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.end()
