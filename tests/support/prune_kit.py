"""Channels with something to prune, and publishers and pruners that are stopped in the middle."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from channel_kit import ChannelWorld, now

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import LostRaceError
from sparkwright.publish.channel import metadata_path
from sparkwright.publish.evidence import ChannelPolicy
from sparkwright.publish.prune import Pruner
from sparkwright.publish.target import LEASE, Entry, Stored, Target

LIMITED = ChannelPolicy(requires=("audit",), expires_days=3650, keep_days=30)
FOREVER = ChannelPolicy(requires=("audit",), expires_days=3650)
POLICIES = {"nightly": LIMITED, "stable": FOREVER}
HOURS = 25
"""Hours after which what nothing names may be removed."""
SPARE = "0.24.99"
"""The version of the wheel that nothing names in `world_with_spare`."""


def pruner(world: ChannelWorld, target: Target | None = None, *, hours: float = 0) -> Pruner:
    """Return a pruner that runs *hours* from now."""
    publisher = replace(world.publisher(target), patience_s=0.0)
    return Pruner(publisher, POLICIES, now() + timedelta(hours=hours))


def spare_wheel(world: ChannelWorld) -> Path:
    """Return the file of the wheel that nothing names."""
    return world.dist / f"vllm-{SPARE}-py3-none-any.whl"


def world_with_spare(world: ChannelWorld, target: Target) -> None:
    """Publish a channel of one wheel at *target*, and a wheel that no channel has."""
    publisher = world.publisher(target)
    world.promote("0.24.1", publisher=publisher)
    world.promote(SPARE, "abandoned", publisher=publisher)
    target.remove(metadata_path("abandoned"))


@dataclass
class Gate:
    """Stops the thread that passes it for the *limit*-th time, until it is opened.

    Attributes:
        limit: passages before the stop.
        passed: passages so far.
    """

    limit: int
    passed: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def step(self) -> None:
        """Pass, or wait here."""
        if self.passed == self.limit:
            self.reached.set()
            assert self.opened.wait(120)
        self.passed += 1


@dataclass(frozen=True)
class SteppedTarget:
    """A target that calls *step* before each operation that another party can notice or depends on."""

    target: Target
    step: Callable[[], None]

    def read(self, path: str) -> Stored | None:
        if path == LEASE or path.endswith("timestamp.json"):
            self.step()
        return self.target.read(path)

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        self.step()
        self.target.put_file(path, file, sha256)

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        self.step()
        return self.target.replace(path, data, expected=expected)

    def remove(self, path: str) -> None:
        self.step()
        self.target.remove(path)

    def files(self, prefix: str) -> dict[str, Entry]:
        self.step()
        return self.target.files(prefix)

    def url(self, path: str) -> str:
        return self.target.url(path)


class Stopped(threading.Thread):
    """A thread that runs *work* up to a gate and keeps what it raises."""

    def __init__(self, gate: Gate, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.gate, self.work = gate, work
        self.error: Exception | None = None
        self.start()
        while self.is_alive() and not gate.reached.wait(0.002):
            pass

    def run(self) -> None:
        """Work."""
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def finish(self) -> bool:
        """Open the gate and wait for the end; return if the gate had stopped it."""
        self.gate.opened.set()
        self.join(120)
        assert not self.is_alive()
        return self.gate.reached.is_set()


def broken_links(world: ChannelWorld, target: Target, channel: str) -> list[str]:
    """Return what *channel* names and is missing or has other bytes."""
    named = {}
    for file in world.publisher(target).require(channel).state.files:
        named |= {file.path: file.sha256, **{path: sha256 for path, (sha256, _) in file.beside.items()}}
    found = {path: target.read(path) for path in named}
    return [
        path for path, sha256 in named.items() if not (one := found[path]) or sha256_bytes(one.data) != sha256
    ]


def interleaved(world: ChannelWorld, target: Target, publishing: int, pruning: int) -> tuple[bool, bool]:
    """Stop a publisher after *publishing* steps, a pruner after *pruning*; then let both end, and look.

    *target* is as `world_with_spare` made it; the publisher promotes the wheel that nothing names.

    Returns:
        whether the publisher and the pruner were stopped, and not at their ends already.
    """
    first, second = Gate(publishing), Gate(pruning)
    publisher = replace(world.publisher(SteppedTarget(target, first.step)), patience_s=0.0)
    promoting = Stopped(first, lambda: world.promote_file(spare_wheel(world), publisher=publisher))
    due = pruner(world, SteppedTarget(target, second.step), hours=HOURS)
    removing = Stopped(second, due.prune)
    stopped = promoting.finish(), removing.finish()
    for error in (promoting.error, removing.error):
        if error is not None and not isinstance(error, LostRaceError):
            raise error
    listed = world.publisher(target).require("nightly").state.files
    if promoting.error is None:
        assert SPARE in {file.version for file in listed}
    assert broken_links(world, target, "nightly") == []
    # The one that lost runs the same command again, and everything is there.
    pruner(world, target, hours=HOURS + 1).prune()
    world.promote_file(spare_wheel(world), publisher=world.publisher(target))
    assert broken_links(world, target, "nightly") == []
    return stopped
