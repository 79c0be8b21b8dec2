"""The ground floor: errors, events, canonical bytes, and reading our own files."""

import json
import re
import threading
from contextvars import copy_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from kit import Recorder

from sparkwright.base import errors, events
from sparkwright.base.config import Model, load_toml, parse_toml
from sparkwright.base.digests import digest_of, to_json
from sparkwright.base.errors import ConfigError, NewerFormatError, SparkwrightError

ROOT = Path(__file__).parents[3]
CLASSES = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, SparkwrightError)
}

# Errors ------------------------------------------------------------------------------------


def test_the_documentation_has_the_exit_code_of_each_kind() -> None:
    rows = re.findall(
        r"^\| (\d+) \| ([^|]*)\|.+\|.+\|$", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE
    )
    table = {kind: int(code) for code, kinds in rows for kind in re.findall(r"`(\w+)`", kinds)}
    assert table == {name: found.exit_code for name, found in CLASSES.items()} | {"UsageError": 2}
    codes = [int(code) for code, _ in rows]
    assert codes == sorted(set(codes))
    # above 125 belongs to shells and signals
    assert all(code <= 125 for code in codes)


# Events ------------------------------------------------------------------------------------


def test_events_reach_every_subscriber_in_order_and_nobody_later() -> None:
    outer: list[str] = []
    inner: list[str] = []
    events.emit("nobody hears this")
    with events.subscribe(lambda event: outer.append(event.kind)):
        events.emit("a")
        with events.subscribe(lambda event: inner.append(event.kind)):
            events.emit("b", key=1)
        events.emit("c")
    events.emit("d")
    assert outer == ["a", "b", "c"]
    assert inner == ["b"]


def test_a_subscription_ends_with_a_failure_too() -> None:
    heard: list[str] = []
    with pytest.raises(RuntimeError), events.subscribe(lambda event: heard.append(event.kind)):
        raise RuntimeError
    events.emit("later")
    assert heard == []


def test_a_thread_hears_only_in_a_copied_context() -> None:
    heard: list[str] = []
    with events.subscribe(lambda event: heard.append(event.kind)):
        for target, arguments in ((events.emit, ("alone",)), (copy_context().run, (events.emit, "copied"))):
            thread = threading.Thread(target=target, args=arguments)
            thread.start()
            thread.join()
    assert heard == ["copied"]


def test_a_task_starts_advances_and_finishes() -> None:
    heard: list[events.Event] = []
    with events.subscribe(heard.append), events.task("work", total=3, unit="files", done=1) as task:
        task.advance()
        task.advance()
    assert [event.kind for event in heard] == ["task.started", "task.progress", "task.finished"]
    assert heard[0].data == {"name": "work", "total": 3, "unit": "files", "done": 1}
    assert heard[1].data == {"name": "work", "done": 2, "total": 3, "unit": "files"}
    assert heard[2].data["done"] == 3


def test_a_failed_task_says_so_and_fails() -> None:
    heard: list[events.Event] = []
    with pytest.raises(KeyError), events.subscribe(heard.append), events.task("work"):
        raise KeyError("x")
    assert [event.kind for event in heard] == ["task.started", "task.failed"]
    assert heard[1].data["error"] == "KeyError('x')"


def test_the_log_has_a_line_an_event_and_no_progress(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    for _ in range(2):
        sink = events.JsonlSink(path)
        with events.subscribe(sink), events.task("work"):
            events.emit("x", path=tmp_path, text="line\nfeed é")
            events.emit("task.progress", name="work")
        sink.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["task.started", "x", "task.finished"] * 2
    assert lines[1]["path"] == str(tmp_path)
    assert lines[1]["text"] == "line\nfeed é"


def test_the_log_is_whole_after_each_event(tmp_path: Path) -> None:
    sink = events.JsonlSink(tmp_path / "log")
    with events.subscribe(sink):
        events.warn("careful", file="f")
        (line,) = (tmp_path / "log").read_text().splitlines()
    sink.close()
    assert json.loads(line)["message"] == "careful"


def test_a_log_on_a_full_disk_stops_nothing(heard: Recorder, tmp_path: Path) -> None:
    full, good = events.JsonlSink(Path("/dev/full")), events.JsonlSink(tmp_path / "log")
    with events.subscribe(full), events.subscribe(good):
        for number in range(3):
            events.emit("x", number=number)
    full.close()
    good.close()
    assert [event.kind for event in heard.events] == ["x", "warning", "x", "x"]
    assert "No space left" in heard.warnings[0]
    assert len((tmp_path / "log").read_text().splitlines()) == 4


# Canonical bytes ---------------------------------------------------------------------------


def test_canonical_bytes_are_these() -> None:
    for value in ({"b": [1, None, True], "a": "é"}, {"a": "é", "b": [1, None, True]}):
        assert to_json(value) == '{"a":"é","b":[1,null,true]}'.encode()
    assert digest_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_undecodable_names_have_digests_of_their_own() -> None:
    assert (
        len({digest_of(text) for text in ("\udcff", "\udcfe", "ÿ", "?", "\ufffd", "\udcc3\udca9", "é")}) == 7
    )


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="float"):
        to_json(float("nan"))


# Reading files -----------------------------------------------------------------------------


class Inner(Model, frozen=True):
    some_name: str


class Sample(Model, frozen=True):
    format: int
    inner: tuple[Inner, ...] = ()


def read(text: str | bytes) -> Sample:
    data = text.encode() if isinstance(text, str) else text
    return parse_toml(data, Sample, newest_format=1, name="file.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("format = ", "not valid TOML"),
        (b"format = 1 # \xff", "not valid TOML"),
        ("format = " + "9" * 5000, "not valid TOML"),
        (f"format = {'[' * 5000}", "not valid TOML"),
        ("", "format"),
        ("format = '1'", "int"),
        ("format = true", "int"),
        ("format = 1\nextra = 2", "extra"),
        ("format = 1\n[[inner]]\nsome_name = 'x'", "some_name"),
        ("format = 1\n[[inner]]\nsome-name = 'a'\n[[inner]]\nsome-name = 2", "inner[1].some-name"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str | bytes, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert not isinstance(caught.value, NewerFormatError)
    assert "file.toml" in caught.value.what
    assert says in str(caught.value)


def test_a_newer_format_is_told_apart_before_its_keys_are_read() -> None:
    with pytest.raises(NewerFormatError) as caught:
        read("format = 2\nunheard-of = 1")
    assert caught.value.exit_code == 10
    assert "update" in caught.value.next_step
    assert "up to 1" in caught.value.because


def test_a_missing_file_or_a_folder_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_toml(tmp_path / "none.toml", Sample, newest_format=1)
    with pytest.raises(ConfigError, match="is a directory"):
        load_toml(tmp_path, Sample, newest_format=1)


@examples(max_examples=200)
@given(st.binary(max_size=60))
def test_no_bytes_make_reading_fall_over(data: bytes) -> None:
    with pytest.raises(ConfigError):
        parse_toml(data + b"\n= 1", Sample, newest_format=1, name="f")
