"""Channels as text and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from sparkwright.base.text import human_size
from sparkwright.cli.output import print_json
from sparkwright.cli.tables import show_table
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.planned import PlannedTarget
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.target import Target
from sparkwright.publish.verification import VerifiedChannel


def described_state(state: ChannelState) -> dict[str, Any]:
    """Return *state* as JSON-ready data."""
    from sparkwright.base.config import to_builtins

    return {**to_builtins(state), "digest": state.digest}


def described_result(verified: VerifiedChannel) -> dict[str, Any]:
    """Return a verification as JSON-ready data."""
    return {
        "channel": verified.state.channel,
        "generation": verified.state.generation,
        "digest": verified.state.digest,
        "expires": verified.state.expires,
        "signer": verified.signer,
        "publisher": verified.root.publisher,
        "root": verified.root.version,
        "wheels": [file.filename for file in verified.state.files],
        "read": [file.filename for file in verified.wheels],
    }


def show_verified(verified: VerifiedChannel, *, of_channel: bool) -> None:
    """Print a verification; the number of wheels only if it is *of_channel*, not of one wheel."""
    state, root = verified.state, verified.root
    click.echo(f"channel  {state.channel}, generation {state.generation}, signed by {verified.signer[:80]}")
    click.echo(f"root     version {root.version} of {root.written}, publisher {root.publisher}")
    click.echo(f"expires  {state.expires}")
    if of_channel:
        click.echo(f"wheels   {len(verified.wheels)} of {len(state.files)} read, every page and statement")


def newest_wheel(state: ChannelState) -> str:
    """Return the name of the newest wheel that is not yanked."""
    from sparkwright.publish.channel import newest_first

    return next((file.filename for file in newest_first(state.files) if file.yanked is None), "none")


def show_wheels(state: ChannelState) -> None:
    """Print the wheels of *state*, the newest first."""
    from sparkwright.publish.channel import newest_first

    rows = [
        (
            file.filename,
            human_size(file.size),
            file.uploaded,
            "" if file.yanked is None else f"yanked: {file.yanked}",
        )
        for file in newest_first(state.files)
    ]
    show_table(("wheel", "size", "uploaded", ""), rows)


def show_change(publisher: ChannelPublisher, state: ChannelState, *, as_json: bool) -> None:
    """Print the new generation *state* of a channel, and the next step; of a dry run, the planned writes."""
    target = publisher.target
    if isinstance(target, PlannedTarget):
        _show_plan(target, state, as_json=as_json)
        return
    signer = publisher.keys(state.channel).signer_name
    if as_json:
        index = target.url(f"channels/{state.channel}/simple")
        print_json({**described_state(state), "signer": signer, "index": index})
        return
    click.echo(
        f"channel  {state.channel}, generation {state.generation}: {state.action.kind} {state.action.detail}"
    )
    click.echo(f"signed   {signer}")
    click.echo(f"expires  {state.expires}")
    click.echo(f"newest   {newest_wheel(state)}")
    show_next(target, state.channel)


def show_next(target: Target, channel: str) -> None:
    """Print how to verify *channel*, and what its readers install."""
    verify = f"sparkwright channel verify {target.url(f'channels/{channel}')}"
    click.echo(f"next     {verify}")
    click.echo(f"readers  {verify} --requirements FILE")


def _show_plan(target: PlannedTarget, state: ChannelState, *, as_json: bool) -> None:
    """Print the writes of a dry run, in order; digests in paths that contain the time will be others."""
    if as_json:
        planned = [asdict(write) for write in target.writes]
        print_json({"channel": state.channel, "generation": state.generation, "planned": planned})
        return
    for write in target.writes:
        click.echo(f"{write.change:8} {write.path} ({human_size(write.size)})")
    told = f"generation {state.generation}, {len(target.writes)} files"
    click.echo(f"planned  {state.channel}, {told}; a dry run: nothing was written")
