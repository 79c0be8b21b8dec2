"""One request for text, from its body to its last byte."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from sparkwright.verify.simulator.acceptance import category_of
from sparkwright.verify.simulator.answer import Answer
from sparkwright.verify.simulator.ask import AskError
from sparkwright.verify.simulator.driver import DEAD
from sparkwright.verify.simulator.hashing import digest, mix
from sparkwright.verify.simulator.language import Sampling, Speaker, answer_to, text_of
from sparkwright.verify.simulator.request import Request, Spans
from sparkwright.verify.simulator.truth import Witness
from sparkwright.verify.simulator.wire import StreamCut, Wire

if TYPE_CHECKING:
    from aiohttp import web

    from sparkwright.verify.simulator.ask import Ask
    from sparkwright.verify.simulator.driver import Driver
    from sparkwright.verify.simulator.request import StreamDelta
    from sparkwright.verify.simulator.settings import Settings

_HEAD: Final = 80
_ENDLESS: Final = 1 << 40
_LOOPS: Final = {"repeated-token": "!!!!", "one-token": " cobalt"}
_STREAM: Final = {"Content-Type": "text/event-stream; charset=utf-8"}


def sampling_of(ask: Ask, settings: Settings, number: int) -> Sampling:
    """How the tokens of a request are chosen, faults included."""
    faults, speculates = settings.faults, settings.k > 0
    wrong_at = faults.value("lossy-position", "at")
    loop = next((text for name, text in _LOOPS.items() if name in faults), "")
    return Sampling(
        temperature=ask.temperature,
        seed=ask.seed or mix(settings.seed, number),
        stops=not ask.ignore_eos,
        # Kernels that verify drafts round otherwise than those that do not, and each start tunes them anew.
        noise=mix(mix(settings.seed, 5), settings.k) | 1,
        ties=(faults.value("near-ties", "share") or 0.0) if speculates else 0.0,
        wrong=(faults.value("lossy", "rate") or 0.0) if speculates else 0.0,
        wrong_at=-1 if wrong_at is None or not speculates else int(wrong_at),
        loop=loop,
        detailed=ask.logprobs >= 0,
    )


def make_request(ask: Ask, settings: Settings, number: int, now: float) -> Request:
    """What the engine works on, for what was *ask*-ed; it arrived at the simulated moment *now*."""
    text = ask.text or text_of(ask.tokens)
    limit, reason = 0, ""
    for name, finish in (("early-stop", "stop"), ("abort", "abort")):
        if settings.faults.hits(name, number):
            limit = max(1, int(ask.max_tokens * (settings.faults.value(name, "share") or 0)))
            reason = finish
    prefix = "chatcmpl" if ask.chat else "cmpl"
    identity = digest(b"%d %s" % (settings.seed, text.encode(errors="replace")))
    name = ask.named or f"{identity:016x}{number:08x}"
    return Request(
        number=number,
        name=f"{prefix}-{name}",
        tokens=list(ask.tokens),
        max_tokens=_ENDLESS if settings.faults.hits("runaway", number) else ask.max_tokens,
        speaker=Speaker(ask.tokens, answer_to(text), sampling_of(ask, settings, number)),
        category=category_of(text),
        identity=identity,
        spans=Spans(now),
        limit=limit,
        limit_finish=reason,
    )


def _delta_kind(settings: Settings) -> str:
    faults = settings.faults
    if "reasoning-only" in faults:
        return "reasoning"
    if "reasoning-content" in faults:
        return "reasoning_content"
    return "tool" if "tool-calls" in faults else "content"


class Generation:
    """Serves one request.

    Args:
        driver: of the engine.
        ask: what is wanted.
        number: of the request, from 1.
        received_ns: when its last byte had come to the socket.
        accepted_ns: when it was taken up.
    """

    def __init__(self, driver: Driver, ask: Ask, number: int, received_ns: int, accepted_ns: int) -> None:
        self._driver, self._ask, self._settings = driver, ask, driver.settings
        self.request = make_request(ask, driver.settings, number, driver.clock.now())
        faults = driver.settings.faults
        self.witness = Witness(
            id=self.request.name,
            number=number,
            head=ask.text[:_HEAD],
            category=self.request.category,
            received_ns=received_ns,
            accepted_ns=accepted_ns,
        )
        silent = faults.hits("no-usage", number)
        self._usage = ask.usage and not silent
        self._more = (
            int(faults.value("wrong-usage", "more") or 0) if faults.hits("wrong-usage", number) else 0
        )
        self._answer = Answer(
            ask,
            self.request,
            driver.settings,
            int(driver.clock.wall()),
            ids=not silent and "usage-at-end" not in faults,
            delta_kind=_delta_kind(driver.settings),
        )

    async def serve(self, http: web.Request) -> web.StreamResponse:
        """Answer; the request is forgotten when its client goes.

        Raises:
            AskError: the engine is dead.
        """
        if self._driver.dead:
            raise AskError(500, "InternalServerError", DEAD)
        queue = self._driver.submit(self.request)
        try:
            return await (self._stream(http, queue) if self._ask.stream else self._whole(queue))
        finally:
            self._driver.leave(self.request)

    def note(self) -> Witness:
        """What is to be told of the request, now that it is over."""
        request, witness = self.request, self.witness
        witness.prompt_tokens = request.prompt_tokens
        witness.cached_tokens = max(0, request.cached)
        witness.drafts, witness.accepted = len(request.steps), sum(request.steps)
        witness.finish = request.finish
        return witness

    # In one piece ---------------------------------------------------------------------------------------

    async def _whole(self, queue: asyncio.Queue[StreamDelta | None]) -> web.Response:
        from aiohttp import web

        deltas: list[StreamDelta] = []
        while not deltas or not deltas[-1].finish:
            delta = await queue.get()
            if delta is None:
                raise AskError(500, "InternalServerError", DEAD)
            deltas.append(delta)
        body = self._answer.whole(deltas, more=self._more)
        self.witness.tokens = sum(len(delta.choices) for delta in deltas)
        self.witness.first_token_written_ns = self.witness.last_token_written_ns = time.perf_counter_ns()
        self.witness.chunks = 1
        return web.json_response(body)

    # In events ------------------------------------------------------------------------------------------

    async def _stream(
        self, http: web.Request, queue: asyncio.Queue[StreamDelta | None]
    ) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(headers=_STREAM)
        await response.prepare(http)
        wire = Wire(response, http.transport, self._settings.faults, self.witness)
        try:
            if self._settings.faults.hits("hang", self.request.number):
                self.witness.fault = "hang"
                await asyncio.Event().wait()  # until the client gives up
            await self._events(wire, queue)
            await wire.done()
        except (StreamCut, ConnectionError):
            return response
        await response.write_eof()
        return response

    async def _events(self, wire: Wire, queue: asyncio.Queue[StreamDelta | None]) -> None:
        faults, opened, finish = self._settings.faults, False, ""
        while not finish:
            delta = await queue.get()
            if not opened:
                opened = True
                await self._open(wire)
            if delta is None:
                await wire.event(AskError(500, "InternalServerError", DEAD).body())
                return
            if "empty-content" in faults:
                await wire.event(self._answer.event([self._odd({"content": ""}, "")]))
            await wire.event(self._answer.delta(delta), tokens=len(delta.choices))
            finish = delta.finish
        if self._usage:
            await wire.event(self._answer.closing(more=self._more))

    async def _open(self, wire: Wire) -> None:
        for event in self._answer.opening():
            await wire.event(event)
        for _ in range(int(self._settings.faults.value("role-chunks", "many") or 0)):
            await wire.event(self._answer.event([self._odd({"role": "assistant"}, "")]))

    def _odd(self, delta: dict[str, Any], text: str) -> dict[str, Any]:
        """A choice that brings no token."""
        content: dict[str, Any] = {"delta": delta} if self._ask.chat else {"text": text}
        return {"index": 0, **content, "logprobs": None, "finish_reason": None}
