"""Requests of the OpenAI API, as the two vLLM releases read them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.verify.simulator.chat import content_of, images_of, plan_calls, schema_of, template
from sparkwright.verify.simulator.model import digest, encode
from sparkwright.verify.simulator.settings import Settings

_COMPLETION_TOKENS = 16  # default of OpenAI's API
_PATCHES = 64  # tokens of a picture
_KEPT_FREE = 256  # tokens of output that the fault of truncated prompts leaves place for


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
        named: the request id that the client gave.
        question: text of a chat's last message.
        schema: JSON schema that the answer must fit; empty for none.
        calls: names and arguments of the tool calls that answer it.
        images: pictures in a chat's last message, as ``data:`` addresses.
        thinking_budget: tokens of reasoning at the most; `None` for no limit.
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
    images: tuple[str, ...] = ()
    thinking_budget: int | None = None


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
    tokens = _truncated(tokens, settings)
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
        thinking=_thinks(body),
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
        calls=_calls(body, settings, question) if chat else (),
        images=_images(body, settings) if chat else (),
        thinking_budget=_budget(body, settings) if chat else None,
    )


def _thinks(body: Mapping[str, Any]) -> bool:
    return bool((body.get("chat_template_kwargs") or {}).get("enable_thinking", True))


def _budget(body: Mapping[str, Any], settings: Settings) -> int | None:
    """Return the most tokens of reasoning; `None` for no limit.

    Raises:
        ApiError: a limit is requested, and the server has no reasoning parser or a runner without limits.
    """
    budget = body.get("thinking_token_budget")
    if budget is None:
        return None
    if not settings.reasoning:
        raise ApiError(400, "BadRequestError", "thinking_token_budget needs --reasoning-parser")
    if settings.dialect == "0.24" and settings.runner == "v2":
        raise ApiError(400, "BadRequestError", "the V2 model runner has no thinking_token_budget")
    return None if "budget-ignored" in settings.faults else int(budget)


def _images(body: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """Return the pictures in the last message.

    Raises:
        ApiError: there are some, and the model takes none.
    """
    images = images_of(body["messages"][-1])
    if images and not settings.images:
        raise ApiError(400, "BadRequestError", f"{settings.model} is not a multimodal model")
    return images


def _truncated(tokens: tuple[int, ...], settings: Settings) -> tuple[int, ...]:
    """Return *tokens*; by a fault the end of those that the longest request has no place for."""
    if "truncates-prompts" not in settings.faults:
        return tokens
    return tokens[-(settings.max_model_len - _KEPT_FREE) :]


def _calls(body: Mapping[str, Any], settings: Settings, question: str) -> tuple[tuple[str, str], ...]:
    """Return names and arguments of the calls that answer *question*.

    Raises:
        ApiError: the model may call tools, and the server has no parser for calls.
    """
    choice = body.get("tool_choice") or "auto"
    if choice not in ("auto", "none"):
        if "tool-choice-ignored" in settings.faults:
            return ()
        named = choice["function"]["name"] if isinstance(choice, dict) else ""
        tools = [tool for tool in body.get("tools") or [] if named in {"", tool["function"]["name"]}]
        return plan_calls(tools, question, settings.faults, demanded=True)
    return plan_calls(_tools(body, settings), question, settings.faults, demanded=False)


def _tools(body: Mapping[str, Any], settings: Settings) -> list[Mapping[str, Any]]:
    """Return the tools that the model may call by itself.

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
        text = template(
            messages[-1:] if "history-dropped" in settings.faults else messages,
            thinking=_thinks(body) if settings.reasoning else None,
        )
        if settings.tool_template and (tools := body.get("tools")):
            text = f"{json.dumps(tools)}\n{text}"  # the template describes them to the model
        pictures = () if "images-dropped" in settings.faults else images_of(messages[-1])
        return text, (
            *encode(text),
            *(digest(each.encode()) >> 1 for each in pictures for _ in range(_PATCHES)),
        )
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt, tuple(encode(prompt))
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return "", tuple(prompt)
    raise ApiError(400, "BadRequestError", "prompt: one text or one list of token ids is required", "prompt")
