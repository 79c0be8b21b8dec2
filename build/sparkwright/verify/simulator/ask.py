"""What a client asks for: the body of a request, read as vLLM reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkwright.verify.simulator.language import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkwright.verify.simulator.settings import Settings

_COMPLETION_TOKENS = 16  # what OpenAI's API generates when it is not told


class AskError(Exception):
    """A request that cannot be served.

    Args:
        status: of the response.
        kind: the error's type, as vLLM names it.
        message: what is wrong.
        parameter: which field of the body.
    """

    def __init__(self, status: int, kind: str, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.parameter = status, kind, message, parameter

    def body(self) -> dict[str, Any]:
        """The response's JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.parameter, "code": self.status}
        return {"error": error}


@dataclass(frozen=True)
class Ask:
    """One request for text.

    Attributes:
        chat: asked at the chat endpoint.
        model: the name that it gave.
        text: the prompt, or all messages in the chat template.
        tokens: the same as tokens.
        max_tokens: the longest output.
        stream: in events, or in one answer.
        usage: a last event with the count.
        continuous: a count in each event.
        token_ids: ids beside the text.
        logprobs: alternatives for each token; -1 asks for no log-probabilities.
        ids_as_tokens: write tokens as ``token_id:N`` there.
        ignore_eos: go on after the end.
        temperature: of sampling.
        seed: of sampling.
        named: the request id that the client gave.
    """

    chat: bool
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


def template(messages: list[Mapping[str, Any]]) -> str:
    """Messages as one text, in a chat template such as Qwen's."""
    parts = [f"<|im_start|>{each.get('role', 'user')}\n{_content(each)}<|im_end|>\n" for each in messages]
    return "".join([*parts, "<|im_start|>assistant\n"])


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def read_ask(body: Mapping[str, Any], settings: Settings, *, chat: bool, named: str = "") -> Ask:
    """Read the *body* of a request.

    Raises:
        AskError: another model is wanted, the prompt is missing or too long, or a field has the wrong type.
    """
    model = body.get("model") or settings.model
    if model != settings.model:
        raise AskError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    try:
        return _read(body, settings, model, named, chat=chat)
    except (TypeError, ValueError, AttributeError) as error:
        raise AskError(400, "BadRequestError", f"The body could not be read: {error}") from error


def _read(body: Mapping[str, Any], settings: Settings, model: str, named: str, *, chat: bool) -> Ask:
    text, tokens = _prompt(body, chat=chat)
    room = settings.max_model_len - len(tokens)
    wanted = body.get("max_tokens") or body.get("max_completion_tokens")
    most = int(wanted) if wanted else (room if chat else _COMPLETION_TOKENS)
    if room < most or room < 1:
        raise AskError(
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
        raise AskError(400, "BadRequestError", f"temperature must be non-negative, got {temperature}.")
    return Ask(
        chat=chat,
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
    )


def _logprobs(body: Mapping[str, Any], *, chat: bool) -> int:
    wanted = body.get("logprobs")
    if not chat:
        return -1 if wanted is None else int(wanted)
    return int(body.get("top_logprobs") or 0) if wanted else -1


def _prompt(body: Mapping[str, Any], *, chat: bool) -> tuple[str, tuple[int, ...]]:
    if chat:
        messages = body.get("messages")
        if not messages:
            raise AskError(400, "BadRequestError", "messages: Field required", "messages")
        text = template(messages)
        return text, tuple(encode(text))
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt, tuple(encode(prompt))
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return "", tuple(prompt)
    raise AskError(400, "BadRequestError", "prompt: one text or one list of token ids is required", "prompt")
