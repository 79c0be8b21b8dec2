"""Responses of the OpenAI API, as vLLM writes them; `params` reads requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.verify.simulator.engine import Request, StreamDelta
from sparkwright.verify.simulator.model import Choice, text_of
from sparkwright.verify.simulator.params import CALLS, RequestParams
from sparkwright.verify.simulator.settings import Settings

_END_OF_THOUGHTS = "\n</think>\n\n"


def usage_of(request: Request, *, more: int = 0, details: bool = True) -> dict[str, Any]:
    """Return the count of a request's tokens so far, with as many *more* as a fault adds.

    Only the last count of a stream has *details*, the tokens from the prefix cache.
    """
    output = request.output_tokens + more
    usage: dict[str, Any] = {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + output,
        "completion_tokens": output,
    }
    if details:
        usage["prompt_tokens_details"] = {"cached_tokens": max(0, request.cached)}
    return usage


@dataclass
class ResponseBuilder:
    """Builds the events or the body of one response.

    Attributes:
        ids: send token ids if they are requested.
        delta_kind: ``content``, ``reasoning``, ``reasoning_content`` or ``tool``: the field of a chat's text.
    """

    params: RequestParams
    request: Request
    settings: Settings
    created: int
    ids: bool = True
    delta_kind: str = "content"
    _sent: int = field(default=0, init=False)
    _call: int = field(default=0, init=False)  # that is generated
    _named: int = field(default=-1, init=False)  # that was sent with its name last

    def event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return one event."""
        event: dict[str, Any] = {
            "id": self.request.name,
            "object": "chat.completion.chunk" if self.params.chat else "text_completion",
            "created": self.created,
            "model": self.settings.model,
            "choices": choices,
        }
        if usage is not None:
            event["usage"] = usage
        return event

    def opening(self) -> list[dict[str, Any]]:
        """Return the events before the first token: a chat's role."""
        if not self.params.chat:
            return []
        role = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": role, "logprobs": None, "finish_reason": None}
        event = self.event([choice], self._running())
        if self._with_ids:
            event["prompt_token_ids"] = list(self.params.tokens)
        return [event]

    def delta(self, delta: StreamDelta) -> dict[str, Any]:
        """Return the event of one step's tokens."""
        choice = self._choice(delta.choices, delta.finish, "delta", {})
        if self.params.chat and not delta.finish:
            del choice["stop_reason"]
        self._sent += len(delta.choices)
        return self.event([choice], self._running())

    def closing(self, *, more: int = 0) -> dict[str, Any]:
        """Return the last event: the count."""
        return self.event([], usage_of(self.request, more=more))

    def whole(self, deltas: Sequence[StreamDelta], *, more: int = 0) -> dict[str, Any]:
        """Return the response in one body, for a request without streaming."""
        choices = [choice for delta in deltas for choice in delta.choices]
        role = {"role": "assistant", "content": None}
        one = self._choice(choices, deltas[-1].finish, "message", role)
        body = self.event([one], usage_of(self.request, more=more))
        body["object"] = "chat.completion" if self.params.chat else "text_completion"
        return body

    # Fields ----------------------------------------------------------------------------------------------

    def _choice(
        self, choices: Sequence[Choice], finish: str, field: str, role: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the choice of an event or a body; a chat's text is in *field*, beside its *role*."""
        tokens = [choice.token for choice in choices]
        chat, ids = self.params.chat, self._with_ids
        text = {field: {**role, **self._message(tokens)}} if chat else {"text": self._text(tokens)}
        first = (
            {} if chat else {"prompt_token_ids": list(self.params.tokens) if ids and not self._sent else None}
        )
        return {
            "index": 0,
            **text,
            "logprobs": self._logprobs(choices),
            "finish_reason": self._finish(finish),
            "stop_reason": None,
            **first,
            "token_ids": tokens if ids else None,
        }

    @property
    def _with_ids(self) -> bool:
        return self.ids and self.params.token_ids

    def _running(self) -> dict[str, Any] | None:
        if not (self.ids and self.params.continuous):
            return None
        usage = usage_of(self.request, details=False)
        usage["completion_tokens"] = self._sent
        usage["total_tokens"] = usage["prompt_tokens"] + self._sent
        return usage

    def _text(self, tokens: Sequence[int]) -> str:
        text = text_of(tokens)
        if "replacement-characters" not in self.settings.faults:
            return text
        # As detokenized byte by byte.
        return "".join(char if char.isascii() else "\ufffd" * len(char.encode()) for char in text)

    def _message(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Return the fields of a chat's text: reasoning first, the rest of *tokens* after it."""
        if self.params.calls:
            return {"tool_calls": self._calls(self._text(tokens))}
        kind = self.delta_kind
        if kind == "tool":
            call: dict[str, Any] = {"index": 0, "function": {"arguments": self._text(tokens)}}
            if not self._sent:
                call |= {"id": f"chatcmpl-tool-{self.request.number}", "type": "function"}
                call["function"]["name"] = "answer"
            return {"tool_calls": [call]}
        thoughts = min(len(tokens), max(0, self.request.thoughts - self._sent))
        if self.request.thoughts and "answer-in-reasoning" in self.settings.faults:
            thoughts = len(tokens)
        if not thoughts or kind != "content":
            return {kind: self._text(tokens)}
        faults, found = self.settings.faults, {"reasoning": self._text(tokens[:thoughts])}
        if "reasoning-lost" in faults:
            found = {"content": ""}
        elif "thoughts-unparsed" in faults:
            ended = self._sent + thoughts >= self.request.thoughts
            found = {"content": found["reasoning"] + (_END_OF_THOUGHTS if ended else "")}
        if thoughts < len(tokens):
            rest = self._text(tokens[thoughts:])
            found["content"] = found.get("content", "") + rest
        return found

    def _calls(self, text: str) -> list[dict[str, Any]]:
        """Return the parts of calls in the next piece of *text*, as a tool parser streams them.

        A call's name comes with its first part.
        """
        found: list[dict[str, Any]] = []
        for number, piece in enumerate(text.split(CALLS)):
            self._call += number > 0
            if self._call >= len(self.params.calls):
                break
            function = {"arguments": piece}
            call: dict[str, Any] = {"index": self._call, "function": function}
            if self._call > self._named:
                self._named = self._call
                call |= {"id": f"chatcmpl-tool-{self.request.number}-{self._call}", "type": "function"}
                function["name"] = self.params.calls[self._call][0]
            elif not piece:
                continue
            found.append(call)
        return found

    def _finish(self, reason: str) -> str | None:
        if reason == "stop" and (self.delta_kind == "tool" or self.params.calls):
            return "tool_calls"
        return reason or None

    def _logprobs(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        if self.params.logprobs < 0:
            return None
        return self._chat_logprobs(choices) if self.params.chat else self._completion_logprobs(choices)

    def _token(self, token: int) -> str:
        return f"token_id:{token}" if self.params.ids_as_tokens else text_of([token])

    def _tops(self, choice: Choice) -> list[tuple[int, float]]:
        """Return the alternatives to send; the chosen one is among them, whatever its rank."""
        tops = list(choice.top[: self.params.logprobs])
        if all(token != choice.token for token, _ in tops):
            tops.append((choice.token, choice.logprob))
        return tops

    def _completion_logprobs(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            "token_logprobs": [choice.logprob for choice in choices],
            "tokens": [self._token(choice.token) for choice in choices],
            "top_logprobs": [
                {self._token(token): logprob for token, logprob in self._tops(choice)} for choice in choices
            ],
        }

    def _chat_logprobs(self, choices: Sequence[Choice]) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = self._token(token)
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        return {
            "content": [
                entry(choice.token, choice.logprob)
                | {
                    "top_logprobs": [
                        entry(token, logprob) for token, logprob in choice.top[: self.params.logprobs]
                    ]
                }
                for choice in choices
            ]
        }
