"""The engine: requests and a scheduler over the blocks of the KV cache, without clock or network.

`Engine.step` receives the simulated time at which a step begins and returns its duration and its tokens;
`machine.Driver` waits that long and delivers them. The scheduling is vLLM's in outline: running requests come
first, each with its drafted tokens; prompts are prefilled in chunks within a budget of tokens; a request
waits until the cache has place for all of its tokens, so that none is preempted.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from sparkwright.verify.simulator.faults import Faults, slow_state
from sparkwright.verify.simulator.model import (
    EOS,
    Choice,
    TokenGenerator,
    acceptance_table,
    accepted_tokens,
    gaussian,
    mix,
)
from sparkwright.verify.simulator.settings import BLOCK, Settings, plan_memory


def block_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of a full block: of its tokens and of all before it."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class PrefixCache:
    """Full blocks that were computed, by their hashes; with too many, the least recently used ones go."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def match(self, hashes: Sequence[bytes]) -> int:
        """Return how many of *hashes*, from the first on, are cached."""
        count = next((count for count, name in enumerate(hashes) if name not in self._known), len(hashes))
        self.add(hashes[:count])
        return count

    def add(self, hashes: Iterable[bytes]) -> None:
        """Note blocks as computed, or as used."""
        for name in hashes:
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > self.blocks:
            self._known.popitem(last=False)


@dataclass
class Counters:
    """The counters of one start of the server."""

    k: int
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    generated: int = 0
    prompt: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    success: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )

    def __post_init__(self) -> None:
        self.per_position = [0] * self.k

    def observe_draft(self, drafted: int, accepted: int) -> None:
        """Count one draft of *drafted* tokens of which the first *accepted* were accepted."""
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted += accepted
        for position in range(accepted):
            self.per_position[position] += 1

    def tokens(self, request: Request, count: int) -> None:
        """Count *count* tokens that *request* just got; with its first ones, those of its prompt."""
        self.generated += count
        if request.output_tokens == count:
            self.prompt += request.prompt_tokens


@dataclass(frozen=True)
class StreamDelta:
    """The tokens that one step adds to one request.

    Attributes:
        finish: ``stop``, ``length`` or ``abort`` if the request is finished, else empty.
    """

    choices: tuple[Choice, ...]
    finish: str = ""


@dataclass(eq=False)
class Request:
    """A request and its progress.

    Attributes:
        number: from 1, in the order of arrival.
        tokens: prompt and output so far.
        identity: source of the draws that decide acceptance.
        limit: a fault ends it after so many tokens, with `limit_finish`; 0 for none.
        computed: tokens whose keys and values are in the cache.
        hashes: of the full blocks of `tokens`.
        filled: number of them that the prefix cache was told of.
        cached: prompt tokens found in the cache when it was first scheduled; -1 before.
        steps: accepted tokens of each step with drafted tokens.
        thoughts: generated tokens that are reasoning.
    """

    number: int
    name: str
    tokens: list[int]
    max_tokens: int
    generator: TokenGenerator
    identity: int
    limit: int = 0
    limit_finish: str = ""
    computed: int = 0
    prompt_tokens: int = 0
    hashes: list[bytes] = field(default_factory=list)
    filled: int = 0
    cached: int = -1
    steps: list[int] = field(default_factory=list)
    finish: str = ""
    thoughts: int = 0

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        self.hash_blocks()

    @property
    def output_tokens(self) -> int:
        """Return the number of generated tokens."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Tell if all but its last token is in the cache, so that it can decode."""
        return self.output_tokens > 0 and self.computed >= len(self.tokens) - 1

    @property
    def missing(self) -> int:
        """Return the number of tokens that a prefill has yet to compute."""
        return len(self.tokens) - self.computed

    def hash_blocks(self) -> None:
        """Hash the blocks that have become full."""
        while (len(self.hashes) + 1) * BLOCK <= len(self.tokens):
            begin = len(self.hashes) * BLOCK
            parent = self.hashes[-1] if self.hashes else b""
            self.hashes.append(block_hash(parent, self.tokens[begin : begin + BLOCK]))

    def accept(self, choices: tuple[Choice, ...], end: int) -> StreamDelta:
        """Append the tokens of a step, up to *end* of sequence or the longest output; returns them."""
        kept: list[Choice] = []
        for choice in choices:
            kept.append(choice)
            self.tokens.append(choice.token)
            if choice.token == end:
                self.finish = "stop"
            elif self.limit and self.output_tokens >= self.limit:
                self.finish = self.limit_finish
            elif self.output_tokens >= self.max_tokens:
                self.finish = "length"
            if self.finish:
                break
        self.hash_blocks()
        return StreamDelta(tuple(kept), self.finish)


# The scheduler ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineStep:
    """The result of one step."""

    seconds: float
    deltas: tuple[tuple[Request, StreamDelta], ...]


@dataclass
class _StepPlan:
    """The requests that decode in a step, and those that prefill, each with its number of tokens."""

    budget: int
    decodes: list[Request] = field(default_factory=list)
    prefills: list[tuple[Request, int]] = field(default_factory=list)


class Engine:
    """The engine of one server, with all its requests."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counters = Counters(settings.k)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.cache = PrefixCache(plan_memory(settings).kv_tokens // BLOCK)
        self._effects = FaultEffects(settings.faults)
        self._chances = acceptance_table(settings.k)
        self._boot_jitter = math.exp(settings.costs.boot_jitter * gaussian(mix(settings.seed, 3)))
        self._steps = 0
        self._decoded = 0

    @property
    def busy(self) -> bool:
        """Tell if any request runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def usage(self) -> float:
        """Return the share of the cache that running requests hold."""
        return min(1.0, sum(_blocks(len(each.tokens)) for each in self.running) / self.cache.blocks)

    def add(self, request: Request) -> None:
        """Queue *request*."""
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop *request*, whose client is gone; nothing if it is done."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)

    def step(self, now: float) -> EngineStep:
        """Schedule and run one step that begins at the simulated time *now*.

        Raises:
            EngineDeadError: a fault ended the engine.
            OutOfMemoryError: a fault ended the server.
        """
        plan = self._schedule()
        self._effects.check_batch(len(plan.decodes), self._decoded)
        self._decoded = len(plan.decodes)
        self._steps += 1
        batch = len(plan.decodes) + len(plan.prefills)
        seconds = self._seconds(plan, now)
        deltas = [(request, self._decode(request, batch, now)) for request in plan.decodes]
        if plan.prefills and "mixed-drops" in self.settings.faults:
            for request in plan.decodes:
                request.generator.next(0)
        for request, count in plan.prefills:
            request.computed += count
            if not request.missing:
                deltas.append((request, self._generate(request, 1, batch)))
            self._fill(request)
        self._settle(deltas)
        return EngineStep(seconds, tuple(deltas))

    # Scheduling -----------------------------------------------------------------------------------------

    def _schedule(self) -> _StepPlan:
        plan = _StepPlan(self.settings.max_batched_tokens)
        if "prefill-starves" in self.settings.faults:
            for request in [each for each in self.running if not each.decoding]:
                self._schedule_running(request, plan)
            self._admit(plan)
            if plan.prefills:
                return plan
        for request in self.running:
            self._schedule_running(request, plan)
        self._admit(plan)
        return plan

    def _schedule_running(self, request: Request, plan: _StepPlan) -> None:
        count = 1 + self.settings.k if request.decoding else min(request.missing, plan.budget)
        if count <= 0:
            return
        plan.budget -= count
        if request.decoding:
            plan.decodes.append(request)
        else:
            plan.prefills.append((request, count))

    def _admit(self, plan: _StepPlan) -> None:
        """Start waiting requests, first come first served, while there is place for all of their tokens."""
        held = sum(map(self._longest, self.running))
        while self.waiting and len(self.running) < self.settings.max_num_seqs and plan.budget > 0:
            request = self.waiting[0]
            held += self._longest(request)
            if self.running and held > self.cache.blocks:
                return
            self._effects.check_prompt(request.prompt_tokens, self.settings.max_model_len)
            self.running.append(self.waiting.popleft())
            found = self._cached(request)
            request.computed = request.cached = found * BLOCK
            self._effects.reuse(request, found, BLOCK)
            self.counters.prefix_queries += len(request.tokens)
            self.counters.prefix_hits += request.cached
            count = min(request.missing, plan.budget)
            plan.budget -= count
            plan.prefills.append((request, count))

    def _longest(self, request: Request) -> int:
        """Return the blocks of *request* at its end."""
        return _blocks(min(request.prompt_tokens + request.max_tokens, self.settings.max_model_len))

    def _cached(self, request: Request) -> int:
        """Return the number of cached blocks at the start of *request* that may be reused.

        The last token is always computed, since its output is needed; and a drafter that reads hidden states
        needs those of one block more.
        """
        if not self.settings.prefix_caching or "no-hits" in self.settings.faults:
            return 0
        found = self.cache.match(request.hashes[: (len(request.tokens) - 1) // BLOCK])
        return max(0, found - 1) if self.settings.k else found

    # The model ------------------------------------------------------------------------------------------

    def _seconds(self, plan: _StepPlan, now: float) -> float:
        costs = self.settings.costs
        context = sum(len(request.tokens) for request in plan.decodes)
        prefilled = sum(count for _, count in plan.prefills)
        healthy = (
            costs.base
            + costs.request * len(plan.decodes)
            + costs.context * context
            + costs.prefill * prefilled
            + costs.draft * self.settings.k * len(plan.decodes)
        )
        drawn = math.exp(costs.jitter * gaussian(mix(mix(self.settings.seed, 4), self._steps)))
        return healthy / 1000 * drawn * self._boot_jitter * self._effects.duration(now)

    def _decode(self, request: Request, batch: int, now: float) -> StreamDelta:
        """Draft, verify, and generate the accepted tokens and one more."""
        if not self.settings.k:
            delta = self._generate(request, 1, batch)
        else:
            factor = self._effects.acceptance(request, now, batch) * self.settings.acceptance
            state = mix(request.identity, len(request.steps))
            count = accepted_tokens(self._chances, factor, state)
            request.steps.append(count)
            self.counters.observe_draft(self.settings.k, count)
            delta = self._generate(request, count + 1, batch)
        request.computed = len(request.tokens) - 1
        self._fill(request)
        return delta

    def _generate(self, request: Request, count: int, batch: int) -> StreamDelta:
        noise = 2 if batch > 1 else 1  # kernels for one request round otherwise than those for many
        return request.accept(tuple(request.generator.next(noise) for _ in range(count)), EOS)

    def _fill(self, request: Request) -> None:
        """Cache the blocks of *request* that are full and computed."""
        if self.settings.prefix_caching:
            self.cache.add(request.hashes[request.filled : request.computed // BLOCK])
            request.filled = request.computed // BLOCK

    def _settle(self, deltas: list[tuple[Request, StreamDelta]]) -> None:
        """Count the tokens of the step, and release finished requests."""
        for request, delta in deltas:
            self.counters.tokens(request, len(delta.choices))
            if delta.finish:
                self.running.remove(request)
                self.counters.success[delta.finish] += 1


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


BLOCK_TABLE = "RuntimeError: block_table must have shape (batch_size, max_num_blocks_per_seq)"

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


class EngineDeadError(Exception):
    """A step failed in a way that ends the engine; the message is the one in the log."""


class OutOfMemoryError(Exception):
    """The kernel kills the whole server."""


class FaultEffects:
    """The effects of one server's faults on its engine; without faults there are none."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def acceptance(self, request: Request, now: float, batch: int) -> float:
        """Return the factor on the chance of acceptance; 1 when healthy."""
        faults, factor = self._faults, 1.0
        if "inert" in faults or "nan-drafts" in faults:
            return 0.0
        if (fault := faults.of("decay-step")) and now >= fault["onset_s"]:
            factor = fault["floor"]
        if fault := faults.of("decay-linear"):
            lost = (1 - fault["floor"]) * max(0.0, now - fault["onset_s"]) / fault["over_s"]
            factor *= max(fault["floor"], 1 - lost)
        if fault := faults.of("decay-cached"):
            factor *= 1 - (1 - fault["floor"]) * max(request.cached, 0) / request.prompt_tokens
        if (fault := faults.of("long-context")) and len(request.tokens) > fault["beyond"]:
            factor *= fault["floor"]
        if fault := faults.of("falls-with-load"):
            factor *= batch ** -fault["power"]
        return factor

    def reuse(self, request: Request, blocks: int, size: int) -> None:
        """Apply the faults of reused blocks to *request*, of which the cache has so many *blocks*."""
        if not blocks:
            return
        faults = self._faults
        stale = faults.of("stale-cache")
        if not stale and len(request.tokens) % size == 0:
            stale = faults.of("stale-block")
        if stale:
            request.generator.go_wrong(stale["rate"])
        if (late := faults.of("late-state")) and len(request.hashes) > blocks:
            request.generator.misjudge(late["error"])

    def duration(self, now: float) -> float:
        """Return the factor on the duration of a step that begins at *now*; 1 when healthy."""
        slow, flood = self._faults.value("slow", "factor"), self._faults.value("flood", "factor")
        stuck = self._faults.value_or("slow-state", "factor", 1.0) if slow_state(self._faults, now) else 1.0
        return (slow or 1.0) * stuck / (flood or 1.0)

    def check_prompt(self, tokens: int, longest: int) -> None:
        """Raise if a fault ends the engine at a prompt of so many *tokens*, of *longest* at the most.

        Raises:
            EngineDeadError: the engine dies.
        """
        if (fault := self._faults.of("limit-crash")) and tokens >= fault["share"] * longest:
            raise EngineDeadError(ILLEGAL)

    def check_batch(self, batch: int, before: int) -> None:
        """Raise if a fault ends the engine or the server at this batch size.

        Raises:
            EngineDeadError: the engine dies.
            OutOfMemoryError: the server dies.
        """
        faults = self._faults
        off_grid, drain = (faults.value(name, "batch") for name in ("crash-off-grid", "crash-on-drain"))
        crowded = batch >= faults.value_or("crash-at", "batch", math.inf)
        if crowded or batch == off_grid or (batch == drain and batch < before):
            raise EngineDeadError(BLOCK_TABLE)
        if batch >= faults.value_or("oom-under-load", "batch", math.inf):
            raise OutOfMemoryError
