"""``sparkwright channel``: promote wheels to channels, take them back, and verify channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparkwright.base.text import human_size
from sparkwright.cli.channel_key import key
from sparkwright.cli.channel_place import (
    now,
    open_place,
    policy_of,
    reading_options,
    signing_options,
    target_option,
)
from sparkwright.cli.globals import Group
from sparkwright.cli.output import print_json, printable
from sparkwright.cli.session import Session, run_read_only
from sparkwright.cli.tables import show_table
from sparkwright.publish import dist_folder
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.verification import WheelChoice

_NAME = click.argument("channel", metavar="NAME")
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group("channel", cls=Group)
def command() -> None:
    """Promote wheels to signed channels, take them back, and verify channels."""


command.add_command(key)


@command.command("promote")
@click.argument("wheels", metavar="WHEEL...", nargs=-1, required=True, type=_FILE)
@click.option("--to", "channel", required=True, metavar="NAME", help="Such as nightly, candidate or stable.")
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of evidence; evidence/ beside the wheels by default.",
)
@run_read_only
@signing_options
def promote(
    session: Session,
    *,
    publisher: ChannelPublisher,
    wheels: tuple[Path, ...],
    channel: str,
    evidence: Path | None,
) -> None:
    """List each WHEEL in a channel, if it has the evidence that the channel's policy requires."""
    from sparkwright.publish.candidate import gather
    from sparkwright.publish.evidence import FOLDER

    policy, before = policy_of(session, channel), publisher.read(channel)
    folder = evidence or dist_folder(session.checkout.folder).absolute() / FOLDER
    found = [
        gather(wheel.absolute(), channel, policy, folder, session.checkout.patchsets) for wheel in wheels
    ]
    state = [publisher.promote(channel, candidate, policy, now()) for candidate in found][-1]
    if before and before.state == state and not session.as_json:
        click.echo(f"{channel} lists {', '.join(wheel.name for wheel in wheels)} already")
    _show_change(session, publisher, state)


@command.command("rollback")
@_NAME
@click.option("--to", type=click.IntRange(min=1), metavar="N", help="The generation to go back to.")
@click.option("--reason", default="", help="Of the yank; readers see it.")
@run_read_only
@signing_options
def rollback(
    session: Session, *, publisher: ChannelPublisher, channel: str, to: int | None, reason: str
) -> None:
    """Take the content of an earlier generation of NAME as a new one, and yank what it lacks."""
    policy, reason = policy_of(session, channel), reason or f"taken back from {channel}"
    _show_change(session, publisher, publisher.rollback(channel, policy, now(), to=to, reason=reason))


@command.command("renew")
@_NAME
@run_read_only
@signing_options
def renew(session: Session, *, publisher: ChannelPublisher, channel: str) -> None:
    """Sign NAME again, with the same wheels, by the present key and with a new expiry."""
    _show_change(session, publisher, publisher.renew(channel, policy_of(session, channel), now()))


@command.command("prune")
@run_read_only
@signing_options
def prune(session: Session, *, publisher: ChannelPublisher) -> None:
    """Remove wheels and generations that channels keep no longer, by patchsets/channels.toml."""
    from sparkwright.publish.policy import POLICY_FILE, load_policies
    from sparkwright.publish.prune import Pruner

    report = Pruner(publisher, load_policies(session.checkout.patchsets / POLICY_FILE), now()).prune()
    if session.as_json:
        print_json({"dropped": report.dropped, "removed": report.removed, "kept": report.kept})
        return
    for channel, dropped in report.dropped.items():
        for name in dropped:
            click.echo(f"dropped  {name} from {channel}")
    for path, size in report.removed.items():
        click.echo(f"removed  {path} ({human_size(size)})")
    freed = human_size(sum(report.removed.values()))
    click.echo(f"pruned   {len(report.removed)} folders removed ({freed}), {report.kept} are kept")


@command.command("show")
@click.argument("channel", metavar="[NAME]", default="")
@click.option("--history", is_flag=True, help="Every generation of NAME that is kept, the newest first.")
@target_option
@reading_options
def show(*, channel: str, history: bool, target: str, offline: bool, as_json: bool) -> None:
    """Show the channels of a target, or the wheels of NAME; every digest is checked, and no signature."""
    from sparkwright.publish.channel import channel_names, require_channel_name
    from sparkwright.publish.channel import history as history_of
    from sparkwright.publish.repository import read_unverified
    from sparkwright.publish.trust import place_of

    del offline
    if history and not channel:
        raise click.UsageError("--history is of one channel: give its NAME.")
    place = open_place(Path(), target)
    names = [require_channel_name(channel)] if channel else channel_names(place)
    states = [read_unverified(place.read, name, place_of(place, name)).state for name in names]
    if history:
        states = list(history_of(place.read, states[0]))
    alone = channel and not history
    if as_json:
        described = [_described(state) for state in states]
        print_json(described[0] if alone else described)
    elif alone:
        written, expires = printable(states[0].written), printable(states[0].expires)
        click.echo(f"channel  {channel}, generation {states[0].generation} of {written}")
        click.echo(f"expires  {expires}")
        rows = [
            (
                file.filename, human_size(file.size), file.uploaded,
                "" if file.yanked is None else f"yanked: {file.yanked}",
            )
            for file in states[0].files
        ]  # fmt: skip
        show_table(("wheel", "size", "uploaded", ""), rows)
    else:
        changes = [
            (
                one.channel, str(one.generation), one.written, one.expires, _change(one),
                next((file.filename for file in one.offered), "none"),
            )
            for one in states
        ]  # fmt: skip
        show_table(("channel", "generation", "written", "expires", "change", "newest"), changes)


@command.command("verify")
@click.argument("place", metavar="URL|FOLDER")
@click.option("--wheel", type=_FILE, help="Verify that this file is a wheel of the channel.")
@click.option(
    "--requirements",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the newest for this machine, or that of --wheel, and its runtime to FILE, by digest.",
)
@reading_options
def verify(
    *, place: str, wheel: Path | None, requirements: Path | None, offline: bool, as_json: bool
) -> None:
    """Verify the channel at URL or in FOLDER, such as …/channels/stable.

    Of a folder every wheel is read, of an address the newest.
    Nothing is asked but that place: keys are those of the root that was pinned for it.
    """
    from platform import machine

    from sparkwright.base.digests import sha256_file
    from sparkwright.publish.folder_target import FolderTarget
    from sparkwright.publish.mirror import open_mirror
    from sparkwright.publish.offer import newest_fitting
    from sparkwright.publish.offer import requirements as requirements_of
    from sparkwright.publish.trust import default_trust
    from sparkwright.publish.verification import require_listed, verify_channel
    from sparkwright.store import storing, write_atomically
    from sparkwright.upstream import read_settings

    mirror, channel = open_mirror(place, read_settings(offline=offline))
    chosen: WheelChoice = "none" if wheel else "all" if isinstance(mirror, FolderTarget) else "newest"
    verified = verify_channel(mirror, channel, default_trust(), wheels=chosen)
    state, root = verified.state, verified.root
    listed = require_listed(state, wheel.name, sha256_file(wheel)) if wheel else None
    if requirements is not None:
        text = requirements_of(mirror, listed or newest_fitting(state, machine()))
        with storing(f"writing {requirements}", instead="name another file"):
            write_atomically(requirements, text)
    if as_json:
        told = {"channel": channel, "generation": state.generation, "digest": state.digest}
        told |= {"expires": state.expires, "signer": verified.signer, "root": root.version}
        names, read = ([file.filename for file in files] for files in (state.files, verified.wheels))
        print_json({**told, "wheels": names, "read": read})
        return
    click.echo(f"channel  {channel}, generation {state.generation}, signed by {verified.signer[:80]}")
    click.echo(f"root     version {root.version} of {root.written}")
    click.echo(f"expires  {state.expires}")
    if listed:
        click.echo(f"wheel    {listed.filename} is a wheel of {channel}")
    else:
        click.echo(f"wheels   {len(verified.wheels)} of {len(state.files)} read")
    if requirements is not None:
        click.echo(f"next     uv pip install --require-hashes -r {requirements}")


def _show_change(session: Session, publisher: ChannelPublisher, state: ChannelState) -> None:
    """Print the new generation *state* of a channel, and the next step."""
    from sparkwright.publish.trust import place_of

    place = place_of(publisher.target, state.channel)
    if session.as_json:
        print_json({**_described(state), "place": place})
        return
    click.echo(f"channel  {state.channel}, generation {state.generation}: {printable(_change(state))}")
    click.echo(f"expires  {state.expires}")
    click.echo(f"next     sparkwright channel verify {place}")
    click.echo(f"readers  sparkwright channel verify {place} --requirements FILE")


def _change(state: ChannelState) -> str:
    action = state.action
    return f"{action.kind} {f'to {action.to}: ' if action.to else ''}{action.detail}"


def _described(state: ChannelState) -> dict[str, Any]:
    from sparkwright.base.config import to_builtins

    return {**to_builtins(state), "digest": state.digest}
