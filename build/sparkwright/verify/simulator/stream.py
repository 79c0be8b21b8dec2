"""One request for text, from its parameters to the last byte of its response.

`EventStream` writes server-sent events and applies the faults of streams; `TraceFile` records the true times
and counts of each request, to hold a client's figures against.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from sparkwright.engine.arrival import arrivals_of
from sparkwright.verify.simulator.engine import StreamDelta
from sparkwright.verify.simulator.faults import Faults
from sparkwright.verify.simulator.machine import DEAD, Driver
from sparkwright.verify.simulator.params import ApiError, RequestParams, make_request
from sparkwright.verify.simulator.response import ResponseBuilder


@dataclass
class RequestTrace:
    """The true figures of one request; times as of `time.perf_counter_ns`, one clock for all processes.

    Attributes:
        received_ns: arrival of its last byte at the socket, by the kernel's timestamp.
        first_token_written_ns: just before its first token's bytes were given to the kernel; 0 if never.
        last_token_written_ns: the same of its last token.
        number: from 1, in the order of arrival.
        chunks: events with tokens.
    """

    id: str
    received_ns: int
    first_token_written_ns: int = 0
    last_token_written_ns: int = 0
    tokens: int = 0
    number: int = 0
    chunks: int = 0

    @property
    def ttft_ms(self) -> float:
        """The true time to the first token."""
        return (self.first_token_written_ns - self.received_ns) / 1e6

    @property
    def tpot_ms(self) -> float:
        """The true time per output token after the first."""
        return (self.last_token_written_ns - self.first_token_written_ns) / 1e6 / (self.tokens - 1)


class TraceFile:
    """A file of `RequestTrace` lines; nothing is written without a *path*."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a", encoding="utf-8") if path else None

    def write(self, trace: RequestTrace) -> None:
        """Write one line and flush it."""
        if self._file and not self._file.closed:
            self._file.write(json.dumps(asdict(trace), ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()


CUTS: Final = ("cut-fin", "cut-close", "cut-reset", "cut-json", "error-in-band", "stall")
_DONE: Final = b"[DONE]"


class StreamCut(Exception):  # noqa: N818 - an effect of a fault, not an error of this program
    """A fault ended the stream early; the argument is the fault's name."""


class EventStream:
    """One streaming response."""

    def __init__(
        self,
        response: web.StreamResponse,
        transport: asyncio.Transport | None,
        faults: Faults,
        trace: RequestTrace,
    ) -> None:
        self._response, self._transport = response, transport
        self._socket = arrivals_of(transport)
        self._faults, self._trace = faults, trace
        self._line = b"\r\n" if "crlf" in faults else b"\n"
        self._waiting: list[tuple[bytes, int]] = []
        self._cut = next((name for name in CUTS if faults.hits(name, trace.number)), "")

    async def event(self, payload: dict[str, Any], *, tokens: int = 0) -> None:
        """Send one event, with so many generated tokens in it.

        Raises:
            StreamCut: a fault ends the stream here.
        """
        data = msgspec.json.encode(payload)
        if self._cut and self._trace.chunks >= (self._faults.value(self._cut, "chunks") or 0):
            await self._break(data)
        if "sse-comments" in self._faults:
            await self._send(b": ping - still here" + self._line + self._line, 0)
        await self._send(self._framed(data), tokens)

    async def done(self) -> None:
        """Send ``[DONE]`` and everything held back."""
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
            if self._socket is not None:  # bytes held back by a full socket count from here
                written = max(written, self._socket.last_sent_ns)
            trace = self._trace
            trace.first_token_written_ns = trace.first_token_written_ns or written
            trace.last_token_written_ns = written
            trace.tokens += tokens
            trace.chunks += sum(count > 0 for _, count in events)

    async def _write(self, data: bytes) -> None:
        size = self._faults.value("split-reads", "bytes")
        if size is None:
            await self._response.write(data)
            return
        for begin in range(0, len(data), int(size)):
            await self._response.write(data[begin : begin + int(size)])
            await asyncio.sleep(0)

    async def _break(self, data: bytes) -> None:
        """Apply the fault that ends this stream."""
        await self._flush()
        if self._cut == "cut-json":
            await self._write(self._framed(data[: len(data) // 2]) + self._framed(_DONE))
        elif self._cut == "error-in-band":
            error = ApiError(500, "InternalServerError", "Internal server error").body()
            await self._write(self._framed(msgspec.json.encode(error)) + self._framed(_DONE))
        elif self._cut == "stall":
            await asyncio.Event().wait()  # until the client gives up
        elif self._cut != "cut-fin":
            self._drop(reset=self._cut == "cut-reset")
        raise StreamCut(self._cut)

    def _drop(self, *, reset: bool) -> None:
        """Close the connection in the middle; a reset also discards bytes not yet delivered."""
        if self._transport is None:
            return
        connection = self._transport.get_extra_info("socket")
        if reset and connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


_STREAM: Final = {"Content-Type": "text/event-stream; charset=utf-8"}
_FIELDS: Final = {
    "reasoning-only": "reasoning",
    "reasoning-content": "reasoning_content",
    "tool-calls": "tool",
}
"""Fields that faults put the text of a chat into."""


class Generation:
    """The serving of one request."""

    def __init__(self, driver: Driver, params: RequestParams, number: int, received_ns: int) -> None:
        self._driver, self._params, self._settings = driver, params, driver.settings
        self.request = make_request(params, driver.settings, number)
        faults = driver.settings.faults
        self.trace = RequestTrace(id=self.request.name, number=number, received_ns=received_ns)
        silent = faults.hits("no-usage", number)
        self._usage = params.usage and not silent
        self._more = (
            int(faults.value("wrong-usage", "more") or 0) if faults.hits("wrong-usage", number) else 0
        )
        self._builder = ResponseBuilder(
            params,
            self.request,
            driver.settings,
            int(driver.clock.wall()),
            ids=not silent and "usage-at-end" not in faults,
            delta_kind=next((name for fault, name in _FIELDS.items() if fault in faults), "content"),
        )

    async def serve(self, http: web.Request) -> web.StreamResponse:
        """Respond; the request is dropped when its client disconnects.

        Raises:
            ApiError: the engine is dead.
        """
        if self._driver.dead:
            raise ApiError(500, "InternalServerError", DEAD)
        queue = self._driver.submit(self.request)
        try:
            return await (self._stream(http, queue) if self._params.stream else self._whole(queue))
        finally:
            self._driver.cancel(self.request)

    # One body --------------------------------------------------------------------------------------------

    async def _whole(self, queue: asyncio.Queue[StreamDelta | None]) -> web.Response:
        deltas: list[StreamDelta] = []
        while not deltas or not deltas[-1].finish:
            delta = await queue.get()
            if delta is None:
                raise ApiError(500, "InternalServerError", DEAD)
            deltas.append(delta)
        body = self._builder.whole(deltas, more=self._more)
        self.trace.tokens = sum(len(delta.choices) for delta in deltas)
        self.trace.first_token_written_ns = self.trace.last_token_written_ns = time.perf_counter_ns()
        self.trace.chunks = 1
        return web.json_response(body)

    # Events ----------------------------------------------------------------------------------------------

    async def _stream(
        self, http: web.Request, queue: asyncio.Queue[StreamDelta | None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM)
        await response.prepare(http)
        stream = EventStream(response, http.transport, self._settings.faults, self.trace)
        try:
            if self._settings.faults.hits("hang", self.request.number):
                await asyncio.Event().wait()  # until the client gives up
            await self._events(stream, queue)
            await stream.done()
        except (StreamCut, ConnectionError):
            return response
        await response.write_eof()
        return response

    async def _events(self, stream: EventStream, queue: asyncio.Queue[StreamDelta | None]) -> None:
        faults, opened, finish = self._settings.faults, False, ""
        while not finish:
            delta = await queue.get()
            if not opened:
                opened = True
                for event in self._builder.opening():
                    await stream.event(event)
                for _ in range(int(faults.value("role-chunks", "many") or 0)):
                    await stream.event(self._builder.event([self._odd({"role": "assistant"}, "")]))
            if delta is None:
                await stream.event(ApiError(500, "InternalServerError", DEAD).body())
                return
            if "empty-content" in faults:
                await stream.event(self._builder.event([self._odd({"content": ""}, "")]))
            await stream.event(self._builder.delta(delta), tokens=len(delta.choices))
            finish = delta.finish
        if self._usage:
            await stream.event(self._builder.closing(more=self._more))

    def _odd(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        """Return a choice without tokens."""
        content: dict[str, Any] = {"delta": delta} if self._params.chat else {"text": text}
        return {"index": 0, **content, "logprobs": None, "finish_reason": None}
