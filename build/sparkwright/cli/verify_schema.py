"""``sparkwright verify schema``."""

from __future__ import annotations

import click

from sparkwright.cli.output import print_json


@click.command("schema")
def command() -> None:
    """Print the JSON schema of verdict.json."""
    from sparkwright.cli.verify import require_libraries

    require_libraries()
    from sparkwright.verify.export.schema import verdict_schema

    print_json(verdict_schema())
