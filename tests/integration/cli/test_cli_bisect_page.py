"""The commands of docs/bisect.md: each is one that the program takes, and the first runs as it is written."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from command import call
from edits import copy_checkout
from test_cli_bisect import PROBE, culprits, git, patched  # noqa: F401 - a fixture
from world import World

from sparkwright.cli.bisect import command

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/bisect.md"
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


def test_the_first_example_runs_as_it_is_written(patched: World) -> None:  # noqa: F811
    for name, commit in (("good", "HEAD~1"), ("bad", "HEAD")):
        git(patched, "checkout", "--quiet", commit if name == "good" else "main")
        before = set(patched.wheels)
        patched.good("wheel", *(f"--allow-unproved={carry}" for carry in patched.listed()))
        (wheel,) = set(patched.wheels) - before
        shutil.copy(wheel, patched.root / f"{name}.whl")
    (patched.root / "regression.py").write_text(PROBE)
    assert culprits(patched.good("bisect", *EXAMPLES[0], "--json")) == ["doubled:added"]


@pytest.mark.upstream
@pytest.mark.walk
@pytest.mark.parametrize(
    ("ends", "named"), [(("0.19.1", "0.20.0"), "broke"), (("0.26.0", "0.25.1", "--find-fix"), "fixed")]
)
def test_the_public_example_names_the_releases(tmp_path: Path, ends: tuple[str, ...], named: str) -> None:
    copy_checkout(ROOT, tmp_path)
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "patchsets" / "stock.toml").write_text(text)
    specs = [f"stock@{one}" if one[0].isdigit() else one for one in ends]
    judge = f"probe {PAGE.parent / 'hybrid.py'}"
    done = call("bisect", "--root", str(tmp_path), *specs, "--judge", judge, cwd=tmp_path)
    assert f"release {max(ends[:2])} {named} it" in done.stdout, done.stderr
