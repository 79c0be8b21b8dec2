"""The entry point: the table of commands, loaded late, and the one place that reports errors."""

from __future__ import annotations

import gc
import importlib
import io
import itertools
import os
import sys
from collections.abc import Sequence

import click

from sparkwright import __version__
from sparkwright.base.errors import SparkwrightError
from sparkwright.cli.command import GLOBAL_OPTIONS, Group
from sparkwright.cli.output import colour, expect_json, json_expected, report, unforeseen

COMMANDS = {
    "wheel": "Build the wheel: fetch, merge, prove, assemble, audit, publish.",
    "merge": "Merge the patchset onto the pin or another release.",
    "audit": "Compare a wheel with upstream's and with the merge.",
    "status": "Show the pin, the carries with their proofs, and the wheels.",
    "doctor": "Check this machine, or that a recipe would start on it.",
    "serve": "Serve a recipe: install, start, warm up, report, stop.",
    "service": "Install a recipe as a service, upgrade or remove it.",
    "recipe": "List, show, check and write recipes of servers.",
    "verify": "Verify that a wheel's server serves as it should.",
    "report": "Verify, and write a signed report for the public table.",
    "rehearse": "Serve the merged Python on the CPU, and verify it.",
    "bisect": "Name the change that makes a build spec fail.",
    "nightly": "Follow upstream: merge, judge and build on what is new.",
    "carry": "Make, show, edit, refresh and prove carries.",
    "patchset": "Give a patchset its next revision.",
    "lock": "Check the lock, or move it to a release or commit.",
    "companion": "Compile FlashInfer's kernels ahead of time.",
    "publish": "Write a package index over the wheels in a folder.",
    "channel": "Promote wheels to signed channels, and verify channels.",
    "store": "Show what the store holds, verify and prune it.",
}

_HIDDEN = {"task", "worker"}
"""Commands that other machines start over ssh."""
_MODULES = {
    **dict.fromkeys(("merge", "patchset", "publish", "status", "wheel"), "build"),
    "companion": "audit",
    "task": "worker",
}
"""The modules of commands that share one; the others have one of their name, with a `command`."""

# Syntax trees and git's trees are many objects without a cycle, and Python looks for cycles after every
# 700 new ones: that takes longer than making them.
_COLLECT_EVERY = 100_000
# Exit statuses that shells report for SIGINT and SIGPIPE.
_INTERRUPTED = 130
_BROKEN_PIPE = 141


class _LateGroup(Group):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS.keys() | _HIDDEN:
            import difflib  # not for --help, which is as fast as its imports

            close = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"There is no command {cmd_name!r}.{hint}", ctx)
        module = importlib.import_module(f"sparkwright.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_command" if cmd_name in _MODULES else "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        with formatter.section("Options of most commands, behind their names"):
            formatter.write_dl([(", ".join(one.opts), str(one.help)) for one in GLOBAL_OPTIONS])


@click.group(
    cls=_LateGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="sparkwright")
def group() -> None:
    """Build, prove and publish patched vLLM wheels for DGX Spark."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    gc.set_threshold(_COLLECT_EVERY)
    if isinstance(sys.stdout, io.TextIOWrapper):  # noqa: TID251
        # A terminal of another encoding than UTF-8 lacks signs that reports have, such as a check mark.
        sys.stdout.reconfigure(errors="backslashreplace")  # noqa: TID251
    words = list(sys.argv[1:] if arguments is None else arguments)
    # A guess, for command lines that cannot be parsed: the word may be the value of another option.
    expect_json("--json" in itertools.takewhile(lambda word: word != "--", words))
    try:
        result = group.main(args=words, prog_name="sparkwright", standalone_mode=False, color=colour())
    except SparkwrightError as error:
        return report(error)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        said = str(error.__cause__) if isinstance(error.__cause__, KeyboardInterrupt) else ""
        next_step = said or "run the same command again: it continues from here"
        stopped = SparkwrightError("interrupted", next_step=next_step)
        return report(stopped, kind="Interrupted", code=_INTERRUPTED)
    except click.ClickException as error:
        return _report_usage(error)
    except SystemExit as ended:  # with 0 by a shell that asked for completions
        if ended.code:  # the reader of standard output has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # noqa: TID251
        return _BROKEN_PIPE if ended.code else 0
    except Exception as error:  # noqa: BLE001 - every error has to end in one clear line
        return report(unforeseen(error), kind="UnforeseenError")
    return result if isinstance(result, int) else 0


def _report_usage(error: click.ClickException) -> int:
    if not json_expected():
        error.show()
        return error.exit_code
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "sparkwright"
    wrong = SparkwrightError(error.format_message(), next_step=f"{command} --help")
    return report(wrong, kind="UsageError", code=error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
