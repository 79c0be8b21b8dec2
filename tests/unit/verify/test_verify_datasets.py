"""Files of prompts are read, bad ones are refused with the line, and sweeps send them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from verify_kit import context, profile

from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import ConfigError
from sparkwright.engine.cell import Prompt
from sparkwright.engine.client.payload import messages_of
from sparkwright.verify.checks import ALL
from sparkwright.verify.datasets import read_prompts, read_same
from sparkwright.verify.options import VerifyOptions

TALK = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello."}]


def written(folder: Path, text: str | bytes, name: str = "own.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_prompts_are_read_in_each_form(tmp_path: Path) -> None:
    lines = written(
        tmp_path, json.dumps({"messages": TALK}) + "\n\n" + json.dumps({"prompt": "Sum up."}) + "\n"
    )
    talk, plain = read_prompts(lines)
    assert messages_of(talk, "") == TALK
    assert messages_of(talk, "7") == [TALK[0], {"role": "user", "content": "[7]\nHello."}]
    assert (plain.text, plain.history, plain.category) == ("Sum up.", (), "own")
    assert talk.category == "own chats"
    long = [*TALK, {"role": "assistant", "content": "Yes?"}, TALK[1], {"role": "assistant", "content": "So."}]
    (cut,) = read_prompts(written(tmp_path, json.dumps({"messages": long})))
    assert [message.role for message in cut.history] == ["system", "user", "assistant"]
    assert cut.text == "Hello."


def test_parts_of_text_and_a_mark_of_order_are_taken_as_they_come(tmp_path):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]}]
    (prompt,) = read_prompts(written(tmp_path, b"\xef\xbb\xbf" + json.dumps({"messages": parts}).encode()))
    assert prompt.text == "Hello."


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "no prompt"),
        ("[]", "line 1 has no prompt"),
        ("17", "line 1 has no prompt"),
        ('{"conversations": [{"from": "human", "value": "Hi."}]}', "line 1 has no prompt"),
        ("{", "line 1 is not JSON"),
        ('{"prompt": "a"}\n{"prompt": ', "line 2 is not JSON"),
        ('{"prompt": ""}', "line 1 has no prompt"),
        ('\n{"messages": [{"role": "robot", "content": "x"}]}', "line 2 has a message of 'robot'"),
        ('{"messages": [{"role": "user", "content": [1]}]}', "no text"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "no message of a user"),
        ('{"messages": [17]}', "line 1 has a message of None"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', "line 2 is not JSON"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, text: str | bytes, because: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_prompts(written(tmp_path, text))
    assert re.search(re.escape(because), caught.value.because), caught.value.because


def test_a_file_that_changed_since_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, '{"prompt": "a"}')
    digest = sha256_file(path)
    assert len(read_same(path, digest)) == 1
    path.write_text('{"prompt": "b"}')
    with pytest.raises(ConfigError, match="has changed"):
        read_same(path, digest)
    path.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        read_same(path, digest)


def own(tmp_path: Path, *, chats: bool) -> tuple[Prompt, ...]:
    entry: dict[str, Any] = {"messages": TALK} if chats else {"prompt": "Sum up."}
    return read_prompts(written(tmp_path, json.dumps(entry) + "\n" + json.dumps(entry)))


@pytest.mark.parametrize("chats", [True, False])
def test_a_sweep_sends_the_prompts_of_a_file(tmp_path: Path, *, chats: bool) -> None:
    to = context(profile(levels=(1, 4)), own=own(tmp_path, chats=chats))
    cells = ALL["sweep"].cells(to)
    assert [cell.name for cell in cells] == ["own c=1", "own c=4"]
    for cell in cells:
        assert cell.load.chat is chats
        assert len({prompt.name for prompt in cell.prompts}) == len(cell.prompts) == cell.load.requests
        sent = [json.dumps(messages_of(prompt)) for prompt in cell.prompts]
        assert len(set(sent)) == len(sent), "no prompt is in the prefix cache"
        assert all(("Hello." if chats else "Sum up.") in text for text in sent)
    assert {finding.name for finding in ALL["sweep"].judge(to, [])} >= {"own: served at every level"}


def test_a_sweep_of_the_corpus_is_what_it_was() -> None:
    assert [cell.key for cell in ALL["sweep"].cells(context())][:2] == [
        "1244276c208c3f2f",
        "50c79759226d5c59",
    ]


def test_options_are_recorded_with_the_run() -> None:
    given = VerifyOptions(prompts="/x", prompts_sha256="00", max_tokens=9)
    assert VerifyOptions.from_options(given.recorded) == given
    assert VerifyOptions().recorded == {}
