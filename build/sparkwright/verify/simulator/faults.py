"""The faults of a simulated server: a table of switches, with the checks that must notice each of them.

Every row of the fault matrix that a server can cause is here. `Faults` holds those that are active in one
server; other modules read it with ``faults.value("slow", "factor")``, which is `None` while the fault is off.
`fault_effects` applies them to the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from sparkwright.base.errors import ConfigError, UnknownNameError


@dataclass(frozen=True)
class Fault:
    """One switch.

    Attributes:
        does: the change that it makes.
        noticed_by: names of the checks that must not pass while it is on; ``endpoint`` and ``server`` are the
            preflight and the server's lifecycle. Empty for unusual but correct behaviour: every check passes.
        parameters: their defaults, by name; the first is the one that ``--fault NAME=VALUE`` sets.
    """

    name: str
    does: str
    noticed_by: tuple[str, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)


_EVERY: Final = {"every": 5.0}

_TABLE: Final = (
    # Acceptance
    Fault(
        "decay-linear",
        "acceptance falls in a straight line to its floor",
        ("soak",),
        {"onset_s": 300, "over_s": 600, "floor": 0},
    ),
    Fault("decay-step", "acceptance falls at once", ("soak",), {"onset_s": 600, "floor": 0}),
    Fault(
        "decay-cached",
        "tokens from the prefix cache are unknown to the drafter: acceptance falls with their share",
        ("soak",),
        {"floor": 0},
    ),
    Fault("no-hits", "the prefix cache finds nothing", ("prefix", "soak")),
    Fault("inert", "no drafted token is ever accepted", ("sweep",)),
    Fault("nan-drafts", "drafts are NaN: none is accepted, and requests count as corrupted", ("sweep",)),
    Fault("no-speculation", "it should speculate and does not", ("sweep",)),
    Fault("no-spec-series", "/metrics has no series of speculative decoding", ("sweep",)),
    Fault(
        "long-context",
        "acceptance is all but lost beyond a length",
        ("context",),
        {"beyond": 2048, "floor": 0.05},
    ),
    Fault("falls-with-load", "acceptance falls as the batch grows", ("sweep",), {"power": 0.25}),
    Fault(
        "inflated-acceptance",
        "counters call the token after the accepted ones accepted too",
        ("sweep",),
    ),
    # Crashes and stalls
    Fault("crash-at", "the engine dies at this batch size and above", ("crash",), {"batch": 32}),
    Fault("crash-off-grid", "the engine dies at exactly this batch size", ("crash",), {"batch": 17}),
    Fault("crash-on-drain", "the engine dies when the batch shrinks to this size", ("crash",), {"batch": 5}),
    Fault("oom-under-load", "the whole server is killed (137) at this batch size", ("crash",), {"batch": 16}),
    Fault(
        "dead-engine",
        "after so many requests nothing is generated any more, and /health still says 200",
        ("crash",),
        {"after": 20},
    ),
    Fault(
        "wedge",
        "once so many requests run at a time none gets another token: the card waits at full utilization and"
        " little power, and /health says 200",
        ("crash",),
        {"batch": 17},
    ),
    Fault(
        "slow-state",
        "from a moment on the card stays at low clocks and low power under load, and steps take so many"
        " times as long",
        ("soak", "sweep"),
        {"factor": 3, "onset_s": 0},
    ),
    Fault("hang", "every so many requests one is accepted and gets no token", ("sweep",), _EVERY),
    Fault("stall", "every so many requests one stops in the middle", ("sweep",), {"every": 5, "chunks": 2}),
    Fault("slow", "every step takes so many times as long", ("bands", "compare"), {"factor": 10}),
    Fault("counter-reset", "after so many requests the server restarts unseen", ("sweep",), {"after": 30}),
    Fault("runaway", "every so many requests one goes on without end", ("sweep",), _EVERY),
    Fault(
        "compiles",
        "a compiler runs for every so many requests, and leaves a file in FlashInfer's cache",
        ("compile",),
        {"each": 3, "seconds": 1},
    ),
    Fault("orphan", "the engine outlives the server and ignores SIGTERM", ("server",)),
    # Streams that break
    Fault("cut-fin", "streams end properly, but without [DONE]", ("sweep",), {"every": 5, "chunks": 2}),
    Fault("cut-close", "the connection is closed in mid-stream", ("sweep",), {"every": 5, "chunks": 2}),
    Fault("cut-reset", "the connection is reset (RST)", ("sweep",), {"every": 5, "chunks": 2}),
    Fault("cut-json", "an event's JSON is cut, then [DONE]", ("sweep",), {"every": 5, "chunks": 2}),
    Fault(
        "error-in-band", "an error object in the stream, then [DONE]", ("sweep",), {"every": 5, "chunks": 2}
    ),
    Fault("status", "an HTTP error instead of an answer", ("sweep", "arrivals"), {"code": 500, "every": 5}),
    Fault("html", "an HTML page with status 200 instead of a stream", ("sweep",), _EVERY),
    Fault("buffered", "something on the way holds each stream back until its end", ("sweep",)),
    # Counts
    Fault("no-usage", "neither usage nor token ids are sent", ("sweep",), _EVERY),
    Fault(
        "wrong-usage", "usage says so many tokens more than were sent", ("sweep",), {"more": 3, "every": 5}
    ),
    Fault(
        "early-stop", "generation ends early with finish_reason stop", ("sweep",), {"every": 5, "share": 0.5}
    ),
    Fault("abort", "generation ends early with finish_reason abort", ("sweep",), {"every": 5, "share": 0.5}),
    Fault("wrong-tokenize", "POST /tokenize counts so many times the tokens", ("context",), {"factor": 2}),
    # Streams that are unusual and correct
    Fault("usage-at-end", "no token ids and no continuous usage: only the count at the end", ()),
    Fault("role-chunks", "chunks with nothing but a role", (), {"many": 3}),
    Fault("empty-content", "chunks with empty content between the others", ()),
    Fault("reasoning-only", "chat answers consist of reasoning alone", ()),
    Fault("reasoning-content", "reasoning alone, under its older name", ()),
    Fault("tool-calls", "chat answers come as arguments of a tool call", ()),
    Fault("sse-comments", "comments between events", ()),
    Fault("crlf", "lines end with CR and LF", ()),
    Fault("split-reads", "events are sent in pieces, through JSON and UTF-8", (), {"bytes": 7}),
    Fault("joined-events", "so many events are sent at once", (), {"many": 3}),
    # Start
    Fault("boot-killed", "killed while it starts, as when memory runs out (137)", ("boot",)),
    Fault("boot-cuda-oom", "CUDA out of memory while it starts", ("boot",)),
    Fault("boot-engine", "the engine fails to initialize", ("boot",)),
    Fault("boot-slow", "it takes this long to start", ("boot",), {"seconds": 100_000}),
    Fault(
        "negative-estimate",
        "the estimate of the graphs' memory is negative, and the KV cache gets what is not there",
        ("boot",),
        {"gib": -35.69},
    ),
    Fault("unrounded-graphs", "decode graphs are captured for sizes that hold no whole drafts", ("boot",)),
    Fault("piecewise-drafts", "an attention backend takes no whole graphs for drafts", ("boot",)),
    Fault("fp4-fallback-linear", "linear layers of FP4 weights run on Marlin, weights only", ("boot",)),
    Fault("fp4-fallback-moe", "experts of FP4 weights are emulated", ("boot",)),
    Fault("nvfp4-no-gain", "NVFP4 KV that holds no more tokens than FP8", ("boot",)),
    # Generated text
    Fault("repeated-token", "nothing but exclamation marks", ("coherence",)),
    Fault("one-token", "the same word again and again", ("coherence",)),
    Fault("word-salad", "sentences without sense, in answer to whatever is asked", ("coherence",)),
    Fault("lossy", "speculation accepts wrong tokens at this rate", ("lossless", "parity"), {"rate": 0.01}),
    Fault("lossy-position", "speculation accepts a wrong token at one position", ("lossless",), {"at": 24}),
    Fault(
        "stale-cache",
        "tokens from the prefix cache are another prompt's: answers after them go wrong at this rate",
        ("prefix",),
        {"rate": 0.1},
    ),
    Fault("near-ties", "speculation turns this share of near ties the other way", (), {"share": 0.15}),
    # Chats
    Fault(
        "template-missing",
        "chats get no template: the model goes on with messages of both roles",
        ("traffic",),
    ),
    Fault("history-dropped", "chats hold nothing but their last message", ("traffic",)),
    Fault("reasoning-in-answer", "the end of the reasoning is in the answer", ("traffic",)),
    Fault("replacement-characters", "each byte of a longer character becomes a U+FFFD", ("traffic",)),
    Fault("tool-parser-swallows", "the last argument of each tool call is missing", ("traffic",)),
    Fault("tool-json-truncated", "the end of each tool call's arguments is missing", ("traffic",)),
    Fault("tool-choice-ignored", "a call of a tool that a request demands does not come", ("traffic",)),
    Fault("guided-calls-misfit", "the last argument of each demanded tool call is missing", ("traffic",)),
    # Sampling
    Fault("temperature-ignored", "every request is greedy, whatever its temperature", ("sampling",)),
    Fault("seed-ignored", "sampling draws otherwise each time, whatever the seed", ("sampling",)),
    Fault("seed-fixed", "sampling draws the same for every seed", ("sampling",)),
    Fault("sampling-garbage", "sampled tokens are of many alphabets; greedy ones are sound", ("sampling",)),
    # Reasoning
    Fault("thinking-not-off", "the model thinks where its template says that it must not", ("thinking",)),
    Fault("reasoning-lost", "the parser of reasoning sends none of it", ("thinking",)),
    Fault("thoughts-unparsed", "reasoning comes as a part of the answer", ("thinking",)),
    Fault("answer-in-reasoning", "the parser takes the answer for reasoning too", ("thinking",)),
    Fault("budget-ignored", "reasoning goes on beyond its budget", ("thinking",)),
    # Pictures
    Fault("image-ignored", "pictures take their tokens, and the model does not see them", ("image",)),
    Fault("images-dropped", "pictures are left out of the prompt", ("image",)),
    # Long prompts, alone and beside others
    Fault("truncates-prompts", "a prompt that is too long is cut instead of refused", ("limit",)),
    Fault(
        "limit-crash", "the engine dies of a prompt of this share of the longest", ("limit",), {"share": 0.95}
    ),
    Fault("limit-wrong", "prompts of this share of the longest are not read", ("limit",), {"share": 0.9}),
    Fault("prefill-starves", "no request decodes while any prompt is prefilled", ("mixed",)),
    Fault("mixed-drops", "a token is lost in each step that prefills and decodes", ("mixed",)),
    # Version, endpoints and speed
    Fault("flood", "steps are so many times faster than any client", (), {"factor": 1000}),
    Fault("metrics-vanish", "/metrics is gone after so many requests for text", ("sweep",), {"after": 5}),
    Fault("flaky-tokenize", "POST /tokenize answers 500 now and then", ("context",), {"every": 5}),
    Fault("no-metrics", "/metrics is not there", ("endpoint",)),
    Fault("old-version", "a version that is too old", ("endpoint",)),
    Fault("not-json", "every page is HTML, as from something that is no vLLM", ("endpoint",)),
    # What the model computes
    Fault(
        "stale-block",
        "the last reused block is wrong where a prompt ends with a block: answers go wrong at this rate",
        ("prefix",),
        {"rate": 0.3},
    ),
    Fault(
        "late-state",
        "a hybrid's state is taken one block late where the cache has one: logits are off by so much",
        ("prefix",),
        {"error": 1.0},
    ),
    Fault(
        "wrong-layer",
        "one layer has wrong weights: logits are off by so much",
        ("reference",),
        {"error": 0.4},
    ),
    Fault(
        "wrong-positions",
        "positions are wrong beyond a length: logits of longer prompts are off by so much",
        ("reference",),
        {"error": 0.8, "beyond": 400},
    ),
    Fault("coarse-weights", "weights are coarser: logits come in such steps", ("reference",), {"step": 1.5}),
)
FAULTS: Final[Mapping[str, Fault]] = MappingProxyType({fault.name: fault for fault in _TABLE})


@dataclass(frozen=True)
class Faults:
    """The active faults, with their parameters."""

    active: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return FAULTS[name].name in self.active  # a misspelt name must not read as healthy

    def value(self, name: str, parameter: str) -> float | None:
        """Return a parameter of the fault *name*, or `None` while it is off.

        Raises:
            KeyError: there is no such fault, or it has no such parameter.
        """
        FAULTS[name].parameters[parameter]  # a misspelt name must not read as healthy
        found = self.active.get(name)
        return None if found is None else found[parameter]

    def value_or(self, name: str, parameter: str, otherwise: float) -> float:
        """Return a parameter of the fault *name*, or *otherwise* while it is off."""
        found = self.value(name, parameter)
        return otherwise if found is None else found

    def hits(self, name: str, number: int) -> bool:
        """Tell if request *number* (from 1) is one that the fault *name* affects."""
        every = self.value(name, "every")
        return every is not None and number % int(every) == 0


def parse_faults(texts: Iterable[str]) -> Faults:
    """Read ``NAME``, ``NAME=VALUE`` and ``NAME=parameter:value,…``.

    Raises:
        UnknownNameError: there is no such fault.
        ConfigError: it has no such parameter, or that is no number.
    """
    active: dict[str, dict[str, float]] = {}
    for text in texts:
        name, _, rest = text.partition("=")
        if name not in FAULTS:
            raise UnknownNameError(
                f"there is no fault {name!r}", next_step="`sparkwright-simulator --list-faults` lists them"
            )
        active[name] = {**FAULTS[name].parameters, **_parameters(FAULTS[name], rest)}
    return Faults(active)


def _parameters(fault: Fault, text: str) -> dict[str, float]:
    names = list(fault.parameters)
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, colon, value = part.rpartition(":")
        name = name if colon else (names[0] if names else "")
        try:
            found[name] = float(value)
        except ValueError as error:
            raise ConfigError(f"the fault {fault.name!r} takes numbers, not {value!r}") from error
        if name not in names:
            raise ConfigError(
                f"the fault {fault.name!r} has no parameter {name!r}",
                because=f"it has {', '.join(names) or 'none'}",
            )
    return found


def slow_state(faults: Faults, now: float) -> bool:
    """Tell if the card is in its slow state at the simulated time *now*."""
    return now >= faults.value_or("slow-state", "onset_s", math.inf)
