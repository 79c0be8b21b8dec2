"""Judge a served engine by samples of its counters: healthy, wedged or dead.

An engine is *wedged* if it holds requests and does nothing for them, while ``/health`` may still answer 200.
Anything that an engine does shows in a counter: generated tokens, tokens of finished prompts, preemptions, or
a KV cache that fills while a long prompt is prefilled in chunks. Between two chunks nothing shows, so the
limit is at least the time of the longest chunk at `SLOWEST_PREFILL`; it is longer while kernels are compiled,
soon after a start, and while the host is short of memory. Requests that arrive or go away show nothing.

An idle engine shows nothing either: a canary, a request of a few tokens, is sent to it. One canary without
tokens is not enough, since one request may be lost; the next one must fail too.

Everything here is pure: samples in, judgements out. `supervise` takes the samples and acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.preflight.kv_plan import flag_number

STALL_S: Final = 120.0
SLOWEST_PREFILL: Final = 100.0
"""Tokens a second; GB10 prefills a dense model of 27 billion parameters at about 1,600."""
COMPILE_S: Final = 1800.0
WARM_S: Final = 300.0
_BATCHED_TOKENS: Final = 8192
_STARVED_MIB: Final = 1024.0
_STARVED_PRESSURE: Final = 40.0
_CANARIES: Final = 2
_COUNTERS: Final = ("generated", "prompt", "preemptions")


class WatchVerdict(StrEnum):
    """The state of an engine."""

    HEALTHY = "healthy"
    WEDGED = "wedged"
    DEAD = "dead"

    @property
    def ends(self) -> bool:
        """Tell if the engine has to be started again."""
        return self is not WatchVerdict.HEALTHY


@dataclass(frozen=True)
class WatchLimits:
    """The seconds after which an engine that does nothing is wedged, by its situation.

    Attributes:
        stall_s: in the ordinary case.
        warm_s: soon after the start, when kernels are used for the first time.
        young_s: seconds from the start for which `warm_s` applies.
        compile_s: while compilers run that the engine started.
    """

    stall_s: float = STALL_S
    warm_s: float = WARM_S
    young_s: float = WARM_S
    compile_s: float = COMPILE_S

    @classmethod
    def of(cls, recipe: Recipe) -> WatchLimits:
        """Return the limits for a recipe: no less than its longest step takes at `SLOWEST_PREFILL`."""
        tokens = flag_number(recipe, "max-num-batched-tokens", _BATCHED_TOKENS)
        if recipe.flags.get("enable-chunked-prefill") is False:
            tokens = max(tokens, flag_number(recipe, "max-model-len", tokens))
        stall_s = max(STALL_S, tokens / SLOWEST_PREFILL)
        return cls(stall_s=stall_s, warm_s=max(WARM_S, stall_s))


@dataclass(frozen=True)
class EngineSample:
    """An engine at one moment. Numbers that could not be read are -1.

    Attributes:
        at: seconds of a monotonic clock.
        responds: ``/health`` or ``/metrics`` was answered, whatever the answer was.
        prompt: tokens of prompts whose prefill is finished.
        preemptions: requests whose blocks were taken away.
        kv_usage: share of the KV cache in use, 0 to 1.
        canary_failures: canaries in a row that got none.
        available_mib: memory of the host that can still be taken.
        pressure: share of the last ten seconds, in percent, in which everything waited for memory.
    """

    at: float
    exited: int | None = None
    responds: bool = True
    failing: bool = False
    running: float = -1
    waiting: float = -1
    generated: float = -1
    prompt: float = -1
    preemptions: float = -1
    kv_usage: float = -1
    canary_pending: bool = False
    canaries_good: int = 0
    canary_failures: int = 0
    compilers: int = 0
    available_mib: float = -1
    pressure: float = -1

    @property
    def held(self) -> float:
        """Return the number of requests that clients wait for, as far as the engine says."""
        return max(self.running, 0) + max(self.waiting, 0)

    @property
    def starved(self) -> bool:
        """Tell if the host is short of memory."""
        return 0 <= self.available_mib < _STARVED_MIB or self.pressure >= _STARVED_PRESSURE


@dataclass(frozen=True)
class Judgement:
    """A verdict on an engine, with its cause.

    Attributes:
        because: the cause in words; empty for a healthy engine.
    """

    verdict: WatchVerdict
    because: str = ""


@dataclass(frozen=True)
class Watchdog:
    """The memory of a watch: `observe` returns the next one with a judgement.

    Attributes:
        started_at: when the engine gave its first answer.
        worked_at: when the engine last did something, or held nothing.
    """

    limits: WatchLimits = field(default_factory=WatchLimits)
    started_at: float | None = None
    last: EngineSample | None = None
    worked_at: float = 0.0

    def observe(self, sample: EngineSample) -> tuple[Watchdog, Judgement]:
        """Return the watch after *sample*, and the judgement on the engine."""
        last = sample if self.last is None else _with_known(sample, self.last)
        idle = sample.responds and not _holds(sample)
        works = self.last is None or idle or _worked(self.last, last)
        watch = replace(
            self,
            started_at=sample.at if self.started_at is None else self.started_at,
            last=last,
            worked_at=sample.at if works else self.worked_at,
        )
        still = sample.at - watch.worked_at
        found = _ended(sample, still, watch._limit(sample))  # noqa: SLF001 - of the same class
        return watch, Judgement(*(found or (WatchVerdict.HEALTHY, "")))

    def _limit(self, sample: EngineSample) -> float:
        assert self.started_at is not None  # noqa: S101 - set with the first sample
        young = sample.at - self.started_at < self.limits.young_s
        limit = self.limits.warm_s if young else self.limits.stall_s
        if sample.compilers:
            limit = max(limit, self.limits.compile_s)
        return limit * 2 if sample.starved else limit


def _holds(sample: EngineSample) -> bool:
    return bool(sample.held or sample.canary_pending or sample.canary_failures)


def _with_known(sample: EngineSample, last: EngineSample) -> EngineSample:
    """Return *sample* with the last known counters in place of those that could not be read."""
    names = (name for name in (*_COUNTERS, "kv_usage") if getattr(sample, name) < 0)
    return replace(sample, **{name: getattr(last, name) for name in names})


def _worked(before: EngineSample, after: EngineSample) -> bool:
    # A counter that went back is another engine's: it was started again unseen.
    counted = any(getattr(after, name) != getattr(before, name) for name in _COUNTERS)
    return counted or after.canaries_good > before.canaries_good or after.kv_usage > before.kv_usage


def _ended(sample: EngineSample, still: float, limit: float) -> tuple[WatchVerdict, str] | None:
    """Return the verdict on an engine that has to be started again; `None` for others."""
    if sample.exited is not None:
        return WatchVerdict.DEAD, f"it ended by itself with status {sample.exited}"
    if sample.failing and sample.canary_failures >= _CANARIES:
        return WatchVerdict.DEAD, "/health answers with an error, and canaries get no token"
    if still >= limit and (why := _wedged(sample, still)):
        return WatchVerdict.WEDGED, why
    return None


def _wedged(sample: EngineSample, still: float) -> str:
    """Return the reason why an engine that does nothing is wedged; empty if one more canary is due."""
    if not sample.responds:
        return f"its HTTP server has not answered for {still:.0f} s"
    health = "answers with an error" if sample.failing else "answers 200"
    if sample.held > sample.canary_pending:  # others than the canary, which is among them
        return f"{_held(sample)} held, and no token came for {still:.0f} s, while /health {health}"
    if sample.canary_failures + sample.canary_pending >= _CANARIES:
        return f"canaries got no token for {still:.0f} s, while /health {health}"
    return ""


def _held(sample: EngineSample) -> str:
    many = f"{sample.held:.0f} request" + ("s are" if sample.held != 1 else " is")
    return many if sample.held else "a canary is"
