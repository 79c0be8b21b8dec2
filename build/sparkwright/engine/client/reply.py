"""The content of one stream of chunks: tokens, text, counts and its end, as vLLM 0.20 to 0.33 write them.

A chunk has output when it has token ids, when it has text, reasoning or tool calls, or when the usage that
a server may repeat in each chunk has grown. A chunk with a role alone, or with empty content and nothing
else, has none: it must not stop the clock of the first token.
"""

from __future__ import annotations

import contextlib
from itertools import zip_longest
from typing import Any, Literal

import msgspec

from sparkwright.base.config import convert, json_decoder
from sparkwright.engine.client.stream import straightened
from sparkwright.engine.observations import Chunk, FailureKind, RequestFailure, TokenLogprobs, ToolCall

_EXCERPT = 200


class ReplyError(Exception):
    """The stream contains something for which the request cannot count."""

    def __init__(self, kind: FailureKind, detail: str, status: int = 0) -> None:
        super().__init__(detail)
        self.failure = RequestFailure(kind=kind, detail=detail, status=status)


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Alternative(msgspec.Struct):
    token: str
    logprob: float | None = None


class _ChatToken(msgspec.Struct):
    token: str
    logprob: float | None = None
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(msgspec.Struct):
    """Both forms: ``content`` is that of chat, the other lists are parallel."""

    content: list[_ChatToken] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Message(msgspec.Struct):
    id: str = ""
    object: str = ""
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    message: Any = None


_DECODER = json_decoder(_Message)
_Kind = Literal["content", "reasoning", "tool"]
_Problem = tuple[FailureKind, str]


class Reply:
    """The content of a stream so far.

    Attributes:
        request: the server's id of the request.
        chunks: events with output, in order.
        finish_reason: as the server gave it, or empty.
        token_ids: token ids received.
        logprobs: log-probabilities received, by token.
        cached_tokens: from usage, or -1.
        responded: time at which the first event with a choice came, also one without output; 0 before.
        odd: fields of another form than OpenAI's that were read all the same.
        unread: the last message that says nothing of what is known here; empty if there was none.
    """

    def __init__(self) -> None:
        self.request = ""
        self.chunks: list[Chunk] = []
        self.done = False
        self.finish_reason = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_tokens = 0
        self.cached_tokens = -1
        self.responded = 0
        self.odd: set[str] = set()
        self.unread = ""
        self._usage: int | None = None
        self._running_usage = False  # whether usage comes with each chunk
        self._seen_choice = self._seen_ids = False
        self._unnumbered = 0  # chunks with text, but without token ids
        self._kind: _Kind = "content"
        self._texts: dict[_Kind, list[str]] = {"reasoning": [], "content": [], "tool": []}
        self._calls: dict[int, tuple[list[str], list[str]]] = {}  # names and arguments by index

    @property
    def text(self) -> str:
        """Return the generated text: reasoning, then content, then arguments of tool calls."""
        return "".join(part for parts in self._texts.values() for part in parts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the calls of tools, in the order of their indices."""
        return tuple(
            ToolCall(name="".join(names), arguments="".join(arguments))
            for _, (names, arguments) in sorted(self._calls.items())
        )

    def chars(self, kind: Literal["content", "reasoning", "tool"]) -> int:
        """Return the number of characters of this *kind* in `text`."""
        return sum(map(len, self._texts[kind]))

    @property
    def counted_by(self) -> Literal["usage", "ids", ""]:
        """Return the source of `output_tokens`; token ids count only where no chunk lacks them."""
        if self._usage is not None:
            return "usage"
        return "ids" if self._seen_ids and not self._unnumbered else ""

    @property
    def output_tokens(self) -> int:
        """Return the number of generated tokens that the server reports; never estimated from text."""
        if self._usage is not None:
            return self._usage
        return len(self.token_ids) if self.counted_by else 0

    def take(self, data: bytes, at: int, name: bytes = b"") -> None:
        """Read one event's *data*, whose last byte arrived at *at* (ns); nothing counts after ``[DONE]``.

        Raises:
            ReplyError: it is no chunk, or reports an error.
        """
        if data.strip() == b"[DONE]" and not self.done:
            self.done = True
            self.odd |= {"[DONE] has blanks around it"} if data != b"[DONE]" else set()
        if self.done:
            return
        if name == b"error":
            raise _in_band(_read_error(data))
        message = self._decoded(data)
        if message.error is not None or message.object == "error":
            raise _in_band(message.error if message.error is not None else message.message)
        if not message.choices and message.usage is None:
            self.unread = _excerpt(data)
        self.request = self.request or message.id
        if message.choices:
            self.responded = self.responded or at
        grown = self._take_usage(message.usage, with_choice=bool(message.choices))
        for choice in message.choices:
            self._take_choice(choice, grown, at)

    def _decoded(self, data: bytes) -> _Message:
        """Return the message in *data*; what is of another form, and plain, is read and noted.

        Raises:
            ReplyError: it is no JSON, or no chunk.
        """
        with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            return _DECODER.decode(data)
        try:
            message, odd = straightened(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ReplyError(FailureKind.NOT_JSON, f"{error}: {_excerpt(data)}") from None
        try:
            read = convert(message, _Message)
        except msgspec.ValidationError as error:
            raise ReplyError(FailureKind.FORM, f"{error}: {_excerpt(data)}") from None
        self.odd |= odd
        return read

    def _take_usage(self, usage: _Usage | None, *, with_choice: bool) -> int:
        """Store *usage*; returns the tokens by which it has grown, if it comes with each chunk."""
        if with_choice and not self._seen_choice:
            self._seen_choice, self._running_usage = True, usage is not None
        if usage is None:
            return 0
        before = self._usage or 0
        self.prompt_tokens = usage.prompt_tokens or self.prompt_tokens
        if usage.completion_tokens is not None:
            self._usage = usage.completion_tokens
        if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        return (self._usage or 0) - before if self._running_usage else 0

    def _take_choice(self, choice: _Choice, grown: int, at: int) -> None:
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
            if choice.finish_reason == "error":
                raise ReplyError(FailureKind.IN_BAND, "the finish reason is 'error'")
        has_text = self._take_text(choice)
        if choice.logprobs is not None:
            self.logprobs += _logprobs(choice.logprobs)
        if choice.token_ids is not None:
            self._seen_ids = True
            self.token_ids += choice.token_ids
            tokens = len(choice.token_ids)
        else:
            self._unnumbered += has_text
            tokens = max(grown, 0)
        if tokens or has_text:
            self.chunks.append(Chunk(at=at, tokens=tokens, kind=self._kind))

    def _take_text(self, choice: _Choice) -> bool:
        """Store the text of *choice*; returns whether there is any."""
        texts: list[tuple[_Kind, str]] = [("content", choice.text or "")]
        if (delta := choice.delta) is not None:
            texts = [
                ("tool", "".join(map(self._take_call, delta.tool_calls or ()))),
                ("reasoning", delta.reasoning or delta.reasoning_content or ""),
                ("content", delta.content or ""),
            ]
        has_text = False
        for kind, text in texts:
            if text:
                self._texts[kind].append(text)
                self._kind, has_text = kind, True
        return has_text

    def _take_call(self, call: _ToolCall) -> str:
        """Store a part of a tool call; returns its text. Servers that give no index begin with a name."""
        function = call.function
        if function is None:
            return ""
        index = call.index
        if index is None:
            index = max(self._calls, default=-1) + bool(function.name)
        names, arguments = self._calls.setdefault(index, ([], []))
        names.append(function.name or "")
        arguments.append(function.arguments or "")
        return names[-1] + arguments[-1]

    def problem(self, *, max_tokens: int, natural_stop: bool) -> RequestFailure | None:
        """Return the reason for which a stream that has ended does not count, if any."""
        found = self._end_problem() or self._count_problem() or self._length_problem(max_tokens, natural_stop)
        return None if found is None else RequestFailure(kind=found[0], detail=found[1])

    def _end_problem(self) -> _Problem | None:
        told = f"; it also said {self.unread}" if self.unread else ""
        if not self.done:
            ended = f"the stream ended without [DONE] after {len(self.chunks)} chunks"
            return FailureKind.TRUNCATED, ended + told
        if not self.finish_reason:
            return FailureKind.NO_FINISH, f"[DONE] came without a finish reason{told}"
        return None

    def _count_problem(self) -> _Problem | None:
        if not self.counted_by:
            return FailureKind.NO_COUNT, "neither usage nor every chunk's token ids came"
        if self._seen_ids and self._usage is not None and self._usage != len(self.token_ids):
            return FailureKind.COUNT, f"usage says {self._usage} tokens, {len(self.token_ids)} ids came"
        if self.output_tokens and not self.chunks:
            return FailureKind.NO_COUNT, f"usage says {self.output_tokens} tokens, no chunk brought any"
        if self.chunks and not self.output_tokens:
            return FailureKind.COUNT, f"usage says 0 tokens, {len(self.chunks)} chunks brought output"
        return None

    def _length_problem(self, max_tokens: int, natural_stop: bool) -> _Problem | None:  # noqa: FBT001
        count, reason = self.output_tokens, self.finish_reason
        stopped = natural_stop and reason not in {"length", "abort"} and 1 <= count <= max_tokens
        if stopped or (count == max_tokens and reason == "length"):
            return None
        requested = f"up to {max_tokens}" if natural_stop else f"{max_tokens}"
        return (
            FailureKind.LENGTH,
            f"{count} tokens came and finish reason {reason!r}, requested were {requested}",
        )


def _excerpt(data: bytes) -> str:
    """Return the beginning of *data* as text, on one line."""
    return " ".join(data[:_EXCERPT].decode(errors="replace").split())


def _read_error(data: bytes) -> Any:
    """Return what an event called ``error`` says: its JSON, or its text."""
    try:
        said = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _excerpt(data)
    return said["error"] if isinstance(said, dict) and said.get("error") else said


def _in_band(error: Any) -> ReplyError:
    if not isinstance(error, dict):
        return ReplyError(FailureKind.IN_BAND, str(error)[:_EXCERPT])
    parts = [str(error[name]) for name in ("type", "message", "detail") if error.get(name)]
    code = error.get("code")
    detail = ": ".join(parts) or str(error)
    return ReplyError(FailureKind.IN_BAND, detail[:_EXCERPT], code if isinstance(code, int) else 0)


def _logprobs(given: _Logprobs) -> list[TokenLogprobs]:
    if given.content is not None:
        return [
            TokenLogprobs(
                token=token.token,
                logprob=_number(token.logprob),
                top={other.token: _number(other.logprob) for other in token.top_logprobs or ()},
            )
            for token in given.content
        ]
    rows = zip_longest(given.tokens or (), given.token_logprobs or (), given.top_logprobs or ())
    return [
        TokenLogprobs(
            token=token or "",
            logprob=_number(logprob),
            top={name: _number(value) for name, value in (top or {}).items()},
        )
        for token, logprob, top in rows
    ]


def _number(logprob: float | None) -> float:
    """Return a log-probability; NaN, which JSON writes as null, stays NaN."""
    return float("nan") if logprob is None else logprob
