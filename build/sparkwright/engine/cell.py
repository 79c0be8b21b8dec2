"""The requests of a run: prompts, loads, deadlines and cells, of which a journal keeps every one.

A cell is the unit of measuring and of resuming; its key is a digest of everything that is sent.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of


class Message(Model, frozen=True):
    """One message of a conversation.

    Attributes:
        role: ``system``, ``user`` or ``assistant``.
    """

    role: Literal["system", "user", "assistant"]
    content: str


class Tool(Model, frozen=True):
    """A function that the model may call.

    Attributes:
        description: its purpose, for the model.
        parameters: JSON schema of its arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]


class Prompt(Model, frozen=True):
    """One prompt.

    Attributes:
        name: unique within a run.
        category: ``code``, ``math``, ``reasoning``, ``prose``, ``dialogue`` or ``extraction``.
        text: of the user message, salt included.
        expect: a string that a right answer holds (a needle, a result), or empty.
        prefix: prompts with the same non-empty value begin with the same text.
        history: messages of the conversation before `text`; sent by chat requests alone.
        images: pictures that stand before `text`, as ``data:`` addresses; sent by chat requests alone.
    """

    name: str
    category: str
    text: str
    expect: str = ""
    prefix: str = ""
    history: tuple[Message, ...] = ()
    images: tuple[str, ...] = ()


class Load(Model, frozen=True):
    """The load of a cell: number, concurrency and sampling of its requests.

    Attributes:
        shape: ``closed`` keeps `concurrency` requests running; ``burst`` sends all at once; ``drain`` sends
            all at once with output lengths from `max_tokens` down, so that the running batch shrinks by
            one request after another; ``open`` sends them at `rate`, whether or not others have ended.
        concurrency: requests at a time; 0 for ``open``.
        requests: number of counted requests.
        warm_up: number of requests sent before them, and not counted; for ``open`` at the same rate.
        max_tokens: the longest output.
        min_tokens: the shortest, for ``drain``.
        rate: for ``open``: mean number of arrivals a second, a Poisson process; else 0.
        stagger_s: a closed loop's clients start within this time, one after another.
        seconds: a closed loop runs for this long instead of for `requests`, if not 0; prompts
            are then taken in turn, each time with a salt of its own.
        natural_stop: let the model stop by itself; otherwise requests set ``ignore_eos``.
        chat: send to the chat endpoint rather than to that of completions.
        logprobs: number of alternatives whose log-probabilities are requested with each token.
        thinking: let a model that can think do so before its answer; chat requests alone.
        temperature: of sampling; 0 is greedy.
        seed: of sampling, and of arrivals.
        top_p: of sampling; all tokens, if unset.
        tools: functions that the model may call; chat requests alone.
        tool_choice: ``required``, or the name of the tool that an answer must call; the model's if empty.
        schema: JSON schema that answers must fit, if not empty; chat requests alone.
        plain: leave temperature and seed to the server, as clients that set neither do.
        thinking_budget: tokens of reasoning at the most; no limit if 0. A field of vLLM's chat requests.
    """

    shape: Literal["closed", "burst", "drain", "open"] = "closed"
    concurrency: int = 1
    requests: int = 1
    warm_up: int = 0
    max_tokens: int = 128
    min_tokens: int = 16
    rate: float = 0.0
    stagger_s: float = 0.0
    seconds: float = 0.0
    natural_stop: bool = False
    chat: bool = False
    logprobs: int = 0
    thinking: bool = False
    temperature: float = 0.0
    seed: int = 0
    # Unset it is no part of a cell's key, so that cells without it keep theirs.
    top_p: float | UnsetType = UNSET
    tools: tuple[Tool, ...] = ()
    tool_choice: str = ""
    schema: dict[str, Any] = field(default_factory=dict)
    plain: bool = False
    thinking_budget: int = 0


REQUIRED = "required"
"""The `Load.tool_choice` of answers that must call some tool."""
WATCHED = "watch"
"""The tag of cells during which more than counters is watched: ``compilers``."""
REFUSED = "refused"
"""The tag of cells whose requests a sound server refuses as the client's fault.

``must``: every request; ``may``: every one, or none.
"""
_LATER = frozenset({"history", "tools", "tool-choice", "schema", "plain", "images", "thinking-budget"})


class Cell(Model, frozen=True, dict=True):
    """One measurement: prompts under a load, on one boot of one server. The unit of resuming.

    Attributes:
        check: name of the check that planned it, such as ``sweep``.
        name: unique within that check, arm and boot, such as ``code c=8``.
        load: number, concurrency and sampling of its requests.
        prompts: of its requests, in this order.
        arm: the server: ``main``; for comparisons also ``baseline``.
        boot: number of that server's start, from 0; cells of different boots never share a server.
        tags: labels for the check that planned it, such as ``{"category": "code", "cache": "cold"}``.
    """

    check: str
    name: str
    load: Load
    prompts: tuple[Prompt, ...]
    arm: str = "main"
    boot: int = 0
    tags: dict[str, str] = field(default_factory=dict)

    @cached_property  # checks look cells up by it hundreds of times, and prompts are long
    def key(self) -> str:
        """Digest of everything that determines the requests, 16 hex digits.

        Empty fields that recorded runs may lack are left out, so that their keys stay as they are.
        """
        told = to_builtins(self)
        if not self.load.chat:
            del told["load"]["thinking"]  # decides nothing there
        for part in (told["load"], *told["prompts"]):
            for name in _LATER.intersection(part):
                if not part[name]:
                    del part[name]
        return digest_of(told)[:16]


SLOWEST_S = 3.0
"""Seconds a token that one request may take at the most; servers for GB10 take 0.2 at 64 requests."""


class Deadlines(Model, frozen=True):
    """Timeouts of requests, in seconds of the server's clock.

    Attributes:
        first_token_s: from the request to the first token, queueing included.
        stall_s: between two chunks.
        canary_s: for one short request on a server that has nothing else to do.
        quiesce_s: until nothing runs and nothing waits after a cell.
    """

    connect_s: float = 10.0
    first_token_s: float = 300.0
    stall_s: float = 60.0
    canary_s: float = 60.0
    quiesce_s: float = 120.0

    def whole_s(self, max_tokens: int) -> float:
        """Return the timeout of an answer of *max_tokens*: first token, one stall, `SLOWEST_S` a token."""
        return self.first_token_s + self.stall_s + SLOWEST_S * max_tokens
