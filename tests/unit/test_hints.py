"""Hints keep the series, and name commands that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sparkwright.base.errors import ConfigError
from sparkwright.cli.globals import Command
from sparkwright.cli.main import COMMANDS, group
from sparkwright.cli.verify import _SUBCOMMANDS
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


def test_each_command_that_the_source_names_exists() -> None:
    groups = {name.partition(" ")[0] for name in KNOWN if " " in name}
    named = re.compile(r"[\"'`]sparkwright ([a-z]+)(?: ([a-z][a-z-]+))?")
    found = set()
    for path in (ROOT / "build" / "sparkwright").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "next_step" in line or "show_next" in line or "next  " in line or "'sparkwright" in line:
                found |= {match.groups() for match in named.finditer(line)}
    assert len(found) > 20
    for first, second in found:
        assert first in COMMANDS, first
        if first in groups and second:
            assert any(name.startswith(f"{first} {second}") for name in KNOWN), (first, second)
        if first == "verify" and second:
            assert second in _SUBCOMMANDS, second
