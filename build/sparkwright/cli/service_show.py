"""The output of ``sparkwright service``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sparkwright.cli.output import print_json
from sparkwright.serve.service import InstallPlan, ServicePlaces


def show_plan(plan: InstallPlan, places: ServicePlaces, *, as_json: bool) -> None:
    """Print every file and command of *plan*; the key itself is never shown."""
    if as_json:
        files = [
            {"path": str(file.path), "mode": f"{file.mode:04o}", "text": file.text} for file in plan.files
        ]
        print_json({"files": files, "commands": [*plan.commands, *plan.afterwards], "key": str(places.key)})
        return
    for file in plan.files:
        click.secho(f"# {file.path}  (mode {file.mode:04o})", bold=True)
        click.echo(file.text)
    click.secho(f"# {places.key}  (mode 0600)", bold=True)
    click.echo("the key of VLLM_API_KEY, or a random one; made once and never shown here\n")
    for words in (*plan.commands, *plan.afterwards):
        click.echo(f"$ {' '.join(words)}")


def show_installed(places: ServicePlaces, *, made: bool, started: bool, as_json: bool) -> None:
    """Print the files of an installed service, and the next command."""
    if as_json:
        files = {
            name: str(getattr(places, name)) for name in ("unit", "compose", "key", "variables", "state")
        }
        print_json(
            {"name": places.name, "scope": places.scope, "started": started, "key-made": made, **files}
        )
        return
    click.echo(f"unit     {places.unit}")
    click.echo(f"compose  {places.compose}")
    click.echo(f"key      {places.key}, {'made now' if made else 'as it was'}")
    flag = " --user" if places.scope == "user" else ""
    if started:
        click.echo(
            f"serving  sparkwright service status {places.name}; journalctl{flag} -u {places.unit_name} -f"
        )
    if places.scope == "user":
        click.echo("next     loginctl enable-linger, so that it starts at boot, without a login")


def show_change(places: ServicePlaces, *, as_json: bool) -> None:
    """Print the wheels of a service after a change."""
    from sparkwright.serve.service import load_record

    record = load_record(places)
    shown = {
        "name": record.name,
        "wheel": record.wheels.get(record.current, ""),
        "previous": record.wheels.get(record.previous, ""),
    }
    if as_json:
        print_json(shown)
        return
    for key, value in shown.items():
        click.echo(f"{key:<9} {value}")


def show_status(services: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print the state of *services*."""
    if as_json:
        print_json(services)
        return
    if not services:
        click.echo("no service is installed; sparkwright service install RECIPE")
    for number, service in enumerate(services):
        if number:
            click.echo("")
        for key, value in service.items():
            click.echo(f"{key:<9} {value}")


def show_removed(removed: Sequence[Path], kept: Sequence[Path], *, as_json: bool) -> None:
    """Print the files of a removed service, and those that stay."""
    if as_json:
        print_json({"removed": [str(path) for path in removed], "kept": [str(path) for path in kept]})
        return
    for path in removed:
        click.echo(f"removed  {path}")
    for path in kept:
        click.echo(f"kept     {path}")
