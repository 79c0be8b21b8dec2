"""The entry point: the table of commands, loaded late, and the one place that reports errors."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import TYPE_CHECKING

import click

from sparkwright import __version__
from sparkwright.errors import SparkwrightError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "plan": "Show the steps to a wheel, and which results the store already holds.",
    "merge": "Merge the patchset onto the pin, or onto another release, and report each carry.",
    "wheel": "Build the wheel: fetch, merge, prove, assemble, audit, publish.",
    "audit": "Check a wheel against upstream's own and against what was merged.",
    "publish": "Write a static package index over the wheels in a folder.",
    "status": "Show the pin, the carries with their outcomes and proofs, and what is in dist/.",
    "carry": "Make, show, edit, refresh and prove carries.",
    "lock": "Check upstream.lock against the release itself, or move it to another release.",
    "doctor": "Check that this machine has what is needed.",
}


class _LateGroup(click.Group):
    """Knows its commands by name and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"sparkwright.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_LateGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sparkwright")
def group() -> None:
    """Build, prove and publish patched vLLM wheels for DGX Spark."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    try:
        result = group.main(args=words, prog_name="sparkwright", standalone_mode=False)
    except SparkwrightError as error:
        _report(error, as_json=as_json)
        return error.exit_code
    except click.exceptions.Abort:
        click.echo("interrupted; run the same command again to go on from here", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return result if isinstance(result, int) else 0


def _report(error: SparkwrightError, *, as_json: bool) -> None:
    if as_json:
        described = {
            "kind": type(error).__name__,
            "what": error.what,
            "because": error.because,
            "next-step": error.next_step,
            "exit-code": error.exit_code,
        }
        click.echo(json.dumps({"error": described}, indent=1))
        return
    click.secho(f"error: {error.what}", fg="red", bold=True, err=True)
    if error.because:
        click.echo(f"  because  {error.because}", err=True)
    if error.next_step:
        click.echo(f"  next     {error.next_step}", err=True)


if __name__ == "__main__":
    sys.exit(main())
