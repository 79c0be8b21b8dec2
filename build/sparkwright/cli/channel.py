"""``sparkwright channel``: promote wheels to channels, take them back, and verify channels."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from platform import machine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.base.text import human_size
from sparkwright.cli.command import Group, Part, Result, Table
from sparkwright.cli.options import FILE_TYPE, FOLDER_TYPE, PATH_TYPE, reading_options, together
from sparkwright.cli.session import Session, run_read_only
from sparkwright.publish.channel import CHANNELS, ChannelState, channel_names, require_channel_name
from sparkwright.publish.channel import history as history_of
from sparkwright.publish.evidence import (
    FOLDER,
    POLICY_FILE,
    ChannelPolicy,
    gather,
    load_policies,
    load_policy,
)
from sparkwright.publish.index import dist_folder
from sparkwright.publish.keys import ChannelKeys, ChannelRoot, load_publisher, published_root, rotate_key
from sparkwright.publish.places import open_mirror, open_target
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.prune import Pruner
from sparkwright.publish.reader import WheelChoice, newest_fitting, require_listed, verify_channel
from sparkwright.publish.reader import requirements as requirements_of
from sparkwright.publish.release import pages_of, plan_release, read_forge, record_release
from sparkwright.publish.repository import read_unverified
from sparkwright.publish.target import FolderTarget, Target
from sparkwright.publish.trust import default_trust, place_of
from sparkwright.store.disk import storing, write_atomically
from sparkwright.upstream.network import read_settings

R = TypeVar("R")

_NAME = click.argument("channel", metavar="NAME")


_TARGET = click.option(
    "--target",
    default="",
    envvar="SPARKWRIGHT_TARGET",
    metavar="ADDRESS",
    help="A folder, file:// or s3://; the folder published/ beside the wheels by default.",
)
_ADOPT = click.option(
    "--adopt",
    is_flag=True,
    help="Build on a channel that no trusted key signed, or of a date to come, once you looked at it.",
)


def _signing(function: Callable[..., R]) -> Callable[..., R]:
    """Add ``--target`` and ``--adopt``; *function* gets a ``publisher`` in their place."""

    @functools.wraps(function)
    def wrapper(session: Session, *, target: str, adopt: bool, **arguments: Any) -> R:
        publisher = ChannelPublisher(_open_place(session.checkout.folder, target), default_trust(), adopt)
        return function(session, publisher=publisher, **arguments)

    return together(_TARGET, _ADOPT)(wrapper)


def _open_place(root: Path, address: str) -> Target:
    """Return the target at *address*, by default the folder ``published/`` beside the wheels."""
    return open_target(address or str(dist_folder(root).absolute() / "published"))


def _policy_of(session: Session, channel: str) -> ChannelPolicy:
    """Return the policy of *channel* in the checkout; see `load_policy`."""
    return load_policy(session.checkout.patchsets / POLICY_FILE, require_channel_name(channel))


@click.group("channel", cls=Group)
def command() -> None:
    """Promote wheels to signed channels, take them back, and verify channels."""


@command.command("promote")
@click.argument("wheels", metavar="WHEEL...", nargs=-1, required=True, type=FILE_TYPE)
@click.option("--to", "channel", required=True, metavar="NAME", help="Such as nightly, candidate or stable.")
@run_read_only
@_signing
def promote(
    session: Session, *, publisher: ChannelPublisher, wheels: tuple[Path, ...], channel: str
) -> Result:
    """List each WHEEL in a channel, if it has the evidence that the channel's policy requires."""
    policy, before = _policy_of(session, channel), publisher.read(channel)
    evidence, patchsets = dist_folder(session.checkout.folder).absolute() / FOLDER, session.checkout.patchsets
    found = [gather(wheel.absolute(), channel, policy, evidence, patchsets) for wheel in wheels]
    state = [publisher.promote(channel, candidate, policy, datetime.now(UTC)) for candidate in found][-1]
    if before and before.state == state:
        return _changed(publisher, state, f"{channel} lists {', '.join(one.name for one in wheels)} already")
    return _changed(publisher, state)


@command.command("rollback")
@_NAME
@click.option("--to", type=click.IntRange(min=1), metavar="N", help="The generation to go back to.")
@click.option("--reason", default="", help="Of the yank; readers see it.")
@run_read_only
@_signing
def rollback(
    session: Session, *, publisher: ChannelPublisher, channel: str, to: int | None, reason: str
) -> Result:
    """Take the content of an earlier generation of NAME as a new one, and yank what it lacks."""
    policy, reason = _policy_of(session, channel), reason or f"taken back from {channel}"
    return _changed(publisher, publisher.rollback(channel, policy, datetime.now(UTC), to=to, reason=reason))


@command.command("renew")
@_NAME
@run_read_only
@_signing
def renew(session: Session, *, publisher: ChannelPublisher, channel: str) -> Result:
    """Sign NAME again, with the same wheels, by the present key and with a new expiry."""
    return _changed(publisher, publisher.renew(channel, _policy_of(session, channel), datetime.now(UTC)))


@command.command("prune")
@run_read_only
@_signing
def prune(session: Session, *, publisher: ChannelPublisher) -> Result:
    """Remove wheels and generations that channels keep no longer, by patchsets/channels.toml."""
    report = Pruner(
        publisher, load_policies(session.checkout.patchsets / POLICY_FILE), datetime.now(UTC)
    ).prune()
    freed = human_size(sum(report.removed.values()))
    return Result(
        {"dropped": report.dropped, "removed": report.removed, "kept": report.kept},
        [
            *(("dropped", f"{name} from {one}") for one, names in report.dropped.items() for name in names),
            *(("removed", f"{path} ({human_size(size)})") for path, size in report.removed.items()),
            ("pruned", f"{len(report.removed)} folders removed ({freed}), {report.kept} are kept"),
        ],
    )


@command.command("release")
@click.argument("folder", type=FOLDER_TYPE)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=FILE_TYPE)
@click.option("--tag", required=True, help="The release's tag.")
@click.option("--commit", required=True, help="What the tag is made of, if there is none.")
@click.option(
    "--dry-run", is_flag=True, help="Show what would be sent, and where to; send and change nothing."
)
@reading_options
def release(
    *, folder: Path, files: tuple[Path, ...], tag: str, commit: str, dry_run: bool, offline: bool
) -> Result:
    """Send the wheels of the target in FOLDER to a release of its forge, with FILEs such as the tool's wheel.

    FOLDER is a checkout of the branch that holds the channels. Its wheels become assets, and leave files that
    say where they are; the index in FOLDER/simple is written over them. Commit and push FOLDER afterwards.
    Repository and token are those in GITHUB_REPOSITORY and GITHUB_TOKEN.
    """
    if offline and not dry_run:
        raise ConfigError(
            f"release {tag} was not made", because="the network is off", next_step="run it without --offline"
        )
    forge = read_forge()
    with tempfile.TemporaryDirectory(prefix="sparkwright-") as scratch:
        plan = plan_release(folder, tag, forge, files, Path(scratch))
        pages = pages_of(folder, plan)
        if not dry_run:
            if plan.assets:
                forge.send(tag, commit, plan.assets)
            record_release(folder, plan)
    assets = [(one.name, one.size, one.sha256, one.url) for one in plan.assets]
    listed = [*assets, *((path, len(data), sha256_bytes(data), "pages") for path, data in pages.items())]
    size = human_size(sum(one.size for one in plan.assets))
    return Result(
        {
            "tag": tag,
            "files": [dict(zip(("name", "size", "sha256", "to"), one, strict=True)) for one in listed],
        },
        [
            Table(("file", "bytes", "SHA-256", "to"), [tuple(map(str, one)) for one in listed]),
            ("release", f"{tag}: {len(assets)} assets, {size}{', not sent: --dry-run' * dry_run}"),
        ],
    )


@command.command("show")
@click.argument("channel", metavar="[NAME]", default="")
@click.option("--history", is_flag=True, help="Every generation of NAME that is kept, the newest first.")
@_TARGET
@reading_options
def show(*, channel: str, history: bool, target: str, offline: bool) -> Result:
    """Show the channels of a target, or the wheels of NAME; every digest is checked, and no signature."""
    del offline
    if history and not channel:
        raise click.UsageError("--history is of one channel: give its NAME.")
    place = _open_place(Path(), target)
    names = [require_channel_name(channel)] if channel else channel_names(place)
    states = [read_unverified(place.read, name, place_of(place, name)).state for name in names]
    if channel and not history:
        (state,) = states
        wheels = [
            (one.filename, human_size(one.size), one.uploaded, f"yanked: {one.yanked}" if one.yanked else "")
            for one in state.files
        ]
        told = [("channel", f"{channel}, generation {state.generation} of {state.written}")]
        told += [("expires", state.expires)]
        return Result(_described(state), [*told, Table(("wheel", "size", "uploaded", ""), wheels)])
    if history:
        states = list(history_of(place.read, states[0]))
    rows = [
        (
            one.channel, str(one.generation), one.written, one.expires, _change(one),
            next((file.filename for file in one.offered), "none"),
        )
        for one in states
    ]  # fmt: skip
    headings = ("channel", "generation", "written", "expires", "change", "newest")
    shown = Table(headings, rows) if rows else f"there is no channel at {place.url(CHANNELS)}"
    return Result([_described(state) for state in states], [shown])


@command.command("verify")
@click.argument("place", metavar="URL|FOLDER")
@click.option("--wheel", type=FILE_TYPE, help="Verify that this file is a wheel of the channel.")
@click.option(
    "--requirements",
    type=PATH_TYPE,
    metavar="FILE",
    help="Write the newest for this machine, or that of --wheel, and its runtime to FILE, by digest.",
)
@reading_options
def verify(*, place: str, wheel: Path | None, requirements: Path | None, offline: bool) -> Result:
    """Verify the channel at URL or in FOLDER, such as …/channels/stable.

    Of a folder every wheel is read, of an address the newest.
    Nothing is asked but that place: keys are those of the root that was pinned for it.
    """
    mirror, channel = open_mirror(place, read_settings(offline=offline))
    chosen: WheelChoice = "none" if wheel else "all" if isinstance(mirror, FolderTarget) else "newest"
    verified = verify_channel(mirror, channel, default_trust(), wheels=chosen)
    state, root = verified.state, verified.root
    listed = require_listed(state, wheel.name, sha256_file(wheel)) if wheel else None
    if requirements is not None:
        text = requirements_of(mirror, listed or newest_fitting(state, machine()))
        with storing(f"writing {requirements}", instead="name another file"):
            write_atomically(requirements, text)
    names, read = ([file.filename for file in files] for files in (state.files, verified.wheels))
    install = f"uv pip install --require-hashes -r {requirements}" if requirements else ""
    hidden = bool(install and urlsplit(place).username)
    return Result(
        {
            "channel": channel, "generation": state.generation, "digest": state.digest,
            "expires": state.expires, "signer": verified.signer, "root": root.version,
            "wheels": names, "read": read,
        },
        [
            ("channel", f"{channel}, generation {state.generation}, signed by {verified.signer[:80]}"),
            ("root", f"version {root.version} of {root.written}"),
            ("expires", state.expires),
            ("wheel", f"{listed.filename} is a wheel of {channel}" if listed else ""),
            ("wheels", "" if listed else f"{len(read)} of {len(names)} read"),
            ("note", f"{requirements} has no password: put it into ~/.netrc, which pip and uv read" * hidden),
            ("next", install),
        ],
    )  # fmt: skip


def _changed(publisher: ChannelPublisher, state: ChannelState, *told: Part) -> Result:
    """Return the new generation *state* of a channel, and the next step."""
    place = place_of(publisher.target, state.channel)
    parts = [
        *told,
        ("channel", f"{state.channel}, generation {state.generation}: {_change(state)}"),
        ("expires", state.expires),
        ("next", f"sparkwright channel verify {place}"),
        ("readers", f"sparkwright channel verify {place} --requirements FILE"),
    ]
    return Result({**_described(state), "place": place}, parts)


def _change(state: ChannelState) -> str:
    action = state.action
    return f"{action.kind} {f'to {action.to}: ' if action.to else ''}{action.detail}"


def _described(state: ChannelState) -> dict[str, Any]:
    return {**to_builtins(state), "digest": state.digest}


# Keys and roots ------------------------------------------------------------------------------------------


@command.group("key")
def key() -> None:
    """Show and replace the keys of this machine's channels, and pin the roots of others."""


@key.command("make")
@_NAME
def make_key(channel: str) -> Result:
    """Make this machine's key and root for channel NAME, if it has none; promoting does so too."""
    return _shown_keys(load_publisher(default_trust().publisher / require_channel_name(channel)))


@key.command("show")
@_NAME
def show_key(channel: str) -> Result:
    """Show this machine's key for channel NAME, and its root."""
    return _shown_keys(load_publisher(_home(channel)))


@key.command("rotate")
@_NAME
@click.option("--revoke", metavar="REASON", help="It may have been stolen; readers see it.")
@click.option(
    "--split",
    type=PATH_TYPE,
    metavar="FILE",
    help="Move the present key to FILE, to be kept offline: it signs roots only, the new one generations.",
)
@click.option(
    "--roots-key",
    type=FILE_TYPE,
    help="The key that --split moved away, where this machine's may not sign roots, or is lost.",
)
def rotate(channel: str, *, revoke: str | None, split: Path | None, roots_key: Path | None) -> Result:
    """Replace this machine's key for channel NAME by a new one, which the present one signs."""
    if split is not None and (revoke or roots_key):
        raise click.UsageError("--split excludes --revoke and --roots-key.")
    if revoke is not None and not revoke.strip():
        raise click.BadParameter("it is empty; readers need a reason", param_hint="--revoke")
    keys = rotate_key(_home(channel), revoke=revoke or "", split=split, roots_key=roots_key)
    return _shown_keys(
        keys, ("next", f"sparkwright channel renew {channel}: readers get the new root with it")
    )


@key.command("pin")
@click.argument("place", metavar="URL|FOLDER")
@click.option(
    "--digest",
    required=True,
    metavar="SHA256",
    help="Of the newest root, from another source: its publisher's 'key show' tells it.",
)
@reading_options
def pin(*, place: str, digest: str, offline: bool) -> Result:
    """Trust the root with that SHA256 for the channel at URL or in FOLDER, such as …/channels/stable.

    It counts at that address alone. What was pinned and seen there before is forgotten.
    """
    if not re.fullmatch("[0-9a-fA-F]{64}", digest):
        raise click.BadParameter("a SHA-256 has 64 hexadecimal digits", param_hint="--digest")

    mirror, channel = open_mirror(place, read_settings(offline=offline))
    root = default_trust().pin(mirror, channel, digest)
    told = f"channel {channel}, version {root.version} of {root.written}, for {place}"
    return Result(_described_root(root), [("pinned", told)])


def _home(channel: str) -> Path:
    """Return the folder of this machine's key for *channel*, which has to exist."""
    home = default_trust().publisher / require_channel_name(channel)
    if published_root(home) is None:
        raise UnknownNameError(
            f"this machine has no key for channel {channel}",
            next_step=f"sparkwright channel promote WHEEL --to {channel} makes one",
        )
    return home


def _described_root(root: ChannelRoot) -> dict[str, Any]:
    return {"channel": root.channel, "version": root.version, "written": root.written}


def _shown_keys(keys: ChannelKeys, *more: tuple[str, str]) -> Result:
    root, digest = keys.root, sha256_bytes(keys.root.data)
    signs = {
        one: [role for role, of in root.root.roles.items() if one in of.keyids] for one in root.root.keys
    }
    rows = [
        (one, " ".join(roles), "this machine's" if one == keys.id else "") for one, roles in signs.items()
    ]
    rows += [(one[:16], "nothing", told) for one, told in root.former.items()]
    return Result(
        {**_described_root(root), "key": keys.id, "keys": signs, "former": root.former, "digest": digest},
        [
            ("channel", root.channel),
            ("root", f"version {root.version} of {root.written}, {keys.files[-1]}"),
            ("readers", f"sparkwright channel key pin ADDRESS --digest {digest}"),
            Table(("key", "signs", ""), rows),
            *more,
        ],
    )
