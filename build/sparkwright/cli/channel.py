"""``sparkwright channel``: promote wheels to channels, take them back, and verify channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparkwright.cli import channel_read
from sparkwright.cli.channel_key import key
from sparkwright.cli.channel_place import (
    make_publisher,
    now,
    open_place,
    policy_of,
    promote_wheel,
    signing_options,
)
from sparkwright.cli.channel_prune import prune
from sparkwright.cli.channel_show import described_state, show_change, show_next, show_wheels
from sparkwright.cli.globals import Group
from sparkwright.cli.output import print_json
from sparkwright.cli.session import Session, run_read_only
from sparkwright.publish.channel import StatusMarker


@click.group("channel", cls=Group)
def command() -> None:
    """Promote wheels to signed channels, take them back, and verify channels."""


for one in (key, channel_read.list_command, channel_read.log, channel_read.diff, channel_read.verify, prune):
    command.add_command(one)


@command.command("promote")
@click.argument("wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--to", "channel", required=True, metavar="NAME", help="Such as nightly, candidate or stable.")
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of evidence; evidence/ beside the wheels by default.",
)
@signing_options
@run_read_only
def promote(session: Session, *, wheel: Path, channel: str, evidence: Path | None, **options: Any) -> None:
    """List WHEEL in a channel, if it has the evidence that the channel's policy requires."""
    publisher = make_publisher(session.checkout.folder, **options)
    before = publisher.read(channel)
    state = promote_wheel(session, publisher, wheel.absolute(), channel, evidence)
    if before and before.state == state and not session.as_json:
        click.echo(f"{channel} lists {wheel.name} already")
    show_change(publisher, state, as_json=session.as_json)


@command.command("rollback")
@click.argument("channel", metavar="NAME")
@click.option("--to", type=click.IntRange(min=1), metavar="N", help="The generation to go back to.")
@click.option("--reason", default="", help="Of the yank; clients show it.")
@signing_options
@run_read_only
def rollback(session: Session, *, channel: str, to: int | None, reason: str, **options: Any) -> None:
    """Take the content of an earlier generation of NAME as a new one, and yank what it lacks."""
    publisher = make_publisher(session.checkout.folder, **options)
    policy = policy_of(session, channel)
    reason = reason or f"taken back from {channel}"
    show_change(
        publisher, publisher.rollback(channel, policy, now(), to=to, reason=reason), as_json=session.as_json
    )


@command.command("renew")
@click.argument("channel", metavar="NAME")
@signing_options
@run_read_only
def renew(session: Session, *, channel: str, **options: Any) -> None:
    """Sign NAME again, with the same wheels, by the present key and with a new expiry."""
    publisher = make_publisher(session.checkout.folder, **options)
    show_change(
        publisher, publisher.renew(channel, policy_of(session, channel), now()), as_json=session.as_json
    )


@command.command("status")
@click.argument("channel", metavar="NAME")
@click.option(
    "--set",
    "status",
    type=click.Choice(["active", "archived", "deprecated", "quarantined"]),
    help="Set the status of its projects (PEP 792); a quarantined channel offers no file.",
)
@click.option("--reason", default="", help="For that status.")
@signing_options
@run_read_only
def status(
    session: Session, *, channel: str, status: StatusMarker | None, reason: str, **options: Any
) -> None:
    """Show the present generation of NAME, or set its status."""
    if status is not None:
        publisher = make_publisher(session.checkout.folder, **options)
        policy = policy_of(session, channel)
        show_change(
            publisher, publisher.set_status(channel, status, reason, policy, now()), as_json=session.as_json
        )
        return
    target = open_place(session.checkout.folder, options["target"])
    state = channel_read.present_state(target, channel)
    if session.as_json:
        print_json(described_state(state))
        return
    click.echo(f"channel  {state.channel}, generation {state.generation} of {state.written}")
    click.echo(f"expires  {state.expires}")
    click.echo(f"status   {state.status}{f': {state.reason}' if state.reason else ''}")
    show_wheels(state)
    show_next(target, channel)
