"""``sparkwright agent``."""

from __future__ import annotations

from pathlib import Path

import click

from sparkwright.cli.verify import require_libraries


@click.command("agent")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.pass_context
def command(context: click.Context, /, *, folder: Path) -> None:
    """Judge a wheel for a bisection on another machine, which starts this over ssh.

    Wheels, environments and runs are kept in FOLDER. Requests come from standard input, and with its end the
    agent ends everything that it started.
    """
    require_libraries()
    from sparkwright.search.agent import serve

    context.exit(serve(folder, _say))


def _say(line: bytes) -> None:
    click.echo(line, nl=False)
