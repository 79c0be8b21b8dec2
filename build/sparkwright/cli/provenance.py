"""``sparkwright provenance``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sparkwright.cli.globals import Command, takes
from sparkwright.cli.output import print_json
from sparkwright.publish.companion_provenance import provenance_of
from sparkwright.publish.provenance import BUILDER, SUFFIX
from sparkwright.store import storing, write_atomically


@click.command("provenance", cls=Command)
@click.argument("wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--builder", default=BUILDER, show_default=True, help="URI of the machine or service that built it."
)
@click.option("--write", is_flag=True, help=f"Write it beside the wheel, as WHEEL{SUFFIX}.")
@takes("as_json")
def command(*, wheel: Path, builder: str, write: bool, as_json: bool) -> None:
    """Show the SLSA provenance of WHEEL: an in-toto statement of what it was made from.

    It is unsigned and repeats what the wheel states; 'sparkwright audit', or 'sparkwright companion audit',
    checks that.
    """
    del as_json
    data = provenance_of(wheel, builder=builder)
    if not write:
        print_json(json.loads(data))
        return
    path = wheel.with_name(wheel.name + SUFFIX)
    with storing(f"writing {path}"):
        write_atomically(path, data)
    print_json({"statement": str(path)})
