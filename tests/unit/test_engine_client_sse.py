"""Events come out of bytes the same, however the bytes were cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwright.engine.client.sse import EventParser, ServerSentEvent


def parse(*reads: bytes) -> list[ServerSentEvent]:
    parser = EventParser()
    return [event for read in reads for event in parser.feed(read)]


def said(*reads: bytes) -> list[bytes]:
    return [event.data for event in parse(*reads)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_lines_end_in_three_ways(end: bytes) -> None:
    assert said(end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])) == [b"a\nb", b"c"]


def test_several_events_in_one_read() -> None:
    assert said(b"data: 1\n\ndata: 2\n\ndata: [DO", b"NE]\n\n") == [b"1", b"2", b"[DONE]"]


def test_comments_and_other_fields_are_passed_over() -> None:
    assert said(b": ping\n\nid: 3\nretry: 10\ndata: x\n: more\n\n: ping\n\n") == [b"x"]


def test_an_event_called_error_needs_no_data() -> None:
    assert parse(b": ping\n\nevent: error\n: worker lost\n: twice\n\nevent: other\n: x\n\ndata: y\n\n") == [
        ServerSentEvent(b"worker lost\ntwice", b"error"),
        ServerSentEvent(b"y"),
    ]
    assert parse(b": ping\nevent: error\ndata: z\n\n") == [ServerSentEvent(b"z", b"error")]


def test_a_line_without_a_field_is_kept() -> None:
    parser = EventParser()
    assert parser.feed(b'id: 1\n{"error": "worker lost"}\n\ndata: x\n\n') == [ServerSentEvent(b"x")]
    assert parser.stray == b'{"error": "worker lost"}'


def test_only_one_space_after_the_colon_belongs_to_the_field() -> None:
    assert said(b"data:  two\n\ndata:none\n\ndata\n\n") == [b" two", b"none", b""]


def test_the_name_belongs_to_its_event_alone() -> None:
    assert parse(b"event: error\ndata: x\n\ndata: y\n\n") == [
        ServerSentEvent(b"x", b"error"),
        ServerSentEvent(b"y"),
    ]


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_field() -> None:
    assert said(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]
    assert said(b"data: x\n\n\xef\xbb\xbfdata: y\n\n") == [b"x"]


def test_an_event_may_come_in_pieces() -> None:
    parser = EventParser()
    assert parser.feed(b'data: {"cut') == []
    assert parser.feed(b'"}\n\n') == [ServerSentEvent(b'{"cut"}')]


def test_a_cr_ends_a_line_before_it_is_known_whether_a_lf_follows() -> None:
    parser = EventParser()
    assert parser.feed(b"data: x\r\n\r") == [ServerSentEvent(b"x")]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: y\r\r") == [ServerSentEvent(b"y")]


LINES = st.one_of(
    st.text(alphabet="aé漢🙂 :\ufeff", max_size=6).map(lambda text: b"data: " + text.encode()),
    st.sampled_from([b"", b"", b"data", b": comment", b"event: e", b"data:", b"nonsense", b"data: [DONE]"]),
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def by_the_book(stream: bytes) -> list[ServerSentEvent]:
    """The standard's own steps, on the whole stream."""
    events, data, name = [], [], b""
    text = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in text.split(b"\n")[:-1]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if data:
                events.append(ServerSentEvent(b"\n".join(data), name))
            data, name = [], b""
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return events


@given(st.lists(st.tuples(LINES, ENDS)), st.lists(st.integers(0, 200)))
def test_any_split_of_the_bytes_gives_the_same_events(
    lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    reads = [stream[begin:end] for begin, end in itertools.pairwise(places)]
    expected = by_the_book(stream)
    assert parse(stream) == expected
    assert parse(*reads) == expected
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == expected
