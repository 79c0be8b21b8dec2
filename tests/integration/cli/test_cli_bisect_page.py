"""The commands of docs/bisect.md: each is one that the program takes, and the first runs as it is written."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from test_cli_bisect import PROBE, culprits, git, patched  # noqa: F401 - a fixture
from world import World

from sparkwright.cli.bisect import command

PAGE = Path(__file__).parents[3] / "docs" / "bisect.md"
EXAMPLES = [
    shlex.split(found.replace("\\\n", " "))[2:]
    for found in re.findall(r"^\$ (sparkwright bisect (?:.*\\\n)*.*)$", PAGE.read_text(), re.MULTILINE)
]


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_an_example_is_taken(words: list[str]) -> None:
    context = command.make_context("bisect", [*words])
    assert context.params["judge"]
    assert len(context.params["words"]) == 2 or context.params["good"]


def test_the_first_example_runs_as_it_is_written(patched: World) -> None:  # noqa: F811
    for name, commit in (("good", "HEAD~1"), ("bad", "HEAD")):
        git(patched, "checkout", "--quiet", commit if name == "good" else "main")
        before = set(patched.wheels)
        patched.good("wheel", *(f"--allow-unproved={carry}" for carry in patched.listed()))
        (wheel,) = set(patched.wheels) - before
        shutil.copy(wheel, patched.root / f"{name}.whl")
    (patched.root / "regression.py").write_text(PROBE)
    assert culprits(patched.good("bisect", *EXAMPLES[0], "--json")) == ["doubled:added"]
