"""Events come out of bytes the same, however the bytes were cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkwright.engine.client.stream import EventParser, ServerSentEvent


def parse(*reads: bytes) -> list[ServerSentEvent]:
    parser = EventParser()
    return [event for read in reads for event in parser.feed(read)]


ERROR = ServerSentEvent(b"x", b"error")


@pytest.mark.parametrize(
    ("reads", "events"),
    [
        ([b"data: 1\n\ndata: 2\n\ndata: [DO", b"NE]\n\n"], [b"1", b"2", b"[DONE]"]),
        ([b": ping\n\nid: 3\nretry: 10\ndata: x\n: more\n\n: ping\n\n"], [b"x"]),
        ([b"data:  two\n\ndata:none\n\ndata\n\n"], [b" two", b"none", b""]),
        ([b"event: error\ndata: x\n\ndata: y\n\n"], [ERROR, b"y"]),
        # An event called error needs no data.
        ([b": ping\n\nevent: error\n: x\n\nevent: other\n: x\n\ndata: y\n\n"], [ERROR, b"y"]),
        ([b"event: error\n: lost\n: twice\n\n"], [ServerSentEvent(b"lost\ntwice", b"error")]),
        ([b": ping\nevent: error\ndata: x\n\n"], [ERROR]),
        # A mark of the byte order is no part of the first field, and of a later one it is.
        ([b"\xef\xbb\xbfdata: x\n\n"], [b"x"]),
        ([b"data: x\n\n\xef\xbb\xbfdata: y\n\n"], [b"x"]),
    ],
)
def test_events_are_read_from_their_fields(reads, events) -> None:
    found = [event if event.name else event.data for event in parse(*reads)]
    assert found == events


def test_a_line_without_a_field_is_kept() -> None:
    parser = EventParser()
    assert parser.feed(b'id: 1\n{"error": "worker lost"}\n\ndata: x\n\n') == [ServerSentEvent(b"x")]
    assert parser.stray == b'{"error": "worker lost"}'


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
def test_any_split_of_the_bytes_gives_the_same_events(lines, cuts):
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    reads = [stream[begin:end] for begin, end in itertools.pairwise(places)]
    expected = by_the_book(stream)
    assert parse(stream) == expected
    assert parse(*reads) == expected
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == expected
