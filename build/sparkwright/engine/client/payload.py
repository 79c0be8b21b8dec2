"""The JSON of a request: prompt or messages, sampling, the features that it asks for, and pictures."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from sparkwright.engine.cell import REQUIRED, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint


def salted(prompt: Prompt, salt: str) -> str:
    """Return the text of *prompt*, made unique by *salt*.

    The salt comes first, so that no block of the prompt is found in the prefix cache. A shared prefix stays
    in front of it; where `Prompt.prefix` only names that prefix, the salt comes last.
    """
    if not salt:
        return prompt.text
    mark = f"[{salt}]"
    if not prompt.prefix:
        return f"{mark}\n{prompt.text}"
    if prompt.text.startswith(prompt.prefix):
        return f"{prompt.prefix}\n{mark}\n{prompt.text[len(prompt.prefix) :]}"
    return f"{prompt.text}\n{mark}"


def body_of(endpoint: Endpoint, prompt: Prompt, salt: str, load: Load, max_tokens: int) -> bytes:
    """Return the request as JSON, with vLLM's own fields.

    vLLM sends the count of tokens in its last chunk (``include_usage``) and the ids of tokens in each of them
    (``return_token_ids``), so usage in each chunk (``continuous_usage_stats``) would only be more to send.
    """
    body: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **_sampling(load),
    }
    if not load.natural_stop:
        body["ignore_eos"] = True
    if load.chat:
        body["messages"] = messages_of(prompt, salt)
        body |= _features(load) | _reasoning(load)
        if load.logprobs:
            body |= {"logprobs": True, "top_logprobs": load.logprobs}
    else:
        body["prompt"] = salted(prompt, salt)
        if load.logprobs:
            body["logprobs"] = load.logprobs
    if load.logprobs:
        body["return_tokens_as_token_ids"] = True  # two tokens may have the same text
    return msgspec.json.encode(body)


def _sampling(load: Load) -> dict[str, Any]:
    """Return the fields of sampling; none for a load that leaves it to the server."""
    fields: dict[str, Any] = {} if load.plain else {"temperature": load.temperature, "seed": load.seed}
    return fields if load.top_p is msgspec.UNSET else {**fields, "top_p": load.top_p}


def _reasoning(load: Load) -> dict[str, Any]:
    """Return vLLM's fields on reasoning; templates of models that do not think ignore the first."""
    fields: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": load.thinking}}
    return fields | ({"thinking_token_budget": load.thinking_budget} if load.thinking_budget else {})


def messages_of(prompt: Prompt, salt: str = "") -> list[dict[str, Any]]:
    """Return the messages of a chat; *salt* begins the first one of the user.

    A system message stays as it is: requests of one application share it, and so does their prefix cache.
    """
    if prompt.images:
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": url}} for url in prompt.images
        ]
        return [{"role": "user", "content": [*parts, {"type": "text", "text": salted(prompt, salt)}]}]
    if not prompt.history:
        return [{"role": "user", "content": salted(prompt, salt)}]
    messages: list[dict[str, Any]] = [
        {"role": message.role, "content": message.content} for message in prompt.history
    ]
    messages.append({"role": "user", "content": prompt.text})
    if salt:
        first = next(message for message in messages if message["role"] == "user")
        first["content"] = f"[{salt}]\n{first['content']}"
    return messages


def _features(load: Load) -> dict[str, Any]:
    """Return the fields of a chat that offer tools and demand structured output."""
    fields: dict[str, Any] = {}
    if load.tools:
        functions = [msgspec.to_builtins(tool) for tool in load.tools]
        fields["tools"] = [{"type": "function", "function": function} for function in functions]
        fields["tool_choice"] = _choice(load.tool_choice)
    if load.schema:
        schema = {"name": "answer", "schema": load.schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields


def _choice(demanded: str) -> Any:
    """Return the field that leaves calls of tools to the model, or demands some or that of one tool."""
    if demanded in {"", REQUIRED}:
        return demanded or "auto"
    return {"type": "function", "function": {"name": demanded}}


SIZE: Final = 448
"""Pixels of width and height: encoders in use take at least 224."""
COLOURS: Final[Mapping[str, tuple[int, int, int]]] = {
    "red": (220, 20, 30),
    "green": (20, 150, 50),
    "blue": (25, 50, 215),
    "yellow": (250, 225, 20),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
}
"""Colours that have one name; three of them change where red and blue are taken for each other."""
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_RGB8: Final = bytes((8, 2, 0, 0, 0))  # depth, colour type, compression, filters, interlacing


def draw_colour(name: str) -> str:
    """Return a picture of one of `COLOURS`, as a ``data:`` address."""
    header = struct.pack(">II", SIZE, SIZE) + _RGB8
    data = zlib.compress((b"\0" + bytes(COLOURS[name]) * SIZE) * SIZE, 9)
    png = _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
