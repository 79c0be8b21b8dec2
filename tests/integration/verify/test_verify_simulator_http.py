"""The simulated server over real HTTP: what it answers when healthy, and what faults make of its streams."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from simulator_kit import Served, body, parsed, prompt, served

FULL = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "return_token_ids": True}


def on(folder: Path, test: Callable[[Served], Awaitable[Any]], *faults: str, **changes: Any) -> Any:
    """Run *test* against a server with *faults*; returns its result."""

    async def run() -> Any:
        async with served(folder, *faults, **changes) as server:
            return await asyncio.wait_for(test(server), 60)

    return asyncio.run(run())


def choices(events: list[Any]) -> list[dict[str, Any]]:
    return [event["choices"][0] for event in events if isinstance(event, dict) and event.get("choices")]


def text(events: list[Any]) -> str:
    return "".join(choice["text"] for choice in choices(events))


def test_addresses_answer_as_vllms_do(tmp_path: Path) -> None:
    async def ask(server: Served) -> None:
        key = {"Authorization": "Bearer K"}
        for path in ("/health", "/metrics"):
            assert (await server.get(path))[0] == 200
        assert json.loads((await server.get("/version"))[1]) == {"version": "0.33.0"}
        assert (await server.get("/v1/models"))[0] == 401
        assert (await server.get("/nowhere"))[0] == 404
        async with server.session.get(f"{server.url}/v1/models", headers=key) as response:
            (model,) = (await response.json())["data"]
        assert model["max_model_len"] == 40_960
        other = body("Hello") | {"model": "other"}
        for data, status in ((other, 404), (body("Hello", 10**6), 400), ({}, 400), ({"prompt": 7}, 400)):
            async with server.session.post(
                f"{server.url}/v1/completions", json=data, headers=key
            ) as response:
                assert response.status == status
                assert (await response.json())["error"]["code"] == status
        async with server.session.post(f"{server.url}/v1/completions", data=b"{", headers=key) as response:
            assert response.status == 400
        _, tokens = await server.post("/tokenize", {"prompt": "One two three"})
        assert tokens["count"] == len(tokens["tokens"]) == 3

    on(tmp_path, ask, api_key="K")


def test_a_client_that_goes_is_forgotten(tmp_path: Path) -> None:
    async def ask(server: Served) -> None:
        response = await server.session.post(
            f"{server.url}/v1/completions", json=body(prompt(1), 30_000) | {"stream": True}
        )
        await response.content.readline()
        assert server.driver.engine.busy
        response.close()
        while server.driver.engine.busy:  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.01)

    on(tmp_path, ask)


def pieces(folder: Path, *faults: str, path: str = "/v1/completions", **fields: Any) -> list[bytes]:
    ask = body(prompt(1), 40) | FULL | {"stream": True, "messages": [{"role": "user", "content": "Go"}]}

    async def read(server: Served) -> list[bytes]:
        return (await server.raw(path, ask | fields))[1]

    found: list[bytes] = on(folder, read, *faults)
    return found


def test_odd_streams_bring_the_same_text(tmp_path: Path) -> None:
    plain = text(list(parsed(b"".join(pieces(tmp_path)).decode())))
    for fault in ("empty-content", "role-chunks", "sse-comments", "crlf", "split-reads", "joined-events"):
        data = b"".join(pieces(tmp_path, fault))
        assert text(list(parsed(data.decode()))) == plain, fault
        assert (b"\n: " in data) == (fault == "sse-comments")
        assert (b"\r\n\r\n" in data) == (fault == "crlf")
    empty = choices(list(parsed(b"".join(pieces(tmp_path, "empty-content")).decode())))
    assert sum(choice["text"] == "" for choice in empty) == len(empty) // 2


def test_events_come_in_pieces_or_joined(tmp_path: Path) -> None:
    assert sum(not piece.endswith(b"\n") for piece in pieces(tmp_path, "split-reads=5")) > 10
    assert all(piece.endswith(b"\n\n") for piece in pieces(tmp_path))
    joined = pieces(tmp_path, "joined-events=3")
    assert max(piece.count(b"data: ") for piece in joined) >= 3
    plain = b"".join(pieces(tmp_path, max_tokens=400)).decode()
    assert any(ord(letter) > 127 for letter in plain)  # so that pieces cut UTF-8 too
