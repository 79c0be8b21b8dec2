"""``sparkwright verify export``."""

from __future__ import annotations

from pathlib import Path

import click

from sparkwright.base.text import human_size
from sparkwright.cli.output import print_json

# Of `verify.export.formats`, which needs libraries of an extra.
_FORMATS = ("prometheus", "aiperf", "guidellm", "llama-benchy", "csv", "junit", "json")


@click.command("export")
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--format", "form", type=click.Choice(_FORMATS), required=True, help="The form to write.")
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    help="The file; for aiperf a folder; for llama-benchy its name ends with .md, .csv or .json.",
)
@click.option("--cell", "cells", multiple=True, help="Only cells with this in their name (aiperf, guidellm).")
@click.option("--definitions", is_flag=True, help="Print how each field is computed, and where it differs.")
@click.option("--json", "as_json", is_flag=True, help="Print the files as JSON.")
def command(
    *, run: Path, form: str, target: Path, cells: tuple[str, ...], definitions: bool, as_json: bool
) -> None:
    """Write the finished RUN in the form of another program.

    prometheus is a text file for node-exporter's textfile collector. aiperf and guidellm are those programs'
    summaries, a cell each, with the definition of every field. llama-benchy needs a run with --protocol.
    """
    from sparkwright.cli.verify import require_libraries

    require_libraries()
    from sparkwright.verify.export.formats import ExportRequest, export_run

    files = export_run(run, ExportRequest(form=form, target=target, cells=cells))
    if as_json:
        print_json({"files": [{"path": str(path), "size": path.stat().st_size} for path in files]})
        return
    for path in files:
        click.echo(f"{path}  {human_size(path.stat().st_size)}")
    if definitions:
        for name, text in _definitions(form).items():
            click.echo(f"\n{name}\n  {text}")


def _definitions(form: str) -> dict[str, str]:
    from sparkwright.verify.export.definitions import AIPERF, GUIDELLM, OWN, told
    from sparkwright.verify.protocol.figures import DEFINITIONS

    return {"aiperf": told(AIPERF), "guidellm": told(GUIDELLM), "llama-benchy": DEFINITIONS}.get(
        form, dict(OWN)
    )
