"""Servers that cannot be verified are refused before anything is measured, each with its cause."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from kit import Recorder
from vllm_like import METRICS, MODEL, answering, serving

from sparkwright.base.errors import EndpointError
from sparkwright.engine.cell import Deadlines
from sparkwright.engine.client import endpoint as endpoint_module
from sparkwright.engine.client.endpoint import (
    MOST_BYTES,
    Endpoint,
    EndpointFacts,
    check_endpoint,
    open_session,
)

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

HTML = answering("<!doctype html><title>Sign in</title>", kind="text/html")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again at once what something on the way answered."""
    monkeypatch.setattr(endpoint_module, "_PAUSE_S", 0.02)


async def check(endpoint: Endpoint, deadlines: Deadlines | None = None) -> EndpointFacts:
    async with open_session(endpoint) as session:
        return await check_endpoint(session, endpoint, deadlines or Deadlines())


def look(
    deadlines: Deadlines | None = None, *, pages: dict[str, Handler] | None = None, **changes: Any
) -> EndpointFacts:
    """Check a server whose *pages* are replaced, at an endpoint with *changes*."""

    async def run() -> EndpointFacts:
        async with serving(**(pages or {})) as served:
            return await check(replace(served.endpoint, **changes), deadlines)

    return asyncio.run(run())


def refusal(*arguments: Any, **options: Any) -> str:
    """The whole message with which the server is refused."""
    with pytest.raises(EndpointError) as caught:
        look(*arguments, **options)
    assert caught.value.because
    assert caught.value.next_step
    return str(caught.value)


def locked(key: str) -> dict[str, Handler]:
    """Pages as vLLM guards them: all below /v1."""
    models = json.dumps({"data": [{"id": MODEL, "max_model_len": 99}]})

    async def guarded(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.Response(text=models, content_type="application/json")

    return {"models": guarded}


def test_a_healthy_server_tells_of_itself() -> None:
    found = look()
    assert (found.version, found.model, found.max_model_len) == ("0.24.0", MODEL, 4096)
    assert "vllm:num_requests_running" in found.metrics
    assert not found.uncounted


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:8000",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://[::1",
        "http://h:0",
    ],
)
def test_no_address(url: str) -> None:
    with pytest.raises(EndpointError, match="is not the address of a server") as caught:
        asyncio.run(check(Endpoint(url, MODEL)))
    assert "http://localhost:8000" in caught.value.next_step


@pytest.mark.parametrize(
    "url",
    [
        "http://bob:s3cret@host:8000", "https://s3cret@host", "bob:s3cret@host", "http://bob:s3cret@host:port",
        "http://host?key=s3cret&x=1", "http://host/#s3cret", "http://bob:p@host?s3cret",
    ],
)  # fmt: skip
def test_an_address_with_a_secret_is_refused_without_it(url: str) -> None:
    with pytest.raises(EndpointError) as caught:
        asyncio.run(check(Endpoint(url, MODEL)))
    assert "host" in str(caught.value)
    assert "s3cret" not in f"{caught.value} {caught.value.next_step}"


def test_nothing_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(EndpointError, match=r"nothing answers at http://127\.0\.0\.1"):
            asyncio.run(check(Endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}", MODEL)))


def test_silence() -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    said = refusal(Deadlines(canary_s=0.4), pages={"models": hang})
    assert "did not answer in time" in said


def test_a_server_of_another_protocol() -> None:
    async def run() -> EndpointFacts:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            return await check(Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", MODEL))

    with pytest.raises(EndpointError, match="was not answered as HTTP asks"):
        asyncio.run(run())


def test_no_certificate() -> None:
    async def run() -> EndpointFacts:
        async with serving() as served:
            return await check(replace(served.endpoint, url=served.endpoint.url.replace("http", "https")))

    with pytest.raises(EndpointError, match="no safe connection"):
        asyncio.run(run())


def test_a_wrong_key() -> None:
    assert "because the API key is wrong" in refusal(pages=locked("right"), api_key="wrong")
    assert "none was given" in refusal(pages=locked("right"))
    assert look(pages=locked("right"), api_key="right").max_model_len == 99


def test_a_server_without_a_model_is_not_asked_to_name_one() -> None:
    with pytest.raises(EndpointError) as caught:
        look(pages={"models": answering('{"data": []}')}, model="")
    assert "--model" not in caught.value.next_step
    with pytest.raises(EndpointError) as caught:
        look(model="other")
    assert "--model" in caught.value.next_step


def test_several_models_and_none_named() -> None:
    both = answering('{"data": [{"id": "a"}, {"id": "b"}]}')
    assert "because it serves: a, b" in refusal(pages={"models": both}, model="")
    assert look(pages={"models": both}, model="b").model == "b"


@pytest.mark.parametrize("page", ["models", "version"])
def test_a_web_page(page: str) -> None:
    said = refusal(pages={page: HTML})
    assert f"/{page} answers with a web page instead of JSON" in said
    assert "Sign in" in said


@pytest.mark.parametrize("body", ["", "OK", '{"data": "none"}', '{"things": []}', '["\xe9"]'])
def test_other_json(body: str) -> None:
    assert "does not answer as vLLM does" in refusal(pages={"models": answering(body)})


def test_another_server_than_vllm_is_refused() -> None:
    pages = {"version": answering("{}", 404), "metrics": answering("{}", 501)}
    assert "is no vLLM" in refusal(pages=pages)
    assert look(pages={"version": answering("{}", 404)}).metrics  # a proxy before a vLLM


def test_a_page_that_fails_is_not_lacking() -> None:
    assert "/metrics cannot be read" in refusal(pages={"metrics": answering("{}", 500)})


@pytest.mark.parametrize("version", ["0.19.1", "0.8.5.post1", "v0.11.0", "0.19.2rc1.dev3+gabc"])
def test_an_older_vllm(version: str) -> None:
    said = refusal(pages={"version": answering(json.dumps({"version": version}))})
    assert f"runs vLLM {version}, because nothing before 0.20" in said


@pytest.mark.parametrize("version", ["0.20.0", "0.33.0", "1.0.0", "0.24.1.dev7+g123.cu130"])
def test_a_newer_vllm(version: str) -> None:
    assert look(pages={"version": answering(json.dumps({"version": version}))}).version == version


@pytest.mark.parametrize("version", ["dev", "9" * 5000, "0." + "9" * 5000])
def test_a_vllm_of_no_known_age_is_told_of(heard: Recorder, version: str) -> None:
    assert look(pages={"version": answering(json.dumps({"version": version}))}).version == version
    [said] = [said["message"] for said in heard.of("warning")]
    assert version[:50] in said
    assert len(said) < 500


@pytest.mark.parametrize("page", ["models", "version", "metrics"])
def test_a_page_without_end_is_read_to_a_limit(page: str) -> None:
    """Whatever it says, and even if it begins as it should."""

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"vllm:x 1\n" * 20_000)
        return response

    said = refusal(pages={page: flood})
    assert f"/{page}" in said
    assert f"{MOST_BYTES >> 20} MiB" in said


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (answering("Not Found", 404), "status 404"),
        (answering("python_info 1\n"), "another program's counters instead"),
        (HTML, "a web page instead of vLLM's counters; its body is '<!doctype html><title>Sign in"),
    ],
)
def test_no_counters(page: Handler, why: str) -> None:
    found = look(pages={"metrics": page})
    assert not found.metrics
    assert why in found.uncounted


@pytest.mark.parametrize("page", ["models", "version", "metrics"])
def test_a_server_that_loads_its_model_is_waited_for(page: str) -> None:
    loading = answering('{"error": {"message": "Loading model", "code": 503}}', status=503)
    for pages, wait in (({page: loading}, True), ({page: answering("{}", status=500)}, False)):
        with pytest.raises(EndpointError) as caught:
            look(pages=pages)
        assert ("wait until its model is loaded" in caught.value.next_step) is wait


# Something on the way ------------------------------------------------------------------------------------


class Shaky:
    """A page whose connection breaks for the first few times."""

    def __init__(self, page: Handler, times: int) -> None:
        self.page, self.times, self.asked = page, times, 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if self.asked > self.times:
            return await self.page(request)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


FIRST = {
    "models": answering(json.dumps({"data": [{"id": MODEL}]})),
    "metrics": answering(METRICS, kind="text/plain"),
}


@pytest.mark.parametrize("page", FIRST)
def test_a_connection_that_a_proxy_breaks_is_made_again(page: str) -> None:
    shaky = Shaky(FIRST[page], 2)
    assert look(pages={page: shaky.handle}).metrics
    assert shaky.asked == 3
    lasting = Shaky(FIRST[page], 99)
    with pytest.raises(EndpointError):
        look(pages={page: lasting.handle})
    assert lasting.asked == 6  # aiohttp sends a request whose connection broke once more by itself


def test_counters_that_a_proxy_keeps_back_are_not_blamed_on_a_key() -> None:
    said = refusal(pages={"metrics": answering("Forbidden", 403)})
    assert "/metrics cannot be read" in said
    assert "key" not in said
