"""The HTTP side: the endpoints of a vLLM server."""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from sparkwright.base.process.run import UnguardedProcess, start_unguarded
from sparkwright.engine.arrival import arrivals_of, listen
from sparkwright.verify.simulator.engine import Engine
from sparkwright.verify.simulator.machine import CARD_PAGE, Clock, Driver, Log
from sparkwright.verify.simulator.model import encode
from sparkwright.verify.simulator.params import ApiError, parse_params, template
from sparkwright.verify.simulator.settings import BLOCK, VERSION, Settings, plan_memory
from sparkwright.verify.simulator.stream import Generation, TraceFile

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


_PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE: Final = (
    "<!DOCTYPE html><html><head><title>Welcome</title></head><body><h1>It works.</h1></body></html>"
)
_OLD: Final = "0.8.5"
CHILD: Final = (sys.executable, "-I", "-S", Path(__file__).with_name("child.py"))
"""The command of the programs in `child`."""
_MOST_BYTES: Final = 64 << 20
_BACKLOG: Final = 1024


class SimulatedServer:
    """The HTTP handlers of one engine."""

    def __init__(self, driver: Driver, truth: TraceFile) -> None:
        self._driver, self._truth = driver, truth
        self._settings = driver.settings
        self._requests = self._counted = 0
        self._compilers: list[UnguardedProcess] = []

    def application(self) -> web.Application:
        """Return the application, ready to be run."""

        @web.middleware
        async def around(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return await self._around(request, handler)

        application = web.Application(middlewares=[around], client_max_size=_MOST_BYTES)
        application.add_routes(
            [
                web.get("/health", self._health),
                web.get(CARD_PAGE, self._card),
                web.get("/v1/models", self._models),
                web.post("/v1/chat/completions", partial(self._generate, chat=True)),
                web.post("/v1/completions", partial(self._generate, chat=False)),
                web.post("/tokenize", self._tokenize),
                web.get("/version", self._version),
            ]
        )
        if "no-metrics" not in self._settings.faults:
            application.add_routes([web.get("/metrics", self._metrics)])
        return application

    async def _around(self, http: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check the key, and turn errors into JSON."""
        try:
            if "not-json" in self._settings.faults:
                return web.Response(text=_PAGE, content_type="text/html")
            if not self._allowed(http):
                return web.json_response({"error": "Unauthorized"}, status=401)
            return await handler(http)
        except ApiError as error:
            return web.json_response(error.body(), status=error.status)
        except web.HTTPException as error:
            return web.json_response({"detail": error.reason}, status=error.status)

    def _allowed(self, http: web.Request) -> bool:
        """Tell if the request has the key; only paths below /v1 require it, as in vLLM."""
        key = self._settings.api_key
        if not key or not http.path.startswith("/v1"):
            return True
        return hmac.compare_digest(http.headers.get("Authorization", "").encode(), f"Bearer {key}".encode())

    # Generation ------------------------------------------------------------------------------------------

    async def _generate(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        now_ns = time.perf_counter_ns()
        body = await self._json(http)
        connection = arrivals_of(http.transport)
        received_ns = connection.arrived_ns if connection is not None else now_ns
        params = parse_params(body, self._settings, chat=chat, named=http.headers.get("X-Request-Id", ""))
        self._requests += 1
        generation = Generation(self._driver, params, self._requests, received_ns)
        refused = self._refuse(generation)
        self._compile()
        try:
            return refused or await generation.serve(http)
        finally:
            self._truth.write(generation.trace)

    def _compile(self) -> None:
        """Start the program of a fault that stands in for a compiler, if one applies."""
        each = self._settings.faults.value("compiles", "each")
        if each is not None and self._requests % int(each) == 0:
            seconds = self._settings.faults.value("compiles", "seconds")
            self._compilers.append(start_unguarded([*CHILD, "compiler", str(seconds)]))

    def _refuse(self, generation: Generation) -> web.Response | None:
        """Return the response of a fault that replaces generation, if one applies."""
        faults, number = self._settings.faults, generation.trace.number
        if faults.hits("status", number):
            status = int(faults.value("status", "code") or 0)
            error = ApiError(status, "InternalServerError", "the simulated server refuses this request")
            return web.json_response(error.body(), status=status)
        if faults.hits("html", number):
            return web.Response(text=_PAGE, content_type="text/html")
        return None

    async def _json(self, http: web.Request) -> dict[str, Any]:
        try:
            body = json.loads(await http.read())
        except ValueError as error:
            raise ApiError(400, "BadRequestError", f"JSON decode error: {error}") from error
        if not isinstance(body, dict):
            raise ApiError(400, "BadRequestError", "the body must be an object")
        return body

    async def _tokenize(self, http: web.Request) -> web.Response:
        body = await self._json(http)
        self._counted += 1
        if self._settings.faults.hits("flaky-tokenize", self._counted):
            raise ApiError(500, "InternalServerError", "the tokenizer is not available")
        text = template(body["messages"]) if "messages" in body else str(body.get("prompt", ""))
        tokens = encode(text)
        return web.json_response(
            {
                "count": int(len(tokens) * (self._settings.faults.value("wrong-tokenize", "factor") or 1)),
                "max_model_len": self._settings.max_model_len,
                "tokens": tokens,
            }
        )

    # Status ----------------------------------------------------------------------------------------------

    async def _health(self, _http: web.Request) -> web.Response:
        return web.Response(status=503 if self._driver.dead else 200)

    async def _card(self, _http: web.Request) -> web.Response:
        return web.Response(text=self._driver.card_reading)

    async def _version(self, _http: web.Request) -> web.Response:
        old = "old-version" in self._settings.faults
        return web.json_response({"version": _OLD if old else VERSION})

    async def _models(self, _http: web.Request) -> web.Response:
        model = {
            "id": self._settings.model,
            "object": "model",
            "created": int(self._driver.clock.wall()),
            "owned_by": "vllm",
            "root": self._settings.model,
            "parent": None,
            "max_model_len": self._settings.max_model_len,
            "permission": [],
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _metrics(self, _http: web.Request) -> web.Response:
        driver = self._driver
        vanished = self._settings.faults.value("metrics-vanish", "after")
        if vanished is not None and self._requests > vanished:
            raise web.HTTPNotFound
        text = render_metrics(driver.engine, driver.started_s)
        return web.Response(body=text.encode(), headers={"Content-Type": _PLAIN})


@asynccontextmanager
async def listening(
    settings: Settings, clock: Clock, log: Log, truth: TraceFile
) -> AsyncIterator[tuple[Driver, str]]:
    """Run a server in this process; yields its driver and its URL."""
    driver = Driver(settings, clock, log)
    runner = web.AppRunner(
        SimulatedServer(driver, truth).application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=0.2,
    )
    await runner.setup()
    stepping: asyncio.Task[None] | None = None
    try:
        site = web.SockSite(runner, listen(settings.host, settings.port, _BACKLOG), backlog=_BACKLOG)
        await site.start()
        stepping = asyncio.create_task(driver.run())
        yield driver, f"http://{settings.host}:{runner.addresses[0][1]}"
    finally:
        if stepping is not None:
            stepping.cancel()
        await runner.cleanup()


# The page of metrics, as vLLM 0.33 writes it -------------------------------------------------------------


def render_metrics(engine: Engine, started_s: float) -> str:
    """Return the body of ``GET /metrics`` of a server that started *started_s* after 1970.

    Of vLLM's series there are those that clients read.
    """
    lines = [*_gauges(engine, started_s), *_counter_lines(engine), *_cache_config(engine)]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (
        f'{name}="{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for name, value in sorted(labels.items())
    )
    return "{" + ",".join(escaped) + "}"


def _common(engine: Engine) -> dict[str, str]:
    return {"model_name": engine.settings.model, "engine": "0"}


def _gauges(engine: Engine, started_s: float) -> Iterator[str]:
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {round(started_s, 2)!r}"
    for name, value in (
        ("num_requests_running", len(engine.running)),
        ("num_requests_waiting", len(engine.waiting)),
        ("kv_cache_usage_perc", engine.usage),
    ):
        yield f"# TYPE vllm:{name} gauge"
        yield f"vllm:{name}{_labels(_common(engine))} {float(value)!r}"


def _counter_lines(engine: Engine) -> Iterator[str]:
    """Yield the counters as Prometheus' own client writes them."""
    for name, label, values in _counters(engine):
        sets = [_labels(_common(engine) | ({label: key} if label else {})) for key in values]
        yield f"# TYPE vllm:{name}_total counter"
        for labels, value in zip(sets, values.values(), strict=True):
            yield f"vllm:{name}_total{labels} {float(value)!r}"


def _counters(engine: Engine) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Yield the name of each counter, the label that its values differ in (or ""), and these."""
    counters, faults = engine.counters, engine.settings.faults
    plain = {
        "num_preemptions": 0,
        "prefix_cache_queries": counters.prefix_queries,
        "prefix_cache_hits": counters.prefix_hits,
        "prompt_tokens": counters.prompt,
        "generation_tokens": counters.generated,
    }
    if "nan-drafts" in faults:
        plain["corrupted_requests"] = sum(counters.success.values())
    if engine.settings.k and "no-spec-series" not in faults:
        plain["spec_decode_num_drafts"] = counters.drafts
        plain["spec_decode_num_draft_tokens"] = counters.draft_tokens
        inflated = counters.drafts if "inflated-acceptance" in faults else 0
        plain["spec_decode_num_accepted_tokens"] = counters.accepted + inflated
        by_position = {str(place): count for place, count in enumerate(counters.per_position)}
        yield "spec_decode_num_accepted_tokens_per_pos", "position", by_position
    for name, value in plain.items():
        yield name, "", {"": value}
    yield "request_success", "finished_reason", counters.success


def _cache_config(engine: Engine) -> Iterator[str]:
    settings = engine.settings
    tokens = engine.cache.blocks * BLOCK
    labels = {
        "block_size": str(BLOCK),
        "cache_dtype": plan_memory(settings).kv_dtype,
        "enable_prefix_caching": str(settings.prefix_caching),
        "engine": "0",
        "gpu_memory_utilization": str(settings.utilization),
        "kv_cache_max_concurrency": str(tokens / settings.max_model_len),
        "kv_cache_size_tokens": str(tokens),
        "num_gpu_blocks": str(engine.cache.blocks),
    }
    yield "# TYPE vllm:cache_config_info gauge"
    yield f"vllm:cache_config_info{_labels(labels)} 1.0"
