"""A command has the global options that mean something to it, and names them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from sparkwright.cli.command import GLOBAL_OPTIONS, Command, Group, takes
from sparkwright.cli.main import group, main
from sparkwright.cli.options import NAMES as LISTED

NAMES = ("root", "store_url", "series", "patchset", "offline", "quiet", "as_json")


@click.group(cls=Group)
def program() -> None:
    """A program with one group and two commands."""


@program.group("inner")
def inner() -> None:
    """The group."""


@inner.command("all")
@click.option("--note", default="")
@click.argument("words", nargs=-1)
@takes(*NAMES)
def all_(**values: Any) -> None:
    """Print what it gets."""
    click.echo(json.dumps(values, default=str))


@inner.command("none")
def none() -> None:
    """Take none."""


def run(*words: str, variables: dict[str, str] | None = None) -> Any:
    result = CliRunner(env=variables or {}).invoke(program, words)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.parametrize("place", [2, 3])
def test_they_stand_anywhere_behind_the_command(place: int, tmp_path: Path) -> None:
    words = ["inner", "all", "word"]
    words[place:place] = [
        "--offline",
        "-q",
        "--json",
        "--store",
        "none",
        "--root",
        str(tmp_path),
        "--series",
        "1",
    ]
    assert run(*words) == {
        "note": "", "words": ["word"], "offline": True, "quiet": True, "as_json": True, "store_url": "none",
        "root": str(tmp_path), "series": "1", "patchset": "",
    }  # fmt: skip


@click.command(cls=Command)
@click.option("--out", type=click.Path(path_type=Path), default=Path("there"))
@click.option("--days", type=click.FloatRange(min=0), default=1.0)
@click.option("--name", default="")
@click.option("--names", type=LISTED, default=())
@click.option("--set", multiple=True)
@click.option("--any", type=click.UNPROCESSED)
@takes("series", "store_url", "patchset")
def sized(**values: Any) -> None:
    """Print what it gets."""
    click.echo(json.dumps(values, default=str))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--out", "."], 0, '"out": "."'),
        (["--out="], 2, "it is empty; name a file or folder"),
        (["--name", ""], 2, "it is empty; leave it out, or give a value"),
        (["--names", ""], 2, "it is empty; leave it out, or give a list"),
        (["--names", " , "], 2, "it is empty; leave it out, or give a list"),
        (["--set", ""], 2, "it is empty; leave it out, or give a value"),
        (["--series="], 2, "'--series': it is empty; leave it out, or give a value"),
        (["--store", ""], 2, "'--store': it is empty; leave it out, or give a value"),
        (["--patchset", ""], 2, "'--patchset': it is empty; leave it out, or give a value"),
        (["--any", ""], 0, '"any": ""'),
        (["--days", "2"], 0, '"days": 2.0'),
        (["--days", "nan"], 2, "nan is no number of anything"),
        (["--days", "1e999"], 2, "inf is no number of anything"),
    ],
)
def test_empty_values_and_numbers_without_end_are_refused(words: list[str], code: int, said: str) -> None:
    result = CliRunner().invoke(sized, words)
    assert (result.exit_code, said in result.output) == (code, True), result.output


def test_a_value_and_what_follows_two_dashes_are_left_alone() -> None:
    found = run("inner", "all", "--note", "--json", "--", "--offline")
    assert (found["note"], found["words"]) == ("--json", ["--offline"])
    assert not found["as_json"]
    assert not found["offline"]


def test_the_command_line_goes_before_a_variable_and_the_last_word_before_others() -> None:
    variables = {"SPARKWRIGHT_STORE_URL": "https://variable", "SPARKWRIGHT_OFFLINE": "1"}
    assert run("inner", "all", variables=variables)["store_url"] == "https://variable"
    found = run("inner", "all", "--store", "one", "--store", "two", variables=variables)
    assert (found["store_url"], found["offline"]) == ("two", True)


@pytest.mark.parametrize("words", [("--json", "inner", "none"), ("inner", "none", "--series", "1")])
def test_one_that_means_nothing_is_refused(words: Sequence[str]) -> None:
    result = CliRunner().invoke(program, words)
    assert result.exit_code == 2
    assert "No such option" in result.output
    variables = {"SPARKWRIGHT_STORE_URL": "https://variable"}
    assert CliRunner(env=variables).invoke(program, ["inner", "none", "-q", "--offline"]).exit_code == 0


def commands(found: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield found, context
    if isinstance(found, click.Group):
        for name in found.list_commands(context):
            if (command := found.get_command(context, name)) is not None:
                yield from commands(command, click.Context(command, context, name))


def test_each_command_has_them_declares_none_itself_and_names_them_in_one_line() -> None:
    words = {word for option in GLOBAL_OPTIONS for word in option.opts}
    for command, context in commands(group, click.Context(group, info_name="sparkwright")):
        assert isinstance(command, (Command, Group)), context.command_path
        own = {word for one in command.params for word in [*one.opts, one.name]}
        assert not own & {*words, *NAMES}, context.command_path
        if isinstance(command, Command):
            (line,) = [line for line in command.get_help(context).splitlines() if "Global: " in line]
            assert "--offline" in line


def test_a_value_called_json_turns_no_error_into_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "none", "--use", "--json"]) == 10
    assert capsys.readouterr().out == ""
    assert main(["doctor", "none", "--json"]) == 10
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "UnknownNameError"


def test_the_help_of_each_command_fits_a_screen() -> None:
    context = click.Context(group, info_name="sparkwright", terminal_width=100, max_content_width=100)
    lines = {one.command_path: one.get_help().count("\n") for _, one in commands(group, context)}
    assert {path: count for path, count in lines.items() if count > 60} == {}
    assert lines["sparkwright"] < 40
