"""``sparkwright channel list|log|diff|verify``: commands that only read, without a checkout."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.cli.channel_place import (
    default_folder,
    now,
    open_place,
    pinned_roots,
    reading_options,
    target_option,
    trust_option,
)
from sparkwright.cli.channel_show import described_result, described_state, newest_wheel, show_verified
from sparkwright.cli.globals import Command
from sparkwright.cli.output import print_json
from sparkwright.cli.tables import show_table
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.mirror import Mirror
from sparkwright.publish.target import Target
from sparkwright.publish.verification import VerifiedChannel


@click.command("list", cls=Command)
@target_option
@reading_options
def list_command(*, target: str, offline: bool, as_json: bool) -> None:
    """Show the channels of a target; nothing is verified."""
    del offline
    place = open_place(Path(), target)
    states = [present_state(place, name) for name in _names(place)]
    if as_json:
        print_json([described_state(state) for state in states])
        return
    rows = [
        (
            state.channel, str(state.generation), state.written, state.expires, state.status,
            str(sum(file.yanked is None for file in state.files)), newest_wheel(state),
        )
        for state in states
    ]  # fmt: skip
    show_table(("channel", "generation", "written", "expires", "status", "wheels", "newest"), rows)


@click.command("log", cls=Command)
@click.argument("channel", metavar="NAME")
@target_option
@reading_options
def log(*, channel: str, target: str, offline: bool, as_json: bool) -> None:
    """Show every generation of NAME, the newest first; each is verified by its successor's digest."""
    del offline
    states = list(_history(open_place(Path(), target), channel))
    if as_json:
        print_json([described_state(state) for state in states])
        return
    rows = [
        (
            str(state.generation), state.written, state.action.kind,
            f"to {state.action.to}: {state.action.detail}" if state.action.to else state.action.detail,
            state.digest[:12],
        )
        for state in states
    ]  # fmt: skip
    show_table(("generation", "written", "change", "of", "digest"), rows)


@click.command("diff", cls=Command)
@click.argument("left", metavar="NAME[@N]")
@click.argument("right", metavar="NAME[@N]")
@target_option
@reading_options
def diff(*, left: str, right: str, target: str, offline: bool, as_json: bool) -> None:
    """Show the wheels that two channels, or two generations of one, do not share."""
    del offline
    place = open_place(Path(), target)
    one, other = (_generation(place, name) for name in (left, right))
    before = {file.sha256: file for file in one.files}
    after = {file.sha256: file for file in other.files}
    rows = [("-", file.filename, "") for sha256, file in before.items() if sha256 not in after]
    rows += [("+", file.filename, "") for sha256, file in after.items() if sha256 not in before]
    rows += [
        ("yanked" if file.yanked is not None else "restored", file.filename, file.yanked or "")
        for sha256, file in after.items()
        if sha256 in before and before[sha256].yanked != file.yanked
    ]
    if as_json:
        print_json([{"change": change, "wheel": name, "reason": why} for change, name, why in rows])
    elif rows:
        show_table(("change", "wheel", "reason"), rows)
    else:
        click.echo(f"{left} and {right} list the same wheels")


@click.command("verify", cls=Command)
@click.argument("place", metavar="URL|FOLDER|WHEEL")
@click.option("--channel", default="", metavar="NAME", help="The channel, where PLACE names none.")
@click.option(
    "--from",
    "origin",
    default="",
    metavar="URL|FOLDER",
    help="Of a WHEEL: the copy of the channel to compare with.",
)
@click.option(
    "--wheels",
    type=click.Choice(["all", "newest", "none"]),
    help="Wheels whose bytes are read; all of a folder, the newest of an address by default.",
)
@click.option(
    "--requirements",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write WHEEL, or the newest for this machine, and its runtime to FILE, by version and digest.",
)
@trust_option
@reading_options
def verify(
    *,
    place: str,
    channel: str,
    origin: str,
    wheels: str | None,
    requirements: Path | None,
    trust: Path | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Verify a channel at URL or in FOLDER with everything that it names, or that WHEEL is one of it.

    Nothing is asked but that place: keys are those of the pinned roots.
    """
    from sparkwright.publish.mirror import FolderMirror, open_mirror
    from sparkwright.publish.seen import default_memory
    from sparkwright.publish.verification import VerifyChannelOptions, verify_channel
    from sparkwright.upstream import read_settings

    wheel = Path(place) if Path(place).is_file() else None
    if wheel is not None and not origin:
        origin = str(default_folder(Path()))
    mirror, named = open_mirror(origin if wheel else place, read_settings(offline=offline))
    if channel and named and channel != named:
        raise ConfigError(f"{place} is of channel {named}", because=f"--channel {channel} was given")
    names = [channel or named] if channel or named else _names_at(mirror)
    default = "all" if isinstance(mirror, FolderMirror) else "newest"
    options = VerifyChannelOptions(
        wheels="none" if wheel else wheels or default,  # type: ignore[arg-type] # click's choices
        named_root=trust is not None,
    )
    roots, memory = pinned_roots(trust), default_memory()
    verified = [
        verify_channel(mirror, name, roots, memory=memory, now=now(), options=options) for name in names
    ]
    if wheel is not None:
        _require_in_one(wheel, verified)
    links = _write_requirements(mirror, verified, wheel, requirements) if requirements else ""
    if as_json:
        print_json([described_result(one) for one in verified])
        return
    for one in verified:
        show_verified(one, of_channel=wheel is None)
    if wheel is not None:
        click.echo(f"wheel    {wheel.name} is a wheel of {', '.join(one.state.channel for one in verified)}")
    if requirements is not None:
        install = ("uv", "pip", "install", "--require-hashes", "--find-links", links, "-r", str(requirements))
        click.echo(f"next     {shlex.join(install)}")


def _write_requirements(
    mirror: Mirror, verified: Sequence[VerifiedChannel], wheel: Path | None, path: Path
) -> str:
    """Write what to install of the one verified channel: pip and uv then refuse any other bytes.

    That is the file *wheel* of it, or the newest one for this machine.

    Returns:
        Where they find the wheel: a page, or the folder that it is in.

    Raises:
        ConfigError: there are several channels.
        UnknownNameError: it has no wheel for this machine, or that no locked runtime.
        TamperedError: the runtime's bytes are not those that were signed.
    """
    from platform import machine

    from sparkwright.base.digests import sha256_file
    from sparkwright.publish.mirror import FolderMirror
    from sparkwright.publish.offer import newest_fitting, signed_runtime
    from sparkwright.store import storing, write_atomically

    if len(verified) != 1:
        raise ConfigError("--requirements is of one channel", next_step="name it, such as …/channels/stable")
    state = verified[0].state
    file = (state.find(sha256_file(wheel)) if wheel else None) or newest_fitting(state, machine())
    data = signed_runtime(mirror, file)
    with storing(f"writing {path}", instead="name another file"):
        write_atomically(path, data)
    if isinstance(mirror, FolderMirror):  # uv reads no page of a folder
        return str(mirror.folder / file.folder)
    return f"{mirror.address}/channels/{state.channel}/simple/{file.project}/"


def _require_in_one(wheel: Path, verified: Sequence[VerifiedChannel]) -> None:
    """Refuse a wheel that the one channel given does not list; of several, one has to."""
    from sparkwright.base.digests import sha256_file
    from sparkwright.publish.verification import require_listed

    sha256 = sha256_file(wheel)
    states = [one.state for one in verified]
    fitting = [state for state in states if state.find(sha256)] or states[:1]
    for state in fitting:
        require_listed(state, wheel.name, sha256)


def _names(target: Target) -> list[str]:
    from sparkwright.publish.channel import POINTER

    paths = [path.split("/") for path in target.sizes("channels")]
    return sorted(parts[1] for parts in paths if parts[2:] == [POINTER])


def _names_at(mirror: Mirror) -> list[str]:
    from sparkwright.publish.folder_target import FolderTarget
    from sparkwright.publish.mirror import FolderMirror

    names = _names(FolderTarget(mirror.folder)) if isinstance(mirror, FolderMirror) else []
    if not names:
        raise UnknownNameError(
            f"{mirror.address} names no channel",
            next_step="give one, such as …/channels/stable, or --channel stable",
        )
    return names


def present_state(target: Target, channel: str) -> ChannelState:
    """Return the present generation of *channel*; no signature is verified."""
    return next(_history(target, channel))


def _history(target: Target, channel: str) -> Iterator[ChannelState]:
    """Return the generations of *channel*, the newest first; signatures are not verified."""
    from sparkwright.publish.channel import require_channel_name
    from sparkwright.publish.history import generations_of
    from sparkwright.publish.repository import read_unverified

    def read(path: str) -> bytes | None:
        stored = target.read(path)
        return stored.data if stored else None

    where = target.url(f"channels/{require_channel_name(channel)}")
    return generations_of(read, read_unverified(read, channel, where).state)


def _generation(target: Target, name: str) -> ChannelState:
    channel, _, number = name.partition("@")
    for state in _history(target, channel):
        if not number or str(state.generation) == number:
            return state
    raise UnknownNameError(f"there is no generation {name}", next_step=f"sparkwright channel log {channel}")
