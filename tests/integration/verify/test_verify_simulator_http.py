"""The simulated server over real HTTP: what it answers when healthy, and what faults make of its streams."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
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


def metrics(page: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    common = re.compile(r',?(engine|model_name)="[^"]*",?')
    return {common.sub("", name): float(value) for name, _, value in lines}


# Healthy -------------------------------------------------------------------------------------------------


def test_a_stream_has_its_tokens_its_count_and_its_end(tmp_path: Path) -> None:
    events = on(tmp_path, lambda server: server.events(body(prompt(1), 50) | FULL))
    assert events[-1] == "[DONE]"
    ids = [choice["token_ids"] for choice in choices(events)]
    assert sum(map(len, ids)) == 50
    assert len(ids[0]) == 1
    assert max(map(len, ids)) > 2  # several tokens in an event: what was accepted, and one more
    assert choices(events)[0]["prompt_token_ids"]
    assert [choice["finish_reason"] for choice in choices(events)][-2:] == [None, "length"]
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts[-1] == 50
    assert counts[:-1] == [sum(map(len, ids[: index + 1])) for index in range(len(ids))]
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert "usage" not in on(tmp_path, lambda server: server.events(body(prompt(1))))[0]


def test_a_chat_begins_with_a_role_and_goes_on_with_content(tmp_path: Path) -> None:
    ask = {"messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 40, "temperature": 0}

    async def both(server: Served) -> tuple[list[Any], Any]:
        events = await server.events(ask | FULL | {"ignore_eos": True}, "/v1/chat/completions")
        return events, await server.post("/v1/chat/completions", ask | {"ignore_eos": True})

    events, (status, whole) = on(tmp_path, both)
    assert choices(events)[0]["delta"] == {"role": "assistant", "content": ""}
    streamed = "".join(choice["delta"]["content"] for choice in choices(events))
    assert status == 200
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": streamed}
    assert whole["usage"]["completion_tokens"] == 40
    assert events[0]["object"] == "chat.completion.chunk"
    assert ["stop_reason" in choice for choice in choices(events)][-2:] == [False, True]


def test_what_a_prompt_states_is_answered(tmp_path: Path) -> None:
    question = "The code for Otter is 4711. The code for Elk is 815.\n\nWhat is the code for Elk? Be short."

    async def ask(server: Served) -> list[str]:
        found = []
        for asked in (question, "Work this out: 1234 + 4321", "Nothing is asked here"):
            _, whole = await server.post("/v1/completions", body(asked, 200) | {"ignore_eos": False})
            assert whole["choices"][0]["finish_reason"] in {"stop", "length"}
            found.append(whole["choices"][0]["text"])
        return found

    assert on(tmp_path, ask)[:2] == [" The code for Elk is 815.", " The result is 5555."]


@pytest.mark.parametrize("chat", [False, True])
def test_logprobs_hold_the_chosen_token_by_its_id(tmp_path: Path, *, chat: bool) -> None:
    fields: dict[str, Any] = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    fields |= {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 3}
    ask = body(prompt(1), 30, **fields) | {"messages": [{"role": "user", "content": "Go"}]}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    events = on(tmp_path, lambda server: server.events(ask, path))
    for choice in choices(events)[1 if chat else 0 :]:
        names = [f"token_id:{token}" for token in choice["token_ids"]]
        if chat:
            entries = choice["logprobs"]["content"]
            assert [entry["token"] for entry in entries] == names
            assert all(len(entry["top_logprobs"]) <= 3 for entry in entries)
        else:
            assert choice["logprobs"]["tokens"] == names
            for name, own, top in zip(
                names, choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True
            ):
                assert top[name] == own <= max(top.values()) < 0


def test_metrics_say_what_was_served(tmp_path: Path) -> None:
    async def ask(server: Served) -> dict[str, float]:
        for _ in range(2):
            await server.events(body(prompt(1, words=60), 50))
        status, page = await server.get("/metrics")
        assert status == 200
        return metrics(page)

    found = on(tmp_path, ask)
    drafts, accepted = (
        found["vllm:spec_decode_num_drafts_total{}"],
        found["vllm:spec_decode_num_accepted_tokens_total{}"],
    )
    positions = [
        found[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}}'] for at in range(7)
    ]
    assert sum(positions) == accepted > 0
    assert 0 <= accepted + drafts + 2 - found["vllm:generation_tokens_total{}"] <= 14
    assert found["vllm:generation_tokens_total{}"] == 100
    assert found['vllm:request_success_total{finished_reason="length"}'] == 2
    assert found["vllm:prefix_cache_hits_total{}"] > 0
    assert found["vllm:num_requests_running{}"] == found["vllm:num_requests_waiting{}"] == 0
    assert found["process_start_time_seconds"] > 1e9
    assert not any("spec_decode" in name for name in on(tmp_path, ask, k=0))


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


def test_the_truth_is_told_of_each_request(tmp_path: Path) -> None:
    async def ask(server: Served) -> list[dict[str, Any]]:
        await asyncio.gather(*(server.events(body(prompt(number), 40)) for number in range(6)))
        return server.traces()

    traces = on(tmp_path, ask)
    assert sorted(trace["number"] for trace in traces) == [1, 2, 3, 4, 5, 6]
    for trace in traces:
        assert (
            trace["received_ns"]
            <= trace["accepted_ns"]
            < trace["first_token_written_ns"]
            < trace["last_token_written_ns"]
        )
        assert trace["tokens"] == 40
        assert trace["drafts"] == trace["chunks"] - 1


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


# Faults --------------------------------------------------------------------------------------------------


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
