"""Small wheels, channels over them, and readers that verify them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import wheelkit

from sparkwright.publish.channel import ChannelState
from sparkwright.publish.evidence import attach, require_evidence
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.keys import load_publisher, own_root_file, published_root
from sparkwright.publish.mirror import FolderMirror
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.promote import ChannelPublisher
from sparkwright.publish.roots import PinnedRoot, read_root
from sparkwright.publish.seen import SeenChannels
from sparkwright.publish.target import Target
from sparkwright.publish.verification import VerifiedChannel, VerifyChannelOptions, verify_channel

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


def pinned(path: Path) -> PinnedRoot:
    """Return the root in the file *path* as one that the reader pinned by its digest."""
    return read_root(path.read_bytes(), str(path))


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

    def publisher(self, target: Target | None = None, *, adopt: bool = False) -> ChannelPublisher:
        """Return a publisher of this world."""
        target = target or FolderTarget(self.published)
        memory = SeenChannels(self.folder / "publisher-seen.json")
        return ChannelPublisher(
            target, lambda channel: load_publisher(self.home_of(channel)), self.own_roots, memory, adopt,
            patience_s=5.0,
        )  # fmt: skip

    def own_roots(self) -> list[PinnedRoot]:
        """Return the newest roots of all channels of the publisher."""
        homes = sorted((self.folder / "publisher").glob("*"))
        return [found for home in homes if (found := published_root(home))]

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
        runtime = None
        if requires is not None:
            runtime = f"vllm=={path.name.split('-')[1]} --hash=sha256:{sha256}\n{requires}".encode()
        return (publisher or self.publisher()).promote(channel, path, found, POLICY, now(), runtime=runtime)

    def pin(self, channel: str = "nightly") -> Path:
        """Pin the publisher's root of *channel* as it is now."""
        path = self.folder / f"pinned-{channel}.json"
        path.write_bytes(own_root_file(self.home_of(channel)).read_bytes())
        return path

    def verify(
        self,
        channel: str = "nightly",
        *,
        at: datetime | None = None,
        mirror: object = None,
        **options: object,
    ) -> VerifiedChannel:
        """Verify a channel as a reader who pinned the first root of it that the publisher had."""
        path = self.folder / f"pinned-{channel}.json"
        if not path.exists() and own_root_file(self.home_of(channel)):
            self.pin(channel)
        roots = [pinned(path)] if path.exists() else []
        return verify_channel(
            mirror or FolderMirror(self.published), channel, roots,
            memory=SeenChannels(self.folder / "reader-seen.json"), now=at or now(),
            options=VerifyChannelOptions(**{"patience_s": 0.0, **options}),
        )  # fmt: skip

    def listed(self, channel: str = "nightly") -> dict[str, object]:
        """Return what the page at the stable address lists: reasons of yanks, or `None`, by version."""
        page = json.loads((self.published / f"channels/{channel}/simple/vllm/index.json").read_bytes())
        return {file["filename"].split("-")[1]: file.get("yanked") for file in page["files"]}
