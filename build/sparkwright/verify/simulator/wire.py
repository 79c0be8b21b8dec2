"""Server-sent events on a socket, and all that can happen to them on the way."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sparkwright.verify.arrival import arrivals_of

if TYPE_CHECKING:
    from aiohttp import web

    from sparkwright.verify.simulator.faults import Faults
    from sparkwright.verify.simulator.truth import Witness

CUTS: Final = ("cut-fin", "cut-close", "cut-reset", "cut-json", "error-in-band", "stall")
_DONE: Final = b"[DONE]"


class StreamCut(Exception):  # noqa: N818 - what a fault does to a stream, no error of ours
    """The stream is over before its end; the argument is the fault's name."""


class Wire:
    """One response that streams.

    Args:
        response: prepared; its headers are out.
        transport: of its connection.
        faults: of the server.
        witness: takes note of what is written when.
    """

    def __init__(
        self,
        response: web.StreamResponse,
        transport: asyncio.Transport | None,
        faults: Faults,
        witness: Witness,
    ) -> None:
        self._response, self._transport = response, transport
        self._socket = arrivals_of(transport)
        self._faults, self._witness = faults, witness
        self._line = b"\r\n" if "crlf" in faults else b"\n"
        self._waiting: list[tuple[bytes, int]] = []
        self._cut = next((name for name in CUTS if faults.hits(name, witness.number)), "")
        if self._cut:
            witness.fault = self._cut

    async def event(self, payload: dict[str, Any], *, tokens: int = 0) -> None:
        """Send one event, with so many generated tokens in it.

        Raises:
            StreamCut: a fault ends the stream here.
        """
        data = msgspec.json.encode(payload)
        if self._cut and self._witness.chunks >= (self._faults.value(self._cut, "chunks") or 0):
            await self._break(data)
        if "sse-comments" in self._faults:
            await self._send(b": ping - still here" + self._line + self._line, 0)
        await self._send(self._framed(data), tokens)

    async def done(self) -> None:
        """Send the end."""
        await self._send(self._framed(_DONE), 0)
        await self._flush()

    def _framed(self, data: bytes) -> bytes:
        return b"data: " + data + self._line + self._line

    async def _send(self, data: bytes, tokens: int) -> None:
        many = math.inf if "buffered" in self._faults else self._faults.value("joined-events", "many")
        self._waiting.append((data, tokens))
        if many is None or len(self._waiting) >= many:
            await self._flush()

    async def _flush(self) -> None:
        events, self._waiting = self._waiting, []
        tokens = sum(count for _, count in events)
        written = time.perf_counter_ns()
        await self._write(b"".join(data for data, _ in events))
        if tokens:
            if self._socket is not None:  # what is held back by a full socket counts as written here
                written = max(written, self._socket.last_sent_ns)
            witness = self._witness
            witness.first_token_written_ns = witness.first_token_written_ns or written
            witness.last_token_written_ns = written
            witness.tokens += tokens
            witness.chunks += sum(count > 0 for _, count in events)

    async def _write(self, data: bytes) -> None:
        size = self._faults.value("split-reads", "bytes")
        if size is None:
            await self._response.write(data)
            return
        for begin in range(0, len(data), int(size)):
            await self._response.write(data[begin : begin + int(size)])
            await asyncio.sleep(0)

    async def _break(self, data: bytes) -> None:
        """Do what the fault does to this stream."""
        await self._flush()
        if self._cut == "cut-json":
            await self._write(self._framed(data[: len(data) // 2]) + self._framed(_DONE))
        elif self._cut == "error-in-band":
            error = {
                "message": "Internal server error",
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            }
            await self._write(self._framed(msgspec.json.encode({"error": error})) + self._framed(_DONE))
        elif self._cut == "stall":
            await asyncio.Event().wait()  # until the client gives up
        elif self._cut != "cut-fin":
            self._drop(reset=self._cut == "cut-reset")
        raise StreamCut(self._cut)

    def _drop(self, *, reset: bool) -> None:
        """Close the connection in the middle; with a reset, what is on the way is lost too."""
        if self._transport is None:
            return
        connection = self._transport.get_extra_info("socket")
        if reset and connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
