"""Requests and responses of the OpenAI API, as the two vLLM releases read and write them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.verify.simulator.chat import CallWriter, broken, content_of, plan_calls, schema_of, template
from sparkwright.verify.simulator.language import encode, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkwright.verify.simulator.engine import Request, StreamDelta
    from sparkwright.verify.simulator.language import Choice
    from sparkwright.verify.simulator.settings import Settings

_COMPLETION_TOKENS = 16  # default of OpenAI's API


class ApiError(Exception):
    """A request that cannot be served.

    Args:
        status: status of the response.
        kind: the error's type, as vLLM names it.
        message: the error's message.
        parameter: the offending field of the body.
    """

    def __init__(self, status: int, kind: str, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.parameter = status, kind, message, parameter

    def body(self) -> dict[str, Any]:
        """Return the response's JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.parameter, "code": self.status}
        return {"error": error}


@dataclass(frozen=True)
class RequestParams:
    """The parameters of one request for text.

    Attributes:
        chat: sent to the chat endpoint.
        thinking: the chat template lets the model think.
        model: the requested model name.
        text: the prompt, or all messages in the chat template.
        tokens: the same as tokens.
        max_tokens: the longest output.
        stream: respond with events rather than one body.
        usage: send a last event with the count.
        continuous: send a count in each event.
        token_ids: send ids beside the text.
        logprobs: alternatives for each token; -1 for no log-probabilities.
        ids_as_tokens: write tokens as ``token_id:N`` there.
        ignore_eos: continue after the end of sequence.
        temperature: sampling temperature.
        seed: sampling seed.
        named: the request id that the client gave.
        question: text of a chat's last message.
        schema: JSON schema that the answer must fit; empty for none.
        calls: names and arguments of the tool calls that answer it.
    """

    chat: bool
    thinking: bool
    model: str
    text: str
    tokens: tuple[int, ...]
    max_tokens: int
    stream: bool
    usage: bool
    continuous: bool
    token_ids: bool
    logprobs: int
    ids_as_tokens: bool
    ignore_eos: bool
    temperature: float
    seed: int
    named: str
    question: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[tuple[str, str], ...] = ()


def parse_params(
    body: Mapping[str, Any], settings: Settings, *, chat: bool, named: str = ""
) -> RequestParams:
    """Parse the *body* of a request.

    Raises:
        ApiError: the model is another, the prompt is missing or too long, or a field has the wrong type.
    """
    model = body.get("model") or settings.model
    if model != settings.model:
        raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    try:
        return _read(body, settings, model, named, chat=chat)
    except (TypeError, ValueError, AttributeError) as error:
        raise ApiError(400, "BadRequestError", f"The body could not be read: {error}") from error


def _read(
    body: Mapping[str, Any], settings: Settings, model: str, named: str, *, chat: bool
) -> RequestParams:
    text, tokens = _prompt(body, settings, chat=chat)
    question = content_of(body["messages"][-1]) if chat else ""
    left = settings.max_model_len - len(tokens)
    requested = body.get("max_tokens") or body.get("max_completion_tokens")
    most = int(requested) if requested else (left if chat else _COMPLETION_TOKENS)
    if left < most or left < 1:
        raise ApiError(
            400,
            "BadRequestError",
            f"This model's maximum context length is {settings.max_model_len} tokens. However, you requested "
            f"{most} output tokens and your prompt contains at least {len(tokens)} input tokens, for a total "
            f"of at least {most + len(tokens)} tokens. Please reduce the length of the input prompt or the "
            "number of requested output tokens.",
            "input_tokens",
        )
    options = body.get("stream_options") or {}
    usage = bool(options.get("include_usage"))
    temperature = body.get("temperature")
    seed = body.get("seed")
    temperature = 1.0 if temperature is None else float(temperature)
    if not math.isfinite(temperature) or temperature < 0:
        raise ApiError(400, "BadRequestError", f"temperature must be non-negative, got {temperature}.")
    return RequestParams(
        chat=chat,
        thinking=bool((body.get("chat_template_kwargs") or {}).get("enable_thinking", True)),
        model=model,
        text=text,
        tokens=tokens,
        max_tokens=max(1, most),
        stream=bool(body.get("stream")),
        usage=usage,
        continuous=usage and bool(options.get("continuous_usage_stats")),
        token_ids=bool(body.get("return_token_ids")),
        logprobs=_logprobs(body, chat=chat),
        ids_as_tokens=bool(body.get("return_tokens_as_token_ids")),
        ignore_eos=bool(body.get("ignore_eos")),
        temperature=temperature,
        seed=0 if seed is None else int(seed),
        named=named,
        question=question,
        schema=schema_of(body) if chat else {},
        calls=plan_calls(_tools(body, settings), question, settings.faults) if chat else (),
    )


def _tools(body: Mapping[str, Any], settings: Settings) -> list[Mapping[str, Any]]:
    """Return the tools that the model may call.

    Raises:
        ApiError: there are some, and the server has no parser for calls.
    """
    tools = body.get("tools") or []
    if not tools or body.get("tool_choice", "auto") == "none":
        return []
    if not settings.tool_parser:
        raise ApiError(400, "BadRequestError", "tool_choice auto needs a tool call parser, and none is set")
    return list(tools) if settings.tool_template else []


def _logprobs(body: Mapping[str, Any], *, chat: bool) -> int:
    requested = body.get("logprobs")
    if not chat:
        return -1 if requested is None else int(requested)
    return int(body.get("top_logprobs") or 0) if requested else -1


def _prompt(body: Mapping[str, Any], settings: Settings, *, chat: bool) -> tuple[str, tuple[int, ...]]:
    if chat:
        messages = body.get("messages")
        if not messages:
            raise ApiError(400, "BadRequestError", "messages: Field required", "messages")
        text = template(messages[-1:] if "history-dropped" in settings.faults else messages)
        if settings.tool_template and (tools := body.get("tools")):
            text = f"{json.dumps(tools)}\n{text}"  # the template describes them to the model
        return text, tuple(encode(text))
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt, tuple(encode(prompt))
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return "", tuple(prompt)
    raise ApiError(400, "BadRequestError", "prompt: one text or one list of token ids is required", "prompt")


_THOUGHTS = 24  # tokens of reasoning with a reasoning parser


def usage_of(request: Request, settings: Settings, *, more: int = 0, details: bool = True) -> dict[str, Any]:
    """Return the count of a request's tokens so far.

    Args:
        request: the request.
        settings: the server's settings.
        more: tokens that a fault adds.
        details: include the tokens from the prefix cache; only the last count of a stream does.
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
class ResponseBuilder:
    """Builds the events or the body of one response.

    Attributes:
        params: the request's parameters.
        request: the engine's request.
        settings: the server's settings.
        created: creation time, seconds since 1970.
        ids: send token ids if they are requested.
        delta_kind: ``content``, ``reasoning``, ``reasoning_content`` or ``tool``: the field of a chat's text.
    """

    params: RequestParams
    request: Request
    settings: Settings
    created: int
    ids: bool = True
    delta_kind: str = "content"
    _offset: int = field(default=0, init=False)
    _sent: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._writer = CallWriter(self.params.calls, f"chatcmpl-tool-{self.request.number}")

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
            event["prompt_token_ids"] = list(self.params.tokens)
        return [event]

    def delta(self, delta: StreamDelta) -> dict[str, Any]:
        """Return the event of one step's tokens."""
        tokens = [choice.token for choice in delta.choices]
        text = self._text(tokens)
        choice: dict[str, Any] = {"index": 0}
        if self.params.chat:
            choice["delta"] = self._message(text)
        else:
            choice["text"] = text
        choice["logprobs"] = self._logprobs(delta.choices)
        choice["finish_reason"] = self._finish(delta.finish)
        if delta.finish or not self.params.chat:
            choice["stop_reason"] = None
        if not self.params.chat:
            first = self._sent == 0 and self._with_ids
            choice["prompt_token_ids"] = list(self.params.tokens) if first else None
        choice["token_ids"] = tokens if self._with_ids else None
        self._sent += len(tokens)
        self._offset += len(text)
        return self.event([choice], self._running())

    def closing(self, *, more: int = 0) -> dict[str, Any]:
        """Return the last event: the count."""
        return self.event([], usage_of(self.request, self.settings, more=more))

    def whole(self, deltas: Sequence[StreamDelta], *, more: int = 0) -> dict[str, Any]:
        """Return the response in one body, for a request without streaming."""
        choices = [choice for delta in deltas for choice in delta.choices]
        tokens = [choice.token for choice in choices]
        text = self._text(tokens)
        one: dict[str, Any] = {"index": 0, "logprobs": self._logprobs(choices)}
        if self.params.chat:
            one["message"] = {"role": "assistant", "content": None, **self._message(text)}
        else:
            one["text"] = text
            one["prompt_token_ids"] = list(self.params.tokens) if self._with_ids else None
        one["finish_reason"] = self._finish(deltas[-1].finish)
        one["stop_reason"] = None
        one["token_ids"] = tokens if self._with_ids else None
        body = self.event([one], usage_of(self.request, self.settings, more=more))
        body["object"] = "chat.completion" if self.params.chat else "text_completion"
        return body

    # Fields ----------------------------------------------------------------------------------------------

    @property
    def _with_ids(self) -> bool:
        return self.ids and self.params.token_ids

    def _running(self) -> dict[str, Any] | None:
        if not (self.ids and self.params.continuous):
            return None
        usage = usage_of(self.request, self.settings, details=False)
        usage["completion_tokens"] = self._sent
        usage["total_tokens"] = usage["prompt_tokens"] + self._sent
        return usage

    def _text(self, tokens: Sequence[int]) -> str:
        text = text_of(tokens)
        return broken(text) if "replacement-characters" in self.settings.faults else text

    def _message(self, text: str) -> dict[str, Any]:
        kind = self.delta_kind
        if self.params.calls:
            return {"tool_calls": self._writer.parts(text)}
        thinks = self.settings.reasoning and self.params.thinking
        if kind == "content" and thinks and self._sent < _THOUGHTS:
            kind = "reasoning"
        if kind == "tool":
            call: dict[str, Any] = {"index": 0, "function": {"arguments": text}}
            if not self._sent:
                call |= {"id": f"chatcmpl-tool-{self.request.number}", "type": "function"}
                call["function"]["name"] = "answer"
            return {"tool_calls": [call]}
        return {kind: text}

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
                        entry(token, logprob) for token, logprob in choice.top[: self.params.logprobs]
                    ]
                }
                for choice in choices
            ]
        }
