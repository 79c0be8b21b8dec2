"""Hints keep the series, and name commands that exist."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.cli.command import Command, Parent
from sparkwright.cli.main import COMMANDS, group
from sparkwright.pipeline.checkout import (
    TAKE_SERIES,
    keeping_series,
    new_checkout,
    open_checkout,
    with_series,
)

ROOT = Path(__file__).parents[2]
DEFAULT = open_checkout(ROOT)
OTHER = new_checkout(DEFAULT, "9.9")


def commands(found: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(found, click.Group):
        yield " ".join(path), found
        return
    context = click.Context(found)
    for name in found.list_commands(context):
        command = found.get_command(context, name)
        assert command is not None
        yield from commands(command, *path, name)


KNOWN = dict(commands(group))


def test_each_command_with_a_series_is_listed() -> None:
    leaves = {name: one for name, one in KNOWN.items() if isinstance(one, Command)}
    taking = {name for name, one in leaves.items() if any(option.name == "series" for option in one.taken())}
    assert taking == set(TAKE_SERIES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sparkwright carry prove clamp", "sparkwright carry prove --series 9.9 clamp"),
        ("'sparkwright lock bump' writes it", "'sparkwright lock bump --series 9.9' writes it"),
        (
            "sparkwright lock check, then sparkwright merge",
            "sparkwright lock check --series 9.9, then sparkwright merge --series 9.9",
        ),
        ("sparkwright carry prove a --series 1.2", "sparkwright carry prove a --series 1.2"),
        ("sparkwright wheel\nsparkwright merge --series 1.2", None),
        ("make wheel KERNELS=native", "make wheel SERIES=9.9 KERNELS=native"),
        ("make wheel PLATFORM=x86_64 SERIES=1.2", "make wheel PLATFORM=x86_64 SERIES=1.2"),
        ("make wheels", "make wheels"),
        ("sparkwright audit WHEEL", "sparkwright audit WHEEL"),
        ("sparkwright lock bump 2 --new-series 2", "sparkwright lock bump --series 9.9 2 --new-series 2"),
    ],
)  # fmt: skip
def test_a_command_without_a_series_gets_the_present_one(text: str, told: str | None) -> None:
    told = "sparkwright wheel --series 9.9\nsparkwright merge --series 1.2" if told is None else told
    assert with_series(text, OTHER) == told
    assert with_series(text, DEFAULT) == text


def test_an_error_keeps_the_series() -> None:
    for checkout, told in ((OTHER, "sparkwright merge --series 9.9"), (DEFAULT, "sparkwright merge")):
        with pytest.raises(ConfigError) as caught, keeping_series(checkout):
            raise ConfigError("it fails", next_step="sparkwright merge")
        assert caught.value.next_step == told


_NO_COMMAND = "store entry"  # what bytes in a shared store begin with


def unknown(text: str) -> Iterator[str]:
    """Yield each command in *text* that is none, or has an option that it does not take."""
    for named in re.findall(r"\bsparkwright ([a-z][^\n`'\",;|&()]*)", text):
        words = [word.rstrip(".:") for word in named.partition(" -- ")[0].split()]
        path = next((" ".join(words[:n]) for n in (3, 2, 1) if " ".join(words[:n]) in KNOWN), "")
        found = KNOWN.get(path)
        if isinstance(found, Parent) and words[1:2] and words[1] in found.subcommands:
            found = found.subcommand(words[1])
        if found is None:
            if words[0] in COMMANDS and named != _NO_COMMAND and re.fullmatch("[a-z-]+", "".join(words[1:2])):
                yield named
            continue
        taken = {
            name
            for one in found.get_params(click.Context(found))
            for name in (*one.opts, *one.secondary_opts)
        }
        stated = {word.partition("=")[0] for word in words if word.startswith("--")}
        if stated - {"--help"} - taken:
            yield named


def test_each_command_that_source_and_documents_name_exists() -> None:
    files = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "*.md", "build", "ci", ".github", "Makefile"],
        check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    texts = {name: (ROOT / name).read_bytes() for name in files if name and (ROOT / name).is_file()}
    found = {
        name: [*unknown(text.decode(errors="replace").replace("\\\n", " "))] for name, text in texts.items()
    }
    assert {name: commands for name, commands in found.items() if commands} == {}
    assert sum(text.count(b"sparkwright ") for text in texts.values()) > 300


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("'sparkwright lock bump 1.3.0' moves it", False),
        ("sparkwright store show", True),
        ("`sparkwright recipe new mine --from other`", True),
        ("sparkwright verify compare a b --levels 1", False),
        ("sparkwright verify compare a b --url c", True),
        ("sparkwright channel key show NAME", False),
    ],
)
def test_a_command_or_option_that_is_none_is_found(text: str, wrong: bool) -> None:  # noqa: FBT001
    assert bool([*unknown(text)]) is wrong
