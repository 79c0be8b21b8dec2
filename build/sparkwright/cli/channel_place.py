"""Places and signers of ``sparkwright channel``: options, the target, the publisher, pinned roots."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click

from sparkwright.base.errors import ConfigError, PublishError
from sparkwright.base.events import warn
from sparkwright.cli.globals import takes
from sparkwright.cli.session import Session
from sparkwright.cli.terminal import showing_events
from sparkwright.publish import dist_folder
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.roots import PinnedRoot
from sparkwright.publish.target import Target

R = TypeVar("R")

TARGET_VARIABLE = "SPARKWRIGHT_TARGET"
_PUBLISHED = "published"

target_option = click.option(
    "--target",
    default="",
    envvar=TARGET_VARIABLE,
    metavar="ADDRESS",
    help="Folder, s3:// or github://; the folder published/ beside the wheels by default.",
)
trust_option = click.option(
    "--trust",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The channel's root; a later version needs those before beside it (1.root.json and so on). By "
    "default all that were pinned, and this machine's own.",
)
_SIGN = click.option(
    "--sign",
    "mode",
    type=click.Choice(["local", "sigstore"]),
    default="local",
    show_default=True,
    envvar="SPARKWRIGHT_SIGN",
    help="By this machine's key for the channel, or by a CI job's identity (with --trust).",
)
_ADOPT = click.option(
    "--adopt",
    is_flag=True,
    help="Build on a channel that no trusted key signed, or of a date to come, once you looked at it.",
)

_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="List what would be written or removed; nothing is, nor remembered."
)


def signing_options(function: Callable[..., R]) -> Callable[..., R]:
    """Add the options of changing a channel: ``--target``, ``--sign``, ``--dry-run`` and so on."""
    for option in (_DRY_RUN, _ADOPT, trust_option, _SIGN, target_option):
        function = option(function)
    return function


def reading_options(function: Callable[..., R]) -> Callable[..., R]:
    """Take the global options of commands without a checkout; *function* gets ``offline`` and ``as_json``."""

    @takes("offline", "quiet", "as_json")
    @functools.wraps(function)
    def wrapper(*, quiet: bool, as_json: bool, **arguments: Any) -> R:
        with showing_events(quiet=quiet or as_json):
            return function(as_json=as_json, **arguments)

    return wrapper


def open_place(root: Path, address: str) -> Target:
    """Return the target at *address*, by default the folder ``published/`` beside the wheels.

    Raises:
        ConfigError: it is no address of a target.
    """
    if not address:
        from sparkwright.publish.folder_target import FolderTarget

        return FolderTarget(default_folder(root))
    from sparkwright.publish.targets import open_target

    return open_target(address)


def make_publisher(
    root: Path, *, target: str, mode: str, trust: Path | None, adopt: bool, dry_run: bool = False
) -> ChannelPublisher:
    """Return the publisher that the options describe; a channel's key is made on first use.

    Of a dry run, what it would make or remember is in a folder that ends with the command, and no identity
    signs.
    """
    from sparkwright.publish.keys import (
        ChannelKeys,
        load_publisher,
        published_root,
        publisher_home,
        throwaway_signer,
        versions_of,
    )
    from sparkwright.publish.planned import PlannedTarget
    from sparkwright.publish.promote import ChannelPublisher
    from sparkwright.publish.roots import root_of_file
    from sparkwright.publish.seen import SeenChannels, default_memory

    place, memory = open_place(root, target), default_memory()
    scratch = Path()
    if dry_run:
        folder = TemporaryDirectory(prefix="sparkwright-")
        scratch = Path(click.get_current_context().with_resource(folder))
        if memory.path.exists():
            shutil.copy(memory.path, scratch / "channels.json")
        place, memory = PlannedTarget(place), SeenChannels(scratch / "channels.json")

    def by_identity(_: str) -> ChannelKeys:
        from sparkwright.publish.identities import identity_signer

        file = require_trust(trust)
        pinned = root_of_file(file)
        trusted = pinned.keys("timestamp").values()
        signer = throwaway_signer() if dry_run else identity_signer(trusted)
        return ChannelKeys(signer, pinned, (*versions_of(file.parent, pinned.version - 1), file))

    def by_key(channel: str) -> ChannelKeys:
        home = publisher_home() / channel
        made = published_root(home) is None
        found = load_publisher(scratch / "publisher" / channel if made and dry_run else home)
        if made and not dry_run:
            warn(f"a key for channel {channel} was made: {home}; keep a copy of that folder in a safe place")
        return found

    if mode == "sigstore":
        require_trust(trust)
    return ChannelPublisher(
        place, by_identity if mode == "sigstore" else by_key, lambda: pinned_roots(trust), memory, adopt
    )


def require_trust(trust: Path | None) -> Path:
    """Return the file of ``--trust``, which ``--sign sigstore`` needs.

    Raises:
        ConfigError: it is not given.
    """
    if trust is None:
        raise ConfigError(
            "--sign sigstore needs --trust",
            because="the present channel has to be verified before it is changed",
            next_step="give the channel's root, which names the identity of this job",
        )
    return trust


def promote_wheel(
    session: Session, publisher: ChannelPublisher, wheel: Path, channel: str, evidence: Path | None
) -> ChannelState:
    """Promote *wheel* to *channel* by its policy; see `ChannelPublisher.promote`."""
    from sparkwright.base.digests import sha256_file
    from sparkwright.lock.runtime import parse_runtime
    from sparkwright.publish.companion_provenance import provenance_of
    from sparkwright.publish.evidence import FOLDER, require_evidence, stated_series
    from sparkwright.publish.index import describe
    from sparkwright.publish.runtimes import promoted_runtime

    policy, sha256 = policy_of(session, channel), sha256_file(wheel)
    folder = evidence or dist_folder(session.checkout.folder).absolute() / FOLDER
    # One that was written beside it may name its builder.
    written = wheel.with_name(f"{wheel.name}.provenance.json")
    provenance = _of_wheel(written, sha256) if written.is_file() else provenance_of(wheel, sha256=sha256)
    entry, _ = describe(wheel, {wheel.name: sha256})
    runtime = promoted_runtime(wheel, entry, session.checkout.patchsets)
    digest = parse_runtime(runtime.decode(), f"the runtime of {wheel.name}").digest if runtime else ""
    found = require_evidence(wheel, sha256, channel, policy, folder, runtime=digest)
    if not runtime and entry.project == "vllm":
        warn(
            f"{wheel.name} is promoted without a locked runtime: outside a checkout it is served unlocked",
            next_step=f"sparkwright lock runtime --series {stated_series(wheel)}, then promote it again",
        )
    return publisher.promote(channel, wheel, found, policy, now(), provenance=provenance, runtime=runtime)


def _of_wheel(path: Path, sha256: str) -> bytes:
    """Return the in-toto statement at *path*.

    Raises:
        PublishError: it is not about the wheel with that digest alone.
    """
    data = path.read_bytes()
    try:
        about = [one["digest"]["sha256"] for one in json.loads(data)["subject"]]
    except (ValueError, TypeError, KeyError) as error:
        raise PublishError(f"{path} is no in-toto statement", because=repr(error)) from error
    if about != [sha256]:
        raise PublishError(
            f"{path} is not about the wheel beside it",
            because=f"the wheel's SHA-256 is {sha256}, its subject's {', '.join(map(str, about)) or 'none'}",
            next_step="remove it: without one, the statement is made of the wheel",
        )
    return data


def pinned_roots(trust: Path | None) -> list[PinnedRoot]:
    """Return the root in the file *trust*, or all pinned ones and this machine's own."""
    from sparkwright.publish.keys import pinned_folder, pinned_in, published_root, publisher_home
    from sparkwright.publish.roots import root_of_file

    if trust is not None:
        return [root_of_file(trust)]
    homes = sorted(path for path in publisher_home().glob("*") if path.is_dir())
    own = (published_root(home) for home in homes)
    return [*pinned_in(pinned_folder()), *(found for found in own if found)]


def default_folder(root: Path) -> Path:
    """Return the folder of channels where no target is named."""
    return dist_folder(root).absolute() / _PUBLISHED


def policy_of(session: Session, channel: str) -> ChannelPolicy:
    """Return the policy of *channel* in the checkout; see `load_policy`."""
    from sparkwright.publish.channel import require_channel_name
    from sparkwright.publish.policy import POLICY_FILE, load_policy

    return load_policy(session.checkout.patchsets / POLICY_FILE, require_channel_name(channel))


def now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)
