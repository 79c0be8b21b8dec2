"""Small wheels, channels over them, and readers that verify them."""

import json
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import wheelkit

from sparkwright.base.digests import sha256_bytes
from sparkwright.publish.channel import ChannelState
from sparkwright.publish.evidence import Candidate, ChannelPolicy, attach, require_evidence
from sparkwright.publish.index import describe
from sparkwright.publish.keys import published_root
from sparkwright.publish.places import HttpMirror
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.reader import VerifiedChannel, verify_channel
from sparkwright.publish.target import FolderTarget, Mirror, Target
from sparkwright.publish.trust import Trust, place_of
from sparkwright.upstream.network import IndexSettings

POLICY = ChannelPolicy(requires=("audit",), expires_days=30)


def now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)


def small_wheel(
    folder: Path, version: str, *, tag: str = "py3-none-any", record: dict[str, object] | None = None
) -> Path:
    """Return the smallest wheel of ``vllm`` that an index can list, with the *record* of a build if given."""
    info = f"vllm-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n\n".encode(),
        **{
            f"{info}/sparkwright/{name}": json.dumps(value).encode() for name, value in (record or {}).items()
        },
    }
    return wheelkit.pack(folder / f"vllm-{version}-{tag}.whl", wheelkit.with_record(files, info))


@dataclass(frozen=True)
class ChannelWorld:
    """A publisher and a reader with folders of their own.

    Attributes:
        folder: of everything.
    """

    folder: Path

    @property
    def dist(self) -> Path:
        """The folder of built wheels and evidence."""
        return self.folder / "dist"

    @property
    def home(self) -> Path:
        """The folder of the publisher's key for the channel ``nightly``."""
        return self.home_of("nightly")

    def home_of(self, channel: str) -> Path:
        """Return the folder of the publisher's key for *channel*."""
        return self.folder / "publisher" / channel

    @property
    def published(self) -> Path:
        """The target."""
        return self.folder / "published"

    @property
    def publishers(self) -> Trust:
        """The trust of the publisher, who has the channels' keys."""
        return Trust(self.folder / "seen-by-publisher", self.folder / "publisher")

    @property
    def reader(self) -> Trust:
        """The trust of a reader, who has no keys."""
        return Trust(self.folder / "seen-by-reader", self.folder / "none")

    def publisher(self, target: Target | None = None, *, adopt: bool = False) -> ChannelPublisher:
        """Return a publisher of this world."""
        target = target or FolderTarget(self.published)
        return ChannelPublisher(target, self.publishers, adopt, patience_s=5.0)

    def wheel(self, version: str) -> Path:
        """Return the wheel of *version* with one audit; asking again changes neither."""
        return self.audited(small_wheel(self.dist, version))

    def audited(self, path: Path) -> Path:
        """Attach an audit to the wheel at *path*, once: an audit states when it was made, to the second."""
        sha256 = wheelkit.sha256(path)
        if not (self.dist / "evidence" / sha256).exists():
            attach(self.dist, "audit", sha256, {"checks": {}, "unchecked": []})
        return path

    def promote(
        self, version: str, channel: str = "nightly", *, publisher: ChannelPublisher | None = None
    ) -> ChannelState:
        """Build a wheel of *version* and promote it."""
        return self.promote_file(self.wheel(version), channel, publisher=publisher)

    def promote_file(
        self,
        path: Path,
        channel: str = "nightly",
        *,
        publisher: ChannelPublisher | None = None,
        requires: str | None = None,
    ) -> ChannelState:
        """Promote the wheel at *path*; with *requires*, with a runtime of itself and these lines."""
        sha256 = wheelkit.sha256(path)
        found = require_evidence(path, sha256, channel, POLICY, self.dist / "evidence")
        runtime = b""
        if requires is not None:
            runtime = f"vllm=={path.name.split('-')[1]} --hash=sha256:{sha256}\n{requires}".encode()
        candidate = Candidate(path, describe(path)[0], found, runtime=runtime)
        return (publisher or self.publisher()).promote(channel, candidate, POLICY, now())

    def digest(self, channel: str = "nightly") -> str:
        """Return the digest of the publisher's newest root of *channel*."""
        root = published_root(self.home_of(channel))
        assert root is not None
        return sha256_bytes(root.data)

    def pin(self, channel: str = "nightly", mirror: Mirror | None = None) -> None:
        """Let the reader pin the publisher's root of *channel* as it is now."""
        self.reader.pin(mirror or FolderTarget(self.published), channel, self.digest(channel))

    def verify(
        self, channel: str = "nightly", *, mirror: Mirror | None = None, **options: object
    ) -> VerifiedChannel:
        """Verify a channel as a reader, who pins the publisher's root where none is pinned yet."""
        mirror = mirror or FolderTarget(self.published)
        known = self.reader.seen(place_of(mirror, channel)).exists()
        if not known and self.home_of(channel).exists() and mirror.read(f"channels/{channel}/1.root.json"):
            self.pin(channel, mirror)
        return verify_channel(mirror, channel, self.reader, **options)

    def serve(self, folder: Path) -> None:
        """Put a copy of the target in *folder* in the place of the target."""
        shutil.rmtree(self.published)
        shutil.copytree(folder, self.published)

    def listed(self, channel: str = "nightly") -> dict[str, str | None]:
        """Return what the channel lists: reasons of yanks, or `None`, by version."""
        return {file.version: file.yanked for file in self.publisher().require(channel).state.files}


SETTINGS = IndexSettings(attempts=2, backoff_s=0.01, timeout_s=1)
"""Limits of a reader and a publisher in tests: two tries, one second each."""


def mirror_of(pages: str) -> HttpMirror:
    return HttpMirror(pages, SETTINGS)
