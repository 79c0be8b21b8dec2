"""``sparkwright patchset``: give a patchset its next revision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sparkwright.carries.patchset import with_next_revision
from sparkwright.cli.output import print_json
from sparkwright.cli.session import Session, common_options, run_read_only
from sparkwright.pipeline.options import DEFAULT_PATCHSET
from sparkwright.store import write_atomically

if TYPE_CHECKING:
    from sparkwright.carries.patchset import BuildSpec

BUMP = "sparkwright patchset bump"


@click.group("patchset")
def command() -> None:
    """Count a patchset's revisions, which order the wheels of one release."""


@command.command("bump")
@click.argument("name", default=DEFAULT_PATCHSET)
@common_options
@run_read_only
def bump(session: Session, *, name: str) -> None:
    """Give NAME its next revision, if the pin or a carry changed since the newest one; comments stay."""
    path = session.checkout.root / "patchsets" / f"{name}.toml"
    old = session.checkout.build_spec(name)
    text = path.read_text(encoding="utf-8")
    written = with_next_revision(text, old)
    if written != text:
        write_atomically(path, written.encode())
    new = session.checkout.build_spec(name)
    if session.as_json:
        print_json({"patchset": name, "revision": new.revision, "digest": new.content, "was": old.revision})
    elif old.revision:
        click.echo(f"nothing changed since revision {old.revision} of {name}")
    else:
        click.echo(f"revision {new.revision} of {name}, written to {path}")
        click.echo("next     sparkwright wheel")


def told_revision(spec: BuildSpec) -> str:
    """Return the revision as text, with the next step if there is none."""
    if spec.revision:
        return str(spec.revision)
    changed = (
        f"the pin or a carry changed since {spec.released.revision}" if spec.released else "there was none"
    )
    return f"none yet ({changed}): '{BUMP} {spec.patchset}' gives it the next, until then wheels have 0"
