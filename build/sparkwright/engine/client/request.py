"""One request and its outcome, a plain request for a few tokens, and the token count of a text.

Every behaviour of the server is recorded in the sample.

The clock is `perf_counter_ns`: the time at which the request was passed to the socket, and the arrival of the
response's bytes at the socket, however late they are read. A request counts only if its stream ended
correctly: ``[DONE]``, a finish reason, a consistent count of tokens that is the requested one.
"""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import EndpointError
from sparkwright.engine.arrival import ArrivalSocket, arrivals_of
from sparkwright.engine.cell import Deadlines, Load, Prompt
from sparkwright.engine.client.endpoint import ABSENT, Endpoint, open_session, read_body
from sparkwright.engine.client.payload import body_of
from sparkwright.engine.client.reply import Reply, ReplyError
from sparkwright.engine.client.stream import EventParser, warn_once
from sparkwright.engine.observations import FailureKind, RequestFailure, Sample

if TYPE_CHECKING:
    import aiohttp


_OK = 200
_EXCERPT = 300
_LAST_BYTES_S = 1.0  # for the end of the response that follows [DONE]
# Allowance beyond the requested length. Chunks without tokens of their own, such as a parser's, are a few;
# an event with log-probabilities is some kB a token, and the first one repeats the ids of the prompt.
_MORE_TOKENS = 64
_MORE_BYTES, _BYTES_A_TOKEN = 4 << 20, 1 << 15
_OWN_S = 1.0  # allowance for delays of the client's machine
_NEARLY = 0.98  # of a deadline: clocks are read one after another
_CLOSED_WITHIN_S = 1.0
"""From a request to the end of a connection that its server had closed before: the way there and back."""


def patience(seconds: float, speed: float) -> float:
    """Return *seconds* of the server's clock as real seconds to wait.

    A simulated clock may run faster than the real one, but the machine that both run on does not: an
    allowance for its delays is added as the speed grows.
    """
    return seconds / speed + _OWN_S * max(0.0, 1 - 1 / speed)


@dataclass(eq=False)
class Exchange:
    """One request: ready to be sent when created, and with a sample at any time after.

    Attributes:
        load: endpoint, sampling, log-probabilities, natural stop.
        max_tokens: tokens of output; exactly so many unless the load lets the model stop by itself.
        speed: seconds of the server's clock in a real one.
        counted: the sample belongs to the measurement.
        salt: makes the prompt unique; see `salted`.
        due: time at which an open loop means to send it; 0 for other loads.
        refusable: a sound server may refuse it. vLLM closes the connection of some requests that it refuses
            without a word of it, so that the next one on it would break: it gets a connection of its own.
    """

    endpoint: Endpoint
    prompt: Prompt
    load: Load
    _: KW_ONLY
    max_tokens: int
    deadlines: Deadlines
    speed: float
    counted: bool = True
    salt: str = ""
    due: int = 0
    refusable: bool = False

    def __post_init__(self) -> None:
        self._url = self.endpoint.url + ("/v1/chat/completions" if self.load.chat else "/v1/completions")
        self._body = body_of(self.endpoint, self.prompt, self.salt, self.load, self.max_tokens)
        self._begin()

    async def run(self, session: aiohttp.ClientSession) -> Sample:
        """Send the request and read the response; never raises for the server's behaviour.

        It is sent once more, on a connection of its own, if one that was kept open broke at once, before the
        response: HTTP lets servers, and proxies before them, close such a one at any time (RFC 9112, section
        9.3.1). One that breaks later had been working on the request, and lost it: that is a failure.

        The connection is returned or closed when this returns or is cancelled.
        """
        if not self.refusable:
            sample = await self._run(session)
            if not self._lost:
                return sample
            warn_once(
                f"{self.endpoint.url}: connections that were kept open break before a response, perhaps by "
                "a proxy on the way; such requests are sent once more, on a new connection"
            )
        async with open_session(self.endpoint) as own:
            return await self._run(own)

    def _begin(self) -> None:
        self._started = self._headers = self._ended = self._behind = 0
        self._sent = self._reused = self._lost = False
        self._reply = Reply()
        self._failure: RequestFailure | None = None

    async def _run(self, session: aiohttp.ClientSession) -> Sample:
        """Send the request once and read the response."""
        import aiohttp

        self._begin()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.deadlines.connect_s)
        self._started = perf_counter_ns()
        self._behind = max(0, self._started - self.due) if self.due else 0
        try:
            async with (
                asyncio.timeout(patience(self.deadlines.first_token_s, self.speed)) as deadline,
                session.post(
                    self._url,
                    data=self._body,
                    headers={"Content-Type": "application/json"},
                    timeout=timeout,
                    allow_redirects=False,
                    trace_request_ctx=self,
                ) as response,
            ):
                connection = response.connection  # absent once the whole response has been read
                socket = arrivals_of(connection.transport if connection is not None else None)
                self._headers = _arrived_ns(socket)
                self._started = max(self._started, socket.sent_ns if socket is not None else 0)
                await self._check_head(response)
                await self._read(response, deadline, socket)
        except ReplyError as error:
            self._failure = error.failure
        except (aiohttp.ClientError, OSError) as error:
            self._failure = self._broken(error)
            late = perf_counter_ns() - self._started > _CLOSED_WITHIN_S * 1e9
            self._lost = self._reused and not late and not self._headers and is_closed(error)
        except RecursionError:
            self._failure = RequestFailure(kind=FailureKind.NOT_JSON, detail="a message is nested too deeply")
        finally:
            self._ended = self._ended or perf_counter_ns()
            for told in sorted(self._reply.odd):
                warn_once(f"{self.endpoint.url}: chunks of another form than OpenAI's are read, too: {told}")
        return self.sample()

    def sample(self) -> Sample:
        """Return everything known of the request."""
        reply = self._reply
        return Sample(
            prompt=self.prompt.name,
            category=self.prompt.category,
            counted=self.counted,
            request=reply.request,
            started=self._started,
            headers=self._headers,
            responded=reply.responded,
            ended=self._ended,
            chunks=tuple(reply.chunks),
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            output_tokens=reply.output_tokens,
            counted_by=reply.counted_by,
            finish_reason=reply.finish_reason,
            text=reply.text,
            token_ids=tuple(reply.token_ids),
            logprobs=tuple(reply.logprobs),
            reasoning_chars=reply.chars("reasoning"),
            tool_chars=reply.chars("tool"),
            tool_calls=reply.tool_calls,
            failure=self._failure,
            due=self.due,
            late=self._behind,
        )

    def note_sent(self) -> None:
        """Note that bytes of the request are written now."""
        if not self._sent:
            self._sent, self._started = True, perf_counter_ns()

    def note_reused(self) -> None:
        """Note that the request goes over a connection on which others went before."""
        self._reused = True

    async def _check_head(self, response: aiohttp.ClientResponse) -> None:
        """Refuse a response that is not an event stream, with its text as the reason."""
        if response.status == _OK and response.content_type == "text/event-stream":
            return
        body = await response.content.read(_EXCERPT * 10)
        text = " ".join(body.decode(errors="replace").split())[:_EXCERPT]
        if response.status != _OK:
            raise ReplyError(FailureKind.STATUS, f"status {response.status}: {text}", response.status)
        raise ReplyError(FailureKind.NOT_JSON, f"{response.content_type} instead of an event stream: {text}")

    async def _read(
        self, response: aiohttp.ClientResponse, deadline: asyncio.Timeout, socket: ArrivalSocket | None
    ) -> None:
        parser, reply = EventParser(), self._reply
        stall = patience(self.deadlines.stall_s, self.speed)
        now = asyncio.get_running_loop().time
        end = now() + patience(self.deadlines.whole_s(self.max_tokens), self.speed)
        left = _MORE_BYTES + _BYTES_A_TOKEN * self.max_tokens
        while data := await response.content.readany():
            at = _arrived_ns(socket)
            chunks = len(reply.chunks)
            left -= len(data)
            for event in parser.feed(data):
                reply.take(event.data, at, event.name)
                self._check_length(left)
            self._check_length(left)
            if reply.done:
                self._ended = at
                break
            if len(reply.chunks) > chunks:
                deadline.reschedule(min(now() + stall, end))
        reply.unread = parser.stray[:_EXCERPT].decode(errors="replace") or reply.unread
        self._failure = reply.problem(
            max_tokens=self.max_tokens,
            natural_stop=self.load.natural_stop,
        )
        if reply.done:
            await _read_to_end(response, deadline)

    def _check_length(self, bytes_left: int) -> None:
        """Refuse a stream that continues beyond the requested length, which might never end."""
        reply = self._reply
        came = max(len(reply.chunks), len(reply.token_ids))
        if not reply.done and (came > self.max_tokens + _MORE_TOKENS or bytes_left < 0):
            shown = f"{len(reply.chunks)} chunks and {len(reply.token_ids)} token ids"
            shown += " in more bytes than they can have" if bytes_left < 0 else ""
            raise ReplyError(
                FailureKind.RUNAWAY, f"{shown} came without an end, requested were {self.max_tokens}"
            )

    def _broken(self, error: Exception) -> RequestFailure:
        """Return the failure that *error* means at the request's present stage."""
        import aiohttp

        detail = " ".join(str(error).split())[:_EXCERPT] or type(error).__name__
        match error:
            case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
                kind = FailureKind.CONNECT
            case TimeoutError():
                kind, detail = self._late()
            case aiohttp.ClientPayloadError() if "ConnectionResetError" not in detail:
                kind = FailureKind.TRUNCATED
                detail = f"the response broke off after {len(self._reply.chunks)} chunks: {detail}"
            case aiohttp.ClientPayloadError() | aiohttp.ClientConnectionError() | OSError():
                kind = FailureKind.RESET
            case _:
                kind = FailureKind.NOT_JSON
        return RequestFailure(kind=kind, detail=detail)

    def _late(self) -> tuple[FailureKind, str]:
        if not self._reply.chunks:
            where = "after the headers" if self._headers else "and not even headers"
            return FailureKind.FIRST_TOKEN, f"no token within {self.deadlines.first_token_s:g} s, {where}"
        chunks, last = len(self._reply.chunks), self._reply.chunks[-1].at
        stall = patience(self.deadlines.stall_s, self.speed)
        if perf_counter_ns() - last < stall * 1e9 * _NEARLY:
            whole = self.deadlines.whole_s(self.max_tokens)
            return FailureKind.OVERDUE, f"no end within {whole:g} s, and {chunks} chunks until then"
        return FailureKind.STALL, f"nothing for {self.deadlines.stall_s:g} s after {chunks} chunks"


def is_closed(error: Exception) -> bool:
    """Tell if *error* means that a connection was closed before a byte of the response came."""
    import aiohttp

    match error:
        case aiohttp.ClientConnectorError():
            return False
        case aiohttp.ServerDisconnectedError():
            return isinstance(error.message, str)  # else the head of a response that had begun
        case _:
            return isinstance(error, aiohttp.ClientOSError | aiohttp.ClientConnectionResetError)


def _arrived_ns(socket: ArrivalSocket | None) -> int:
    """Return the arrival of the bytes last read; the present time where it is not recorded."""
    return socket.arrived_ns if socket is not None else perf_counter_ns()


async def _read_to_end(response: aiohttp.ClientResponse, deadline: asyncio.Timeout) -> None:
    """Read the bytes after ``[DONE]``, so that the connection can be reused; they change no outcome."""
    import aiohttp

    deadline.reschedule(None)
    try:
        async with asyncio.timeout(_LAST_BYTES_S):
            while await response.content.readany():
                pass
    except (aiohttp.ClientError, OSError):
        response.close()


_CANARY = Prompt(name="canary", category="canary", text="Count from one to ten: one, two, three,")
_CANARY_LOAD = Load(max_tokens=8)


async def canary(
    session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines, speed: float
) -> str:
    """Request a few tokens, within `Deadlines.canary_s`; returns empty on success, else the failure."""
    return str(await first_tokens(session, endpoint, deadlines, speed) or "")


async def first_tokens(
    session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines, speed: float
) -> RequestFailure | None:
    """Request a few tokens, as `canary` does; returns the failure, `None` on success."""
    limits = msgspec.structs.replace(deadlines, first_token_s=deadlines.canary_s, stall_s=deadlines.canary_s)
    exchange = Exchange(
        endpoint,
        _CANARY,
        _CANARY_LOAD,
        max_tokens=_CANARY_LOAD.max_tokens,
        deadlines=limits,
        speed=speed,
        counted=False,
        salt=str(perf_counter_ns()),
    )
    sample = await exchange.run(session)
    return sample.failure


class _Counted(msgspec.Struct):
    """The needed field of the response to ``POST /tokenize``."""

    count: int


async def count_tokens(
    session: aiohttp.ClientSession, endpoint: Endpoint, text: str, deadlines: Deadlines, speed: float
) -> int:
    """Return the tokens of a chat with *text* as its only message, the template's included.

    Raises:
        EndpointError: the server has no ``POST /tokenize`` (vLLM has, a proxy before it may not), or it
            did not respond with a count.
    """
    import aiohttp

    url = f"{endpoint.url}/tokenize"
    body = msgspec.json.encode({"model": endpoint.model, "messages": [{"role": "user", "content": text}]})
    timeout = aiohttp.ClientTimeout(total=patience(deadlines.canary_s, speed))

    async def post(by: aiohttp.ClientSession) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        async with by.post(url, data=body, headers=headers, timeout=timeout) as response:
            return response.status, await read_body(response)

    try:
        try:
            status, data = await post(session)
        except (aiohttp.ClientError, OSError) as error:
            if not is_closed(error):
                raise
            async with open_session(endpoint) as own:  # the connection may have been kept open for too long
                status, data = await post(own)
    except (aiohttp.ClientError, OSError) as error:
        raise EndpointError(f"{url} did not answer", because=str(error) or type(error).__name__) from error
    if status in ABSENT:
        raise EndpointError(f"{endpoint.url} has no POST /tokenize (status {status})")
    if status != _OK:
        because = data[:_EXCERPT].decode(errors="replace")
        raise EndpointError(f"{url} answers with status {status}", because=because)
    try:
        count = decode_json(data, _Counted).count
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EndpointError(f"{url} does not answer as vLLM does", because=str(error)) from error
    if count <= 0:
        raise EndpointError(f"{url} does not answer as vLLM does", because=f"it counts {count} tokens")
    return count
