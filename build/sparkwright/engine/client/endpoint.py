"""The address of a server, and the checks that it can be verified."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from sparkwright.base.config import decode_json
from sparkwright.base.errors import EndpointError
from sparkwright.base.events import warn
from sparkwright.engine.arrival import make_socket
from sparkwright.engine.cell import Deadlines

if TYPE_CHECKING:
    import aiohttp


MOST_BYTES = 16 << 20
"""Of any page that is read whole. The counters of a vLLM with many engines are some hundred kB, the token ids
of a long document a few more."""

_READ = 1 << 16


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the whole body of *response*.

    Raises:
        EndpointError: it is longer than `MOST_BYTES`; the connection is closed.
    """
    parts: list[bytes] = []
    size = 0
    while part := await response.content.read(_READ):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            response.close()
            raise EndpointError(
                f"{response.url} is not read to its end",
                because=f"it is longer than {MOST_BYTES >> 20} MiB",
                next_step="check which server listens there: no page of vLLM is that long",
            )
    return b"".join(parts)


OLDEST = (0, 20)
"""The oldest vLLM whose counters, log and chunks are known here."""

ABSENT = frozenset({404, 405, 501})
"""Statuses of a page that a server does not have."""

_METRICS = "/metrics"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - replaced, not bound
_IDLE_S = 2.0  # vLLM ends a connection after 5 idle seconds; one that is about to go must not be used
_READ_SIZE = 1 << 20
_EXCERPT = 200
_RELEASE = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?!\d)")

T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """A running server.

    Attributes:
        url: its root, such as ``http://host:8000``; a slash or ``/v1`` at the end is taken off.
        model: name of the model to request; empty for the only one that it serves.
        api_key: bearer token that it requires, if any.
        card: path of its page with the readings of a simulated card; empty for a real server.
    """

    url: str
    model: str
    api_key: str = field(default="", repr=False)
    card: str = ""

    def __post_init__(self) -> None:
        root = self.url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
        object.__setattr__(self, "url", root)


@dataclass(frozen=True)
class EndpointFacts:
    """Facts that a server reports.

    Attributes:
        version: vLLM's version; empty where something on the way hides it.
        model: the model that will be requested.
        max_model_len: tokens of its longest request, prompt and output; -1 if not reported.
        metrics: the page of vLLM's counters; empty if there is none.
        uncounted: the reason for which there is none.
    """

    version: str
    model: str
    max_model_len: int
    metrics: str = ""
    uncounted: str = ""


class _Model(msgspec.Struct):
    id: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


def reachable(host: str, port: int) -> str:
    """Return the root of a server that listens at *host* and *port*, as this machine reaches it."""
    name = _EVERYWHERE.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def open_session(endpoint: Endpoint) -> aiohttp.ClientSession:
    """Return a session for *endpoint*, an async context manager.

    It opens as many connections as there are requests and drops idle ones before the server does. Its
    sockets record arrivals, and its trace tells a request's context when its bytes are written, and that its
    connection is not new.
    """
    import aiohttp

    async def note_sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
        if (exchange := context.trace_request_ctx) is not None:
            exchange.note_sent()

    async def note_reused(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
        if (exchange := context.trace_request_ctx) is not None:
            exchange.note_reused()

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(note_sent)
    trace.on_connection_reuseconn.append(note_reused)
    # Compressed streams would come in other pieces than the server wrote.
    headers = {"Accept-Encoding": "identity"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            ttl_dns_cache=None,
            socket_factory=make_socket,
            keepalive_timeout=_IDLE_S,
        ),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=_READ_SIZE,
        trace_configs=[trace],
    )


async def check_endpoint(
    session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines
) -> EndpointFacts:
    """Check that the server at *endpoint* can be verified, and return its facts.

    Raises:
        EndpointError: it is no vLLM or one that is too old, it refuses the key, or does not serve the model.
    """
    check_address(endpoint.url)
    served = _read_json(await _get(session, endpoint, "/v1/models", deadlines), _Models).data
    version = await _version(session, endpoint, deadlines)
    model = _choose(endpoint, served)
    metrics = await _get(session, endpoint, _METRICS, deadlines)
    if metrics.status != _OK and metrics.status not in ABSENT:
        raise EndpointError(
            f"{endpoint.url}/metrics cannot be read",
            because=f"it answers with status {metrics.status}",
            next_step=_WAIT
            if metrics.status == _LOADING
            else "let /metrics through any proxy, or see the server's log",
        )
    counted = metrics.status == _OK and "\nvllm:" in f"\n{metrics.text}"
    if not (version or counted):
        raise EndpointError(
            f"{endpoint.url} is no vLLM",
            because="it has neither vLLM's /version nor its counters: another server, or a proxy before it",
            next_step="give the address of vLLM's own port",
        )
    facts = EndpointFacts(version, model.id, model.max_model_len or -1)
    if counted:
        return replace(facts, metrics=metrics.text)
    if metrics.status != _OK:
        return replace(facts, uncounted=f"it answers with status {metrics.status}")
    what = "a web page" if metrics.is_html else "another program's counters"
    return replace(facts, uncounted=f"it answers with {what} instead of vLLM's counters; {metrics.excerpt}")


def check_address(url: str) -> None:
    """Check that *url* is a server's root, and nothing more: addresses stand in reports and journals.

    Raises:
        EndpointError: it is none, or holds what may be a secret, which is not repeated.
    """
    if re.search(r"[@?#]", url):
        root = re.split(r"[?#]", url.rpartition("@")[2])[0]
        raise EndpointError(
            f"the address of {root} holds more than a server's root",
            because="a name, a password or a query may be a secret, and addresses stand in reports",
            next_step="leave it out; SPARKWRIGHT_API_KEY holds the key that the server requires",
        )
    try:
        parts = urlsplit(url)
        because = "" if parts.port != 0 else "its port is 0"
    except ValueError as error:
        because = str(error)
    else:
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            because = "it does not begin with http:// or https:// and a host"
    if because:
        raise EndpointError(
            f"{url!r} is not the address of a server",
            because=because,
            next_step="give its root, such as http://localhost:8000",
        )


# Responses --------------------------------------------------------------------------------------------

_OK, _REFUSED, _LOADING = 200, (401, 403), 503
_ATTEMPTS, _PAUSE_S = 3, 0.3  # a proxy that closed a kept connection answers on a new one
_WAIT = "wait until its model is loaded, then run the same command again"


@dataclass(frozen=True)
class _Answer:
    url: str
    status: int
    kind: str
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    @property
    def excerpt(self) -> str:
        """Return the beginning of the body, on one line."""
        shown = " ".join(self.text.split())[:_EXCERPT]
        return f"its body is {shown!r}" if shown else "its body is empty"

    @property
    def is_html(self) -> bool:
        return "html" in self.kind or self.body.lstrip()[:1] == b"<"


async def _get(
    session: aiohttp.ClientSession, endpoint: Endpoint, path: str, deadlines: Deadlines
) -> _Answer:
    """Return the answer to a page; one whose connection is lost is asked for again."""
    import aiohttp

    url = endpoint.url + path
    timeout = aiohttp.ClientTimeout(total=deadlines.canary_s, sock_connect=deadlines.connect_s)
    for left in reversed(range(_ATTEMPTS)):
        try:
            async with session.get(url, timeout=timeout) as response:
                answer = _Answer(url, response.status, response.content_type, await read_body(response))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            lost = isinstance(error, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError))
            if not left or not lost or isinstance(error, (aiohttp.ClientSSLError, TimeoutError)):
                raise _unreachable(endpoint, url, error) from error
        else:
            # vLLM's key guards /v1 alone: who refuses its counters is something on the way.
            if answer.status in _REFUSED and path != _METRICS:
                raise EndpointError(
                    f"{endpoint.url} refuses the request (status {answer.status})",
                    because="the API key is wrong"
                    if endpoint.api_key
                    else "it requires an API key and none was given",
                    next_step="give the key that the server was started with (--api-key)",
                )
            return answer
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError  # pragma: no cover - the last attempt ends it


def _unreachable(endpoint: Endpoint, url: str, error: Exception) -> EndpointError:
    import aiohttp

    next_step = "see whether the server runs and whether host and port are right"
    match error:
        case aiohttp.ClientSSLError():
            what, because = f"no safe connection to {endpoint.url}", str(error)
            next_step = "use http:// if the server has no certificate, or name its authority by SSL_CERT_FILE"
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            what, because = f"nothing answers at {endpoint.url}", str(error)
        case TimeoutError():
            what, because = f"{url} did not answer in time", "it takes the connection and stays silent"
        case _:
            what, because = f"{url} was not answered as HTTP asks", str(error) or type(error).__name__
    return EndpointError(what, because=because, next_step=next_step)


def _read_json(answer: _Answer, model: type[T]) -> T:
    if answer.is_html:
        raise EndpointError(
            f"{answer.url} answers with a web page instead of JSON (status {answer.status})",
            because=answer.excerpt,
            next_step="give the address of the server's own port, not of a user interface or a proxy's login",
        )
    if answer.status != _OK:
        raise EndpointError(
            f"{answer.url} answers with status {answer.status}",
            because=answer.excerpt,
            next_step=_WAIT
            if answer.status == _LOADING
            else "give the root of a vLLM server, such as http://localhost:8000",
        )
    try:
        return decode_json(answer.body, model)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EndpointError(
            f"{answer.url} does not answer as vLLM does",
            because=f"{error}; {answer.excerpt}",
            next_step="give the root of a vLLM server, such as http://localhost:8000",
        ) from error


def _choose(endpoint: Endpoint, served: list[_Model]) -> _Model:
    """Return the model to request."""
    names = ", ".join(model.id for model in served) or "none"
    if not endpoint.model and len(served) == 1:
        return served[0]
    for model in served:
        if model.id == endpoint.model:
            return model
    raise EndpointError(
        f"{endpoint.url} does not serve the model {endpoint.model!r}" if endpoint.model
        else f"{endpoint.url} does not serve exactly one model, and none was named",
        because=f"it serves: {names}",
        next_step="name one of these (--model)" if served else "let it load a model, then verify it",
    )  # fmt: skip


async def _version(session: aiohttp.ClientSession, endpoint: Endpoint, deadlines: Deadlines) -> str:
    """Return vLLM's version; empty if the server has none."""
    answer = await _get(session, endpoint, "/version", deadlines)
    if answer.status in ABSENT:
        return ""
    version = _read_json(answer, _Version).version
    found = _RELEASE.match(version)
    if found is None:
        warn(f"{endpoint.url} reports vLLM {version[:_EXCERPT]!r}, which may be too old to be verified")
    elif (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise EndpointError(
            f"{endpoint.url} runs vLLM {version}",
            because=f"nothing before {oldest} can be verified: its counters and chunks differ",
            next_step=f"serve with vLLM {oldest} or newer",
        )
    return version
