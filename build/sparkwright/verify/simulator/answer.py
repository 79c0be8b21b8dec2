"""What a server answers: events and bodies, as the two dialects write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.verify.simulator.language import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkwright.verify.simulator.ask import Ask
    from sparkwright.verify.simulator.language import Choice
    from sparkwright.verify.simulator.request import Request, StreamDelta
    from sparkwright.verify.simulator.settings import Settings

_THOUGHTS = 24  # tokens of reasoning where there is a parser for it


def usage_of(request: Request, settings: Settings, *, more: int = 0, details: bool = True) -> dict[str, Any]:
    """The count of a request's tokens so far.

    Args:
        request: whose.
        settings: of the server.
        more: tokens that a fault adds.
        details: whether to say how many came from the prefix cache; only the last count of a stream does.
    """
    output = request.output_tokens + more
    usage: dict[str, Any] = {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + output,
        "completion_tokens": output,
    }
    if details and settings.prompt_details:
        usage["prompt_tokens_details"] = {"cached_tokens": max(0, request.cached)}
    return usage


@dataclass
class Answer:
    """Writes the events of one request.

    Attributes:
        ask: what was asked.
        request: what the engine makes of it.
        settings: of the server.
        created: when, seconds since 1970.
        ids: whether token ids are sent when they are asked for.
        delta_kind: ``content``, ``reasoning``, ``reasoning_content`` or ``tool``: where a chat's text goes.
    """

    ask: Ask
    request: Request
    settings: Settings
    created: int
    ids: bool = True
    delta_kind: str = "content"
    _offset: int = field(default=0, init=False)
    _sent: int = field(default=0, init=False)

    def event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        """One event."""
        event: dict[str, Any] = {
            "id": self.request.name,
            "object": "chat.completion.chunk" if self.ask.chat else "text_completion",
            "created": self.created,
            "model": self.settings.model,
            "choices": choices,
        }
        if usage is not None:
            event["usage"] = usage
        return event

    def opening(self) -> list[dict[str, Any]]:
        """What comes before the first token: a chat's role."""
        if not self.ask.chat:
            return []
        event = self.event(
            [
                {
                    "index": 0,
                    "delta": {"role": "assistant", "content": ""},
                    "logprobs": None,
                    "finish_reason": None,
                }
            ],
            self._running(),
        )
        if self._with_ids:
            event["prompt_token_ids"] = list(self.ask.tokens)
        return [event]

    def delta(self, delta: StreamDelta) -> dict[str, Any]:
        """The event of one step's tokens."""
        tokens = [choice.token for choice in delta.choices]
        text = text_of(tokens)
        choice: dict[str, Any] = {"index": 0}
        if self.ask.chat:
            choice["delta"] = self._message(text)
        else:
            choice["text"] = text
        choice["logprobs"] = self._logprobs(delta.choices)
        choice["finish_reason"] = self._finish(delta.finish)
        if delta.finish or not self.ask.chat:
            choice["stop_reason"] = None
        if not self.ask.chat:
            first = self._sent == 0 and self._with_ids
            choice["prompt_token_ids"] = list(self.ask.tokens) if first else None
        choice["token_ids"] = tokens if self._with_ids else None
        self._sent += len(tokens)
        self._offset += len(text)
        return self.event([choice], self._running())

    def closing(self, *, more: int = 0) -> dict[str, Any]:
        """The last event: the count, and in newer versions how the drafts did."""
        event = self.event([], usage_of(self.request, self.settings, more=more))
        metrics = self._metrics()
        if metrics:
            event["metrics"] = metrics
        return event

    def whole(self, deltas: Sequence[StreamDelta], *, more: int = 0) -> dict[str, Any]:
        """The answer in one piece, for a client that asked for no stream."""
        choices = [choice for delta in deltas for choice in delta.choices]
        tokens = [choice.token for choice in choices]
        text = text_of(tokens)
        one: dict[str, Any] = {"index": 0, "logprobs": self._logprobs(choices)}
        if self.ask.chat:
            one["message"] = {"role": "assistant", "content": None, **self._message(text)}
        else:
            one["text"] = text
            one["prompt_token_ids"] = list(self.ask.tokens) if self._with_ids else None
        one["finish_reason"] = self._finish(deltas[-1].finish)
        one["stop_reason"] = None
        one["token_ids"] = tokens if self._with_ids else None
        body = self.event([one], usage_of(self.request, self.settings, more=more))
        body["object"] = "chat.completion" if self.ask.chat else "text_completion"
        metrics = self._metrics()
        if metrics:
            body["metrics"] = metrics
        return body

    # Parts ----------------------------------------------------------------------------------------------

    @property
    def _with_ids(self) -> bool:
        return self.ids and self.ask.token_ids

    def _running(self) -> dict[str, Any] | None:
        if not (self.ids and self.ask.continuous):
            return None
        usage = usage_of(self.request, self.settings, details=False)
        usage["completion_tokens"] = self._sent
        usage["total_tokens"] = usage["prompt_tokens"] + self._sent
        return usage

    def _message(self, text: str) -> dict[str, Any]:
        kind = self.delta_kind
        if kind == "content" and self.settings.reasoning and self._sent < _THOUGHTS:
            kind = "reasoning"
        if kind == "tool":
            call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
            if not self._sent:
                call |= {"id": f"chatcmpl-tool-{self.request.number}", "type": "function"}
                call["function"]["name"] = "answer"
            return {"tool_calls": [call]}
        return {kind: text}

    def _finish(self, reason: str) -> str | None:
        if reason == "stop" and self.delta_kind == "tool":
            return "tool_calls"
        return reason or None

    def _logprobs(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        if self.ask.logprobs < 0:
            return None
        return self._chat_logprobs(choices) if self.ask.chat else self._completion_logprobs(choices)

    def _token(self, token: int) -> str:
        return f"token_id:{token}" if self.ask.ids_as_tokens else text_of([token])

    def _tops(self, choice: Choice) -> list[tuple[int, float]]:
        """The alternatives that are sent; the chosen one is among them, whatever its rank."""
        tops = list(choice.top[: self.ask.logprobs])
        if all(token != choice.token for token, _ in tops):
            tops.append((choice.token, choice.logprob))
        return tops

    def _completion_logprobs(self, choices: Sequence[Choice]) -> dict[str, Any]:
        offsets, offset = [], self._offset
        for choice in choices:
            offsets.append(offset)
            offset += len(text_of([choice.token]))
        return {
            "text_offset": offsets,
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
                        entry(token, logprob) for token, logprob in choice.top[: self.ask.logprobs]
                    ]
                }
                for choice in choices
            ]
        }

    def _metrics(self) -> dict[str, Any] | None:
        """Acceptance of this one request (vLLM 0.33)."""
        settings, steps = self.settings, self.request.steps
        if settings.dialect == "0.24" or not (settings.spec_metrics and settings.k and steps):
            return None
        accepted = sum(steps)
        speculative: dict[str, Any] = {
            "mean_acceptance_length": 1 + accepted / len(steps),
            "draft_acceptance_rate": accepted / (settings.k * len(steps)),
            "acceptance_histogram": [steps.count(count) for count in range(settings.k + 1)],
            "num_spec_steps": len(steps),
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": settings.k * len(steps),
            "num_spec_tokens": settings.k,
        }
        if settings.spec_metrics == "detailed":
            speculative["per_step_accepted"] = list(steps)
            speculative["per_step_drafted"] = [settings.k] * len(steps)
        return {"speculative_decoding": speculative}
