"""The offer of a channel for a machine: wheel, locked runtime and companions, verified, each fetched once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sparkwright.base.errors import UnknownNameError
from sparkwright.companion.choosing import FoundCompanion, companion_for
from sparkwright.companion.package import PROJECT as COMPANION
from sparkwright.companion.package import architecture_name
from sparkwright.lock.model import Artifact
from sparkwright.native.model import Target
from sparkwright.publish.channel import ChannelState, ListedWheel
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.places import HttpMirror, open_mirror
from sparkwright.publish.series import series_of
from sparkwright.publish.target import Mirror, require_signed
from sparkwright.publish.trust import Trust
from sparkwright.publish.verification import verify_channel
from sparkwright.store import Store
from sparkwright.upstream.download import adopt_copy, fetch_artifact
from sparkwright.upstream.settings import IndexSettings, read_settings
from sparkwright.wheel.names import parse_name

_PROJECT = "vllm"


@dataclass(frozen=True)
class ChannelOffer:
    """The newest wheel of a verified channel, and what it is served with.

    Attributes:
        state: the channel's generation.
        chosen: the wheel's entry.
    """

    state: ChannelState
    chosen: ListedWheel
    store: Store
    mirror: Mirror
    settings: IndexSettings

    @cached_property
    def wheel(self) -> Path:
        """The wheel, with the bytes that were signed."""
        return self._fetched(self.chosen)

    @cached_property
    def runtime(self) -> Path | None:
        """Its locked runtime, likewise; `None` if it was promoted without one."""
        if not self.chosen.runtime:
            return None
        name = self.chosen.runtime_path.rpartition("/")[2]
        if self.store.find_intact(self.chosen.runtime) is None:
            data = signed_runtime(self.mirror, self.chosen)
            with self.store.scratch() as scratch:
                (scratch / name).write_bytes(data)
                self.store.adopt_file(scratch / name, self.chosen.runtime)
        return self.store.named_file(self.chosen.runtime, name)

    def companion(self, recipe: str, flashinfer: str, target: Target) -> FoundCompanion | None:
        """Return the companion of the channel with most kernels of a recipe; `None` if none has any.

        Args:
            recipe: name of the recipe.
            flashinfer: version of FlashInfer in the environment.
            target: machine and card.
        """
        offered = []
        for file in self.state.offered:
            release, _, local = file.version.partition("+")
            machine = parse_name(file.filename).machine
            of_card = machine == target.machine and architecture_name(target) in local.split(".")
            if of_card and (file.project, release) == (COMPANION, flashinfer):
                offered.append(self._fetched(file))
        return companion_for(offered, flashinfer, target, recipe)

    def _fetched(self, file: ListedWheel) -> Path:
        """Return a wheel with the bytes that were signed, as a copy: others may write to a folder."""
        artifact = Artifact(filename=file.filename, sha256=file.sha256, size=file.size)
        if isinstance(self.mirror, FolderTarget):
            adopt_copy(self.store, self.mirror.folder / file.path, artifact)
        else:
            assert isinstance(self.mirror, HttpMirror)  # noqa: S101 - there are two kinds
            fetch_artifact(self.store, artifact, self.settings, address=self.mirror.address(file.path))
        return self.store.named_file(file.sha256, file.filename)


def open_channel(
    store: Store, place: str, machine: str, *series: str, trust: Trust, offline: bool = False
) -> ChannelOffer:
    """Return the newest wheel of the channel at *place* for *machine*, with its locked runtime.

    Args:
        store: where fetched files go.
        place: address or folder of a channel, such as ``…/channels/stable``.
        machine: such as ``aarch64``.
        series: take a wheel of one of these series; of any, if none is given.
        trust: the pinned roots, and what was seen before.
        offline: ask no address.

    Raises:
        SparkwrightError: see `open_mirror` and `verify_channel`.
        UnknownNameError: the channel has no such wheel.
    """
    settings = read_settings(offline=offline)
    mirror, channel = open_mirror(place, settings)
    # The digest of the wheel is checked when it is fetched.
    state = verify_channel(mirror, channel, trust, wheels="none").state
    return ChannelOffer(state, newest_fitting(state, machine, *series), store, mirror, settings)


def signed_runtime(mirror: Mirror, file: ListedWheel) -> bytes:
    """Return the locked runtime of the wheel *file* of a verified channel, with the wheel's digest in it.

    Raises:
        UnknownNameError: it was promoted without one.
        TamperedError: it is missing, or its bytes are not those that were signed.
    """
    if not file.runtime:
        raise UnknownNameError(
            f"{file.filename} has no locked runtime",
            because="it was promoted without one, so that no requirements with digests can be written",
            next_step="ask its publisher to promote it again with one: sparkwright lock runtime",
        )
    return require_signed(
        mirror.read(file.runtime_path),
        file.runtime,
        f"the runtime of {file.filename}",
        mirror.url(file.runtime_path),
        "copy the channel again from where it was published",
    )


def requirements(mirror: Mirror, file: ListedWheel) -> bytes:
    """Return what pip and uv install *file* of a verified channel by: its address, and digests of everything.

    Whatever a mirror serves then, other bytes are refused, and no index is asked for the wheel.

    Raises:
        UnknownNameError, TamperedError: see `signed_runtime`.
    """
    own, new = f"{file.project}=={file.version} ", f"{file.project} @ {mirror.url(file.path)} "
    return signed_runtime(mirror, file).replace(own.encode(), new.encode(), 1)


def newest_fitting(state: ChannelState, machine: str, *series: str) -> ListedWheel:
    """Return the newest wheel of vLLM in a channel for *machine*, of one of *series* if any is given.

    Raises:
        UnknownNameError: there is none.
    """
    wanted = {one for one in series if one}
    offered = [file for file in state.offered if file.project == _PROJECT]
    for file in offered:
        if (not wanted or series_of(file.version) in wanted) and parse_name(file.filename).machine == machine:
            return file
    of_series = f" of series {' or '.join(sorted(wanted))}" if wanted else ""
    raise UnknownNameError(
        f"channel {state.channel} has no wheel{of_series} for {machine}",
        because=f"it offers {', '.join(file.filename for file in offered) or 'none at all'}",
        next_step="name another channel or series",
    )
