"""The engine: a scheduler and a model, step by step. It knows no clock and no network.

`Engine.step` is given the simulated moment at which a step begins and returns how long it takes and what it
brings; whoever drives it waits that long and passes it on. The scheduling is vLLM's in outline: requests that
run come first, each with its drafted tokens; prompts are worked through in chunks within a budget of tokens;
who finds no block takes those of the request that was scheduled last.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkwright.verify.simulator import acceptance
from sparkwright.verify.simulator.cache import Pool
from sparkwright.verify.simulator.counters import Counters
from sparkwright.verify.simulator.harm import Harm
from sparkwright.verify.simulator.hashing import bell, mix
from sparkwright.verify.simulator.language import EOS
from sparkwright.verify.simulator.memory import share_out
from sparkwright.verify.simulator.settings import BLOCK

if TYPE_CHECKING:
    from sparkwright.verify.simulator.request import Request, StreamDelta
    from sparkwright.verify.simulator.settings import Settings


@dataclass(frozen=True)
class EngineStep:
    """What one step came to.

    Attributes:
        seconds: how long it took, simulated.
        deltas: the requests that got tokens, with what they got.
    """

    seconds: float
    deltas: tuple[tuple[Request, StreamDelta], ...]


@dataclass
class _Plan:
    """What a step does: who decodes, and how many tokens of whose prompts are worked through."""

    budget: int
    decodes: list[Request] = field(default_factory=list)
    prefills: list[tuple[Request, int]] = field(default_factory=list)


class Engine:
    """All requests of one server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counters = Counters(settings.k)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.pool = Pool(share_out(settings).kv_tokens // BLOCK)
        self._harm = Harm(settings.faults)
        self._tables = {name: acceptance.table(name, settings.k) for name in acceptance.CATEGORIES}
        self._lottery = math.exp(settings.costs.lottery * bell(mix(settings.seed, 3)))
        self._steps = 0
        self._decoded = 0

    @property
    def busy(self) -> bool:
        """Whether any request runs or waits."""
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Let *request* wait for its turn."""
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Forget *request*, whose client is gone; nothing if it is done."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
            self.pool.release(request.holding)

    def step(self, now: float) -> EngineStep:
        """Schedule and run one step that begins at the simulated moment *now*.

        Raises:
            EngineDeadError: a fault ended the engine.
            OutOfMemoryError: a fault ended the server.
        """
        plan = self._schedule(now)
        self._harm.check_batch(len(plan.decodes), self._decoded)
        self._decoded = len(plan.decodes)
        self._steps += 1
        batch = len(plan.decodes) + len(plan.prefills)
        seconds = self._seconds(plan)
        deltas = [(request, self._decode(request, batch, now)) for request in plan.decodes]
        for request, count in plan.prefills:
            request.computed += count
            if not request.missing:
                deltas.append((request, self._say(request, 1, batch)))
            self._fill(request)
        self._settle(plan, deltas, now + seconds)
        return EngineStep(seconds, tuple(deltas))

    # Scheduling -----------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> _Plan:
        plan = _Plan(self.settings.max_batched_tokens)
        preemptions = self.counters.preemptions
        index = 0
        while index < len(self.running):
            self._schedule_running(self.running[index], plan)
            index += 1
        if self.counters.preemptions == preemptions:
            self._admit(plan, now)
        return plan

    def _schedule_running(self, request: Request, plan: _Plan) -> None:
        """Give a running request its tokens of this step, or take its blocks if it was the last one."""
        count = 1 + self.settings.k if request.decoding else min(request.missing, plan.budget)
        if count <= 0:
            return
        while not self.pool.take(request.holding, (), _blocks(request.computed + count)):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return
        plan.budget -= count
        if request.decoding:
            plan.decodes.append(request)
        else:
            plan.prefills.append((request, count))

    def _preempt(self, request: Request) -> None:
        """Take all blocks of *request*, and let it wait at the front."""
        self.running.remove(request)
        self.pool.release(request.holding)
        request.computed = 0
        request.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(request)

    def _admit(self, plan: _Plan, now: float) -> None:
        """Let waiting requests run, first come first served, while there is room for them."""
        while self.waiting and len(self.running) < self.settings.max_num_seqs and plan.budget > 0:
            request = self.waiting[0]
            found = self._cached(request)
            hit = found * BLOCK
            count = min(len(request.tokens) - hit, plan.budget)
            if not self.pool.take(request.holding, request.hashes[:found], _blocks(hit + count)):
                return
            self.waiting.popleft()
            self.running.append(request)
            request.computed = hit
            plan.budget -= count
            plan.prefills.append((request, count))
            if request.cached < 0:
                request.cached = hit
                request.spans.scheduled = max(now, request.spans.arrived)
                self.counters.prefix_queries += len(request.tokens)
                self.counters.prefix_hits += hit

    def _cached(self, request: Request) -> int:
        """Blocks at the start of *request* that are in the cache and may be used.

        The last token is always computed, since what follows it is wanted; and a drafter that reads hidden
        states needs those of one block more.
        """
        if not self.settings.prefix_caching or "no-hits" in self.settings.faults:
            return 0
        found = self.pool.match(request.hashes[: (len(request.tokens) - 1) // BLOCK])
        return max(0, found - 1) if self.settings.k else found

    # The model ------------------------------------------------------------------------------------------

    def _seconds(self, plan: _Plan) -> float:
        costs = self.settings.costs
        context = sum(len(request.tokens) for request in plan.decodes)
        prefilled = sum(count for _, count in plan.prefills)
        healthy = (
            costs.base
            + costs.request * len(plan.decodes)
            + costs.context * context
            + costs.prefill * prefilled
        )
        drawn = math.exp(costs.jitter * bell(mix(mix(self.settings.seed, 4), self._steps)))
        return healthy / 1000 * drawn * self._lottery * self._harm.duration()

    def _decode(self, request: Request, batch: int, now: float) -> StreamDelta:
        """Draft, verify and say what was accepted, and the token after it."""
        if not self.settings.k:
            delta = self._say(request, 1, batch)
        else:
            factor = self._harm.acceptance(request, now, batch)
            state = mix(request.identity, len(request.steps))
            count = acceptance.accepted(self._tables[request.category], factor, state)
            request.steps.append(count)
            self.counters.observe_draft(self.settings.k, count)
            delta = self._say(request, count + 1, batch)
        request.computed = len(request.tokens) - 1
        self._fill(request)
        return delta

    def _say(self, request: Request, count: int, batch: int) -> StreamDelta:
        noise = 2 if batch > 1 else 1  # kernels for one request round otherwise than those for many
        return request.accept(tuple(request.speaker.next(noise) for _ in range(count)), EOS)

    def _fill(self, request: Request) -> None:
        """Let others find the blocks of *request* that are full and computed."""
        if self.settings.prefix_caching:
            for name in request.hashes[len(request.holding.shared) : request.computed // BLOCK]:
                self.pool.fill(request.holding, name)

    def _settle(self, plan: _Plan, deltas: list[tuple[Request, StreamDelta]], end: float) -> None:
        """Count what the step brought, and let go of requests that are done."""
        counters = self.counters
        prefilled = sum(count for _, count in plan.prefills)
        generated = sum(len(delta.choices) for _, delta in deltas)
        counters.iteration(prefilled, generated)
        for request, delta in deltas:
            counters.tokens(request, len(delta.choices), end)
            if delta.finish:
                self.running.remove(request)
                self.pool.release(request.holding)
                counters.finished(request)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)
