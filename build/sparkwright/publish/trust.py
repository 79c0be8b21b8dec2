"""The roots that this user trusts, and the newest signed metadata seen, for each address of a channel.

A root is pinned for one address by its digest, which the user has from another source than the mirror. No
other root is accepted at that address, and the root is accepted at no other one. Metadata older than the
newest seen there are a replay, however good their signature.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.digests import sha256_bytes
from sparkwright.base.errors import SignatureError, UntrustedKeyError
from sparkwright.publish.channel import metadata_path
from sparkwright.publish.keys import ChannelRoot, published_root, read_root, root_name
from sparkwright.publish.target import Mirror, Target
from sparkwright.store.disk import hold, storing, write_atomically

_INSTEAD = "set XDG_DATA_HOME to a writable folder"
_PINNED = "pinned.json"
_OWN = "own"
_POINTER = "timestamp.json"
_MOST_VERSIONS = 1000


@dataclass(frozen=True)
class Trust:
    """The pinned roots of one user.

    Attributes:
        folder: has a folder for each address of a channel.
        publisher: has a folder for each channel of this machine's own, whose root counts wherever no other
            one is pinned.
    """

    folder: Path
    publisher: Path

    def seen(self, place: str) -> Path:
        """Return the folder of what was seen at the address *place*."""
        return self.folder / sha256_bytes(place.rstrip("/").encode())[:32]

    @contextlib.contextmanager
    def using(self, place: str) -> Iterator[Path]:
        """Give the folder of what was seen at *place*, which no other run changes in this block."""
        folder = self.seen(place)
        with (
            storing(f"using {folder}", instead=_INSTEAD),
            hold(folder.with_suffix(".lock"), f"what was seen at {place}"),
        ):
            yield folder

    def root(self, place: str, channel: str) -> ChannelRoot:
        """Return the root that counts at *place*."""
        pinned = self.seen(place) / _PINNED
        own = None if pinned.exists() else published_root(self.publisher / channel)
        if own is None and not pinned.exists():
            raise UntrustedKeyError(
                f"channel {channel} at {place} cannot be verified",
                because="no root is pinned here for that address, so that every key is unknown",
                next_step="get the SHA-256 of its root over a way that you trust, then: "
                f"sparkwright channel key pin {place} --digest SHA256",
            )
        return own or _of_channel(read_root(pinned.read_bytes(), str(pinned)), channel, place)

    def pin(self, mirror: Mirror, channel: str, digest: str) -> ChannelRoot:
        """Pin the version with that *digest* of the root at *mirror*, and forget what was seen there.

        What was seen may be of a thief, whose later versions would be preferred.
        """
        place, found = place_of(mirror, channel), []
        for version in range(1, _MOST_VERSIONS):
            path = metadata_path(channel, root_name(version))
            if (stored := mirror.read(path)) is None:
                break
            found.append(sha256_bytes(stored.data))
            if found[-1] != digest.lower():
                continue
            root = _of_channel(read_root(stored.data, path), channel, place)
            with self.using(place) as folder:
                shutil.rmtree(folder, ignore_errors=True)
                write_atomically(folder / _PINNED, root.data)
            return root
        raise UntrustedKeyError(
            f"nothing was pinned for {place}",
            because=f"no version of the root there has SHA-256 {digest}: it has {', '.join(found) or 'none'}",
            next_step="compare the digest with what the publisher states elsewhere; the mirror may be "
            "incomplete, or a thief's",
        )

    def is_own(self, pointer: bytes) -> bool:
        """Tell if this machine wrote the *pointer*, by whichever key, and wherever its target was then."""
        digest = sha256_bytes(pointer)
        for path in self.folder.glob(f"*/{_OWN}"):
            with contextlib.suppress(FileNotFoundError):  # another run pins a root there
                if path.read_text() == digest:
                    return True
        return False

    def remember(self, place: str, files: dict[str, bytes], *, own: bytes = b"") -> None:
        """Remember the signed metadata *files* of *place*, by name, and the pointer that this machine wrote.

        A run that read an older version, and ends after the one that read the newer, changes nothing. With a
        new root any version is taken: a stolen key, which that root revokes, may have signed very high ones.
        """
        with self.using(place) as folder:
            known = folder / _POINTER
            renewed = any(name.startswith("root_history/") and not (folder / name).exists() for name in files)
            if known.exists() and not renewed and _version(known.read_bytes()) > _version(files[_POINTER]):
                return
            for name, data in files.items():
                path = folder / name
                if not path.exists() or path.read_bytes() != data:
                    write_atomically(path, data)
            if own:
                write_atomically(folder / _OWN, sha256_bytes(own).encode())


def place_of(mirror: Mirror | Target, channel: str) -> str:
    """Return the address of *channel* at *mirror*, which its root is pinned for."""
    return mirror.url(metadata_path(channel, "").rstrip("/"))


def default_trust() -> Trust:
    """Return the user's, in ``sparkwright/trusted`` and ``sparkwright/publisher`` of the data folder."""
    from platformdirs import user_data_path

    home = user_data_path("sparkwright")
    return Trust(home / "trusted", home / "publisher")


def _version(pointer: bytes) -> int:
    return int(json.loads(pointer)["signed"]["version"])


def _of_channel(root: ChannelRoot, channel: str, place: str) -> ChannelRoot:
    if root.channel != channel:
        raise SignatureError(
            f"the root at {place} is not of channel {channel}",
            because=f"it was signed as channel {root.channel}: somebody moved it",
            next_step="do not install from there; take another mirror",
        )
    return root
