"""The child that asks a release's parser: whatever the parser raises is that command line's verdict."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkwright.serve.ask import AskedRelease
from sparkwright.serve.child import describe_release
from sparkwright.store import Store

# Answers as the child does: refuses a template that is not there.
PROGRAM = """
import json, os, sys
request, report = sys.argv[2], sys.argv[4]
asked = json.load(open(request))
parsed = [{"error": "no template" if "--chat-template" in c and not os.path.exists(c[-1]) else ""}
          for c in asked["commands"]]
empty = {"flags": [], "variables": {"declared": [], "read": []}, "speculative": {}, "attention-backends": [],
         "kv-types": [], "tool-parsers": [], "reasoning-parsers": []}
json.dump({"parsed": parsed, **({"options": empty} if asked["describe"] else {})}, open(report, "w"))
"""


class OddError(Exception):
    """An error of a kind that no version of sparkwright knows."""


class Parser(argparse.ArgumentParser):
    """Parses well what it is not told to fail on."""

    def validate(self, parsed: argparse.Namespace) -> None:
        if isinstance(parsed.fails, BaseException):
            raise parsed.fails

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return argparse.Namespace(fails=args[0])


@pytest.mark.parametrize(
    "error",
    [OddError("template is missing"), FileNotFoundError("missing.yaml"), SystemExit(2), RuntimeError("x"),
     describe_release.RefusedError("template is missing")],
)  # fmt: skip
def test_one_command_lines_error_is_its_own(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_release, "refused_values", lambda _: "")
    parser = Parser()
    lines: list[Any] = [[error], ["good"]]
    bad, good = (describe_release.parse(parser, line) for line in lines)
    assert str(error) in str(bad["error"])
    assert good["error"] == ""


def test_an_answer_is_recorded_by_the_files_that_it_names(store: Store, tmp_path: Path) -> None:
    """A template that was not there when the release was asked may be there now."""
    template = tmp_path / "t.jinja"
    line, other = ("serve", "m", "--chat-template", str(template)), ("serve", "m")
    calls: list[Any] = []

    def start(_: Path) -> list[str | Path]:
        calls.append(1)
        return [sys.executable, "-c", PROGRAM]

    asked = AskedRelease(store, "1", ("tree",), start)
    assert asked.ask([line, other]).parsed[0].error == "no template"
    asked.ask([line, other])
    assert len(calls) == 1
    template.write_text("{{ x }}")
    assert asked.recorded([line]) is None
    assert asked.recorded([other]) is not None
    assert asked.ask([line]).parsed[0].error == ""
    template.write_text("{{ y }}")
    assert asked.recorded([line]) is None
