"""Chunks are read for what they say, in every dialect; what is not said is never guessed."""

import json
import math
from typing import Any

import pytest
from vllm_like import delta, token, usage

from sparkwright.engine.client.reply import Reply, ReplyError
from sparkwright.engine.observations import FailureKind, TokenLogprobs

DONE = b"[DONE]"


def read(*messages: Any) -> Reply:
    """A reply to which each message came at the next full microsecond."""
    reply = Reply()
    for i, message in enumerate(messages, 1):
        reply.take(message if isinstance(message, bytes) else json.dumps(message).encode(), i * 1000)
    return reply


def problem(reply: Reply, max_tokens: int = 3, *, natural: bool = False) -> FailureKind | None:
    failure = reply.problem(max_tokens=max_tokens, natural_stop=natural)
    return None if failure is None else failure.kind


def shape(reply: Reply) -> list[tuple[int, int, str]]:
    return [(chunk.at, chunk.tokens, chunk.kind) for chunk in reply.chunks]


# Completions --------------------------------------------------------------------------------------------


def test_a_whole_stream() -> None:
    reply = read(
        token(1, text="a"), token(2, 3, text="bc", finish="length"), usage(3, prompt=9, cached=4), DONE
    )
    assert shape(reply) == [(1000, 1, "content"), (2000, 2, "content")]
    assert (reply.text, reply.token_ids, reply.request) == ("abc", [1, 2, 3], "cmpl-7")
    assert (reply.output_tokens, reply.counted_by, reply.prompt_tokens, reply.cached_tokens) == (
        3, "usage", 9, 4
    )  # fmt: skip
    assert problem(reply) is None


def test_logprobs_of_completions() -> None:
    said = {
        "tokens": ["token_id:5", "token_id:6"],
        "token_logprobs": [-0.5, None],
        "top_logprobs": [{"token_id:5": -0.5, "token_id:9": -1.5}, None],
    }
    first, second = read(token(5, 6, logprobs=said)).logprobs
    assert first == TokenLogprobs(
        token="token_id:5",  # noqa: S106
        logprob=-0.5,
        top={"token_id:5": -0.5, "token_id:9": -1.5},
    )
    assert second.token == "token_id:6"  # noqa: S105
    assert math.isnan(second.logprob)
    assert second.top == {}


# Chat ---------------------------------------------------------------------------------------------------


ROLE = delta(role="assistant", content="")


@pytest.mark.parametrize(
    ("messages", "chunks"),
    [
        ([token(1), token(2, text="é")], [(1000, 1, "content"), (2000, 1, "content")]),
        ([token(1, 2, 3, text="abc"), token(finish="length"), usage(3), DONE], [(1000, 3, "content")]),
        ([token(1, text="a", stop_reason=None, prompt_token_ids=[1, 2])], [(1000, 1, "content")]),
        ([ROLE, delta(7, content="x")], [(2000, 1, "content")]),
        ([ROLE, delta(content=""), delta(), delta(7, content="x")], [(4000, 1, "content")]),
        ([ROLE, delta(1), delta(2, content="x")], [(2000, 1, "content"), (3000, 1, "content")]),
        ([ROLE, delta(1, 2, reasoning="a"), delta(3, content="b")],
         [(2000, 2, "reasoning"), (3000, 1, "content")]),
        ([ROLE, delta(1, 2, reasoning_content="a"), delta(3, content="b")],
         [(2000, 2, "reasoning"), (3000, 1, "content")]),
    ],
    ids=["no text", "only finishes", "unknown fields", "role alone", "empty content", "text held back",
         "reasoning", "reasoning_content"],
)  # fmt: skip
def test_output_is_dated_by_the_chunk_that_brings_it(messages, chunks) -> None:
    assert shape(read(*messages)) == chunks


def test_logprobs_of_chat() -> None:
    top = [{"token": "token_id:5", "logprob": -0.5}, {"token": "token_id:8", "logprob": -2}]
    said = {"content": [{"token": "token_id:5", "logprob": -0.5, "bytes": None, "top_logprobs": top}]}
    assert read(delta(5, content="x", logprobs=said)).logprobs == [
        TokenLogprobs(token="token_id:5", logprob=-0.5, top={"token_id:5": -0.5, "token_id:8": -2})  # noqa: S106
    ]


# Counts -------------------------------------------------------------------------------------------------


def without_ids(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return message | {"choices": [{**message["choices"][0], "token_ids": None}], **more}


def test_usage_that_grows_with_each_chunk_counts_its_tokens() -> None:
    first = delta(role="assistant", content="") | usage(0) | {"choices": delta(role="a")["choices"]}
    reply = read(
        first,
        delta(content="ab") | {"usage": {"prompt_tokens": 5, "completion_tokens": 2}},
        delta() | {"usage": {"prompt_tokens": 5, "completion_tokens": 3}},
        usage(3),
    )
    assert shape(reply) == [(2000, 2, "content"), (3000, 1, "content")]
    assert reply.counted_by == "usage"


def test_usage_in_the_last_chunk_alone_is_not_one_chunks_tokens() -> None:
    reply = read(without_ids(token(text="a")), without_ids(token(text="b"), usage={"completion_tokens": 2}))
    assert [chunk.tokens for chunk in reply.chunks] == [0, 0]
    assert reply.output_tokens == 2


LAST = token(3, text="c", finish="length")


@pytest.mark.parametrize(
    ("messages", "tokens", "by", "kind"),
    [
        ([token(1, 2, text="ab"), LAST, DONE], 3, "ids", None),
        ([without_ids(token(text="twelve characters", finish="length")), DONE], 0, "", FailureKind.NO_COUNT),
        ([token(1, text="a"), without_ids(LAST), DONE], 0, "", FailureKind.NO_COUNT),
    ],
    ids=["usage is missing", "text is never counted", "ids of some chunks"],
)
def test_ids_count_where_usage_is_missing_and_all_have_some(messages, tokens, by, kind) -> None:
    reply = read(*messages)
    assert (reply.output_tokens, reply.counted_by) == (tokens, by)
    assert problem(reply) is kind


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        pytest.param([token(1, 2, 3, finish="length"), usage(4), DONE], FailureKind.COUNT, id="more usage"),
        pytest.param(
            [token(1, 2, 3, text="x", finish="length"), usage(0), DONE], FailureKind.COUNT, id="none"
        ),
        pytest.param([token(finish="length"), usage(3), DONE], FailureKind.COUNT, id="ids stay away"),
        pytest.param([delta(finish="length"), usage(3), DONE], FailureKind.NO_COUNT, id="no output"),
        pytest.param([token(1, 2, 3, finish="length"), usage(3)], FailureKind.TRUNCATED, id="no DONE"),
        pytest.param([token(1, 2, 3), usage(3), DONE], FailureKind.NO_FINISH, id="no finish"),
        pytest.param([token(1, 2, finish="length"), usage(2), DONE], FailureKind.LENGTH, id="short"),
        pytest.param([token(1, 2, finish="stop"), usage(2), DONE], FailureKind.LENGTH, id="stop"),
        pytest.param([token(1, 2, 3, finish="abort"), usage(3), DONE], FailureKind.LENGTH, id="abort"),
        pytest.param([token(1, 2, 3, 4, finish="length"), usage(4), DONE], FailureKind.LENGTH, id="long"),
    ],
)
def test_what_does_not_add_up_fails(messages: list[Any], kind: FailureKind) -> None:
    assert problem(read(*messages)) is kind


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([token(1, finish="stop"), usage(1), DONE], None),
        ([token(1, 2, 3, finish="length"), usage(3), DONE], None),
        ([token(1, 2, finish="length"), usage(2), DONE], FailureKind.LENGTH),
        ([token(1, finish="abort"), usage(1), DONE], FailureKind.LENGTH),
        ([token(finish="stop"), usage(0), DONE], FailureKind.LENGTH),
    ],
)
def test_a_natural_stop_may_be_short_and_must_be_a_stop(messages, kind):
    assert problem(read(*messages), natural=True) is kind


def test_nothing_counts_after_the_end() -> None:
    reply = read(token(1, 2, 3, finish="length"), usage(3), DONE, token(4), b"no JSON")
    assert len(reply.chunks) == 1
    assert problem(reply) is None


# Errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "kind", "detail"),
    [
        (
            {"error": {"type": "InternalServerError", "message": "died", "code": 500}},
            FailureKind.IN_BAND,
            "died",
        ),
        ({"error": "engine died"}, FailureKind.IN_BAND, "engine died"),
        ({"object": "error", "message": "engine died"}, FailureKind.IN_BAND, "engine died"),
        (token(1, finish="error"), FailureKind.IN_BAND, "'error'"),
        *(
            (message, FailureKind.NOT_JSON, "")
            for message in (
                b'{"choices": [',
                b"<html>",
                b"",
                b'{"choices": [{"text": "\xff"}]}',
                b"Internal",
                b"[" * 5000,
            )
        ),
        (b'"text"', FailureKind.FORM, "`str`"),
        (b'{"choices": "none"}', FailureKind.FORM, "$.choices"),
        (b'{"choices": {"0": {}}}', FailureKind.FORM, "$.choices"),
        *(
            (
                usage(3) | {"usage": {"completion_tokens": count}},
                FailureKind.FORM,
                "$.usage.completion_tokens",
            )
            for count in (12.5, 1e300)
        ),
        (delta(content=[{"type": "image"}]), FailureKind.FORM, "content"),
    ],
)
def test_an_error_and_what_is_no_chunk_end_the_stream(message, kind, detail) -> None:
    with pytest.raises(ReplyError) as caught:
        read(token(1, text="a"), message)
    assert caught.value.failure.kind is kind
    assert detail in caught.value.failure.detail


def last(**changes: Any) -> dict[str, Any]:
    return usage(2) | changes


TWO = (token(1, text="a"), token(2, text="b", finish="length"))
FLOATS = {"prompt_tokens": 5.0, "completion_tokens": 2.0, "prompt_tokens_details": {"cached_tokens": 4.0}}


@pytest.mark.parametrize(
    ("messages", "odd"),
    [
        ((*TWO, last(id=None), DONE), {"`id` is null"}),
        ((*TWO, last(id=7, object=None), DONE), {"`id` is a number", "`object` is null"}),
        ((*TWO, last(choices=None), DONE), {"`choices` is null"}),
        ((*TWO, last(choices={}), DONE), {"`choices` is an object"}),
        ((TWO[0], b"null", TWO[1], last(), DONE), {"a message is null"}),
        ((*TWO, last(), b" [DONE] "), {"[DONE] has blanks around it"}),
        (
            (*TWO, last(usage=FLOATS), DONE),
            {"`prompt_tokens` is a float", "`completion_tokens` is a float", "`cached_tokens` is a float"},
        ),
        (
            (
                delta(1, content=[{"type": "text", "text": "a"}], logprobs={"content": []}),
                delta(2, content=["b"], finish="length"),
                last(),
                DONE,
            ),
            {"`content` is a list"},
        ),
        (
            (token(1, text="a", index=0.0) | {"id": None}, TWO[1], last(), DONE),
            {"`index` is a float", "`id` is null"},
        ),
        ((*TWO, last(), DONE), set()),
    ],
)
def test_fields_that_no_verdict_needs_may_be_odd(messages: tuple[Any, ...], odd: set[str]) -> None:
    reply = read(*messages)
    assert problem(reply, 2) is None
    assert (reply.text, reply.output_tokens, reply.odd) == ("ab", 2, odd)


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b'{"detail": "worker lost"}', "worker lost"),
        (b'{"error": {"message": "worker lost", "code": 500}}', "worker lost"),
        (b"worker lost", "worker lost"),
        (b"", ""),
    ],
)
def test_an_event_called_error_is_one(data: bytes, detail: str) -> None:
    reply = read(TWO[0])
    with pytest.raises(ReplyError) as caught:
        reply.take(data, 9, b"error")
    assert (caught.value.failure.kind, caught.value.failure.detail) == (FailureKind.IN_BAND, detail)
    reply.take(json.dumps(TWO[1]).encode(), 9, b"message")
    assert reply.text == "ab"


def test_what_was_not_understood_is_quoted_where_a_stream_ends_badly() -> None:
    failure = read(TWO[0], {"detail": "worker lost"}, DONE).problem(max_tokens=2, natural_stop=False)
    assert (failure.kind, "worker lost" in failure.detail) == (FailureKind.NO_FINISH, True)
    assert problem(read(*TWO, {"keep": "alive"}, last(), DONE), 2) is None


def test_names_that_a_server_invents_are_in_no_warning() -> None:
    reply = read(TWO[0] | {"id": None, "x\x1b[31m": {"content": []}}, {"x1": {"content": ["a"]}, "id": None})
    assert reply.odd == {"`id` is null", "`content` is a list"}


# Tool calls ----------------------------------------------------------------------------------------------


def call(*parts: dict[str, Any]) -> dict[str, Any]:
    return delta(tool_calls=list(parts))


def part(index: int | None, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"function": function} if index is None else {"index": index, "function": function}


def calls(reply: Reply) -> list[tuple[str, str]]:
    return [(one.name, one.arguments) for one in reply.tool_calls]


def test_calls_are_put_together_by_their_index() -> None:
    reply = read(
        delta(reasoning="Two calls."),
        delta(content="Sure."),
        call(part(0, "add", "")),
        call(part(0, None, '{"a"'), part(1, "sub")),
        call(part(1, None, "{}"), part(0, None, ": 1}")),
    )
    assert calls(reply) == [("add", '{"a": 1}'), ("sub", "{}")]
    assert reply.text.startswith("Two calls.Sure.add")
    answer = reply.text[reply.chars("reasoning") : len(reply.text) - reply.chars("tool")]
    assert answer == "Sure."


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([call(part(None, "add", "{")), call(part(None, None, "}")), call(part(None, "sub", "{}"))],
         [("add", "{}"), ("sub", "{}")]),
        ([call(part(0, "add", "{}"), part(1, "add", "[]"))], [("add", "{}"), ("add", "[]")]),
        ([delta(content="no")], []),
    ],
    ids=["without an index", "in one piece", "none"],
)  # fmt: skip
def test_calls_without_an_index_begin_with_a_name(messages, found) -> None:
    assert calls(read(*messages)) == found
