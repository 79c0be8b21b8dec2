"""Targets of publishing: places that wheels and channels are published to, and read from.

A target has two kinds of files. Wheels, statements and states never change once they are there. Pointers are
replaced, and only by a publisher that read the present one, so that of two publishers one wins and the other
is told. `FolderTarget` is a folder, such as the root of a static web server.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Protocol, Self

from sparkwright.base.digests import CHUNK, copy_hashed, sha256_bytes, sha256_file, sha256_stream
from sparkwright.base.errors import LostRaceError, PublishError, TamperedError, UploadError
from sparkwright.base.events import emit
from sparkwright.store.disk import atomic_file, hold, storing, write_atomically

MOST_BYTES = 64 << 20
"""Bytes of a state or a statement, at most; a state of 100,000 wheels has about as many."""


@dataclass(frozen=True)
class Stored:
    """A small file at a target.

    Attributes:
        tag: name of this content for `Target.replace`: the target's ETag, or the SHA-256 of *data*.
    """

    data: bytes
    tag: str = ""


class Entry(NamedTuple):
    """A file of a listing.

    Attributes:
        modified: when it was written, in seconds since 1970.
    """

    size: int
    modified: float


class Mirror(Protocol):
    """A target, or a copy of one, that can be read.

    Paths are relative, with ``/`` between their parts; each method passes them through `checked_path`.
    """

    def read(self, path: str) -> Stored | None:
        """Return the file at *path*, `None` if there is none; for small files, which are read whole.

        Raises:
            FetchError, UploadError: it cannot be read, or is too large.
        """

    def digest(self, path: str, most: int) -> tuple[str, int] | None:
        """Return SHA-256 and size of the file at *path*, `None` if there is none.

        Reading stops after *most* bytes; a longer file has another digest anyway.
        """

    def url(self, path: str) -> str:
        """Return the address under which clients read *path*, for people too: it has no credentials."""


class Target(Protocol):
    """A place that wheels and channels are published to; paths are those of `Mirror`.

    Every method raises `UploadError` where the target cannot be reached, read or written.
    """

    def read(self, path: str) -> Stored | None:
        """See `Mirror.read`."""

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """Put *file* at *path*, where its content never changes again.

        A file that is there with that digest is left alone. The file appears under *path* only complete, and
        is read back.

        Raises:
            TamperedError: other bytes are at *path*, or were read back.
        """

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """Replace the pointer at *path* by *data* if its tag is *expected*; return the new tag.

        *expected* is the tag under which the publisher read it, `None` if no file may be there.

        Raises:
            LostRaceError: another publisher was faster.
        """

    def files(self, prefix: str) -> dict[str, Entry]:
        """Return all files below the folder *prefix* (all if it is empty) by path, without hidden ones."""

    def remove(self, path: str) -> None:
        """Remove the file at *path*, which no pointer names; do nothing if there is none."""

    def url(self, path: str) -> str:
        """See `Mirror.url`."""


def checked_path(path: str) -> str:
    r"""Return *path* if it is relative, names a file and leads nowhere else."""
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\\" in path or not path.isprintable():
        raise PublishError(
            "a path at a target was refused", because=f"{path!r} is not a relative path of a file"
        )
    return path


def lost_race(path: str, where: str) -> LostRaceError:
    """Return the error of a publisher that did not replace *path* in *where*, as another one did."""
    return LostRaceError(
        f"{path} was not replaced",
        because=f"another publisher wrote it first, to {where}",
        next_step="run the same command again: it starts from what the other one published",
    )


def require_digest(what: str, actual: str, sha256: str) -> None:
    """Refuse *what* if its digest is not the promised one."""
    if actual != sha256:
        raise TamperedError(
            f"{what} was not published",
            because=f"its SHA-256 is {actual}, not {sha256}, and published files never change",
            next_step="find out who changed it; move it away to publish the right bytes",
        )


def require_signed(stored: Stored | None, sha256: str, what: str, where: str, next_step: str) -> bytes:
    """Return the content of *stored*, which was read of *where*, if it has the signed digest."""
    if stored is None:
        raise TamperedError(f"{what} is missing", because=f"{where} does not exist", next_step=next_step)
    if (actual := sha256_bytes(stored.data)) != sha256:
        raise TamperedError(
            f"{what} was changed", because=f"its SHA-256 is {actual}, not {sha256}", next_step=next_step
        )
    return stored.data


def hashed(chunks: Iterator[bytes], most: int) -> tuple[str, int]:
    """Return the SHA-256 and the number of the bytes in *chunks*, of which no more than *most* are needed."""
    digest, size = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size += len(chunk)
        if size > most:
            break
    return digest.hexdigest(), size


# A folder --------------------------------------------------------------------------------------------


_LOCK = ".publish.lock"
_INSTEAD = "use another folder"
_COPY = "copy the channel again from where it was published"


@dataclass(frozen=True)
class FolderTarget:
    """A folder, made when missing; the tag of a file is its SHA-256."""

    folder: Path

    def read(self, path: str) -> Stored | None:
        """See `Target.read`."""
        with self._open(path) as stream:
            data = stream.read(MOST_BYTES + 1) if stream else None
        if data is None:
            return None
        if len(data) > MOST_BYTES:
            raise UploadError(
                f"{self.folder / path} was not read",
                because=f"it has more than {MOST_BYTES} bytes, which no file of a channel has",
                next_step=_COPY,
            )
        return Stored(data, sha256_bytes(data))

    def digest(self, path: str, most: int) -> tuple[str, int] | None:
        """See `Mirror.digest`."""
        with self._open(path) as stream:
            return hashed(iter(lambda: stream.read(CHUNK), b""), most) if stream else None

    def put_file(self, path: str, file: Path, sha256: str) -> None:
        """See `Target.put_file`."""
        at = self._place(path)
        with self._open(path) as found:
            if found is not None:
                require_digest(str(at), sha256_stream(found), sha256)
                return
        with _using(f"writing {path} in {self.folder}"):
            with (
                atomic_file(at) as handle,
                os.fdopen(os.dup(handle), "wb") as copy,
                file.open("rb") as original,
            ):
                require_digest(str(file), copy_hashed(original, copy), sha256)
            require_digest(str(at), sha256_file(at), sha256)

    def replace(self, path: str, data: bytes, *, expected: str | None) -> str:
        """See `Target.replace`."""
        at = self._place(path)
        with (
            _using(f"writing {path} in {self.folder}"),
            hold(self.folder / _LOCK, f"the channels in {self.folder}"),
        ):
            found = self.read(path)
            if (found.tag if found else None) != expected:
                raise lost_race(path, str(self.folder))
            write_atomically(at, data)
        return sha256_bytes(data)

    def files(self, prefix: str) -> dict[str, Entry]:
        """See `Target.files`; links are among them, and not followed."""
        start = self._at(prefix.rstrip("/")) if prefix else self.folder
        with _using(f"listing {start}"):
            found = {}
            for at in start.rglob("*"):
                with contextlib.suppress(FileNotFoundError):  # removed since its folder was read
                    state = at.lstat()
                    if not stat.S_ISDIR(state.st_mode) and not at.name.startswith("."):
                        path = at.relative_to(self.folder).as_posix()
                        found[path] = Entry(state.st_size, state.st_mtime)
            return found

    def remove(self, path: str) -> None:
        """See `Target.remove`; its folder stays, as another publisher may be about to write into it."""
        with _using(f"removing {path} in {self.folder}"):
            self._place(path).unlink(missing_ok=True)

    def url(self, path: str) -> str:
        """See `Mirror.url`."""
        return self._at(path).absolute().as_uri()

    def _at(self, path: str) -> Path:
        return self.folder / checked_path(path)

    def _place(self, path: str) -> Path:
        """Return the place of *path* for a change of it, which no link on the way leads elsewhere."""
        at = self._at(path)
        link = next(
            (above for above in at.parents if self.folder in above.parents and above.is_symlink()), None
        )
        if link is not None:
            raise UploadError(
                f"{path} was not changed in {self.folder}",
                because=f"{link} is a link: the file would be written to the folder that it points to",
                next_step="put a folder in its place; the folder of a target may be a link itself",
            )
        return at

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[BinaryIO | None]:
        """Give the file at *path*, `None` if there is none; a pipe is not waited for."""
        at = self._at(path)
        with _using(f"reading {at}"):
            try:
                # With an opener, what was opened is closed where it is a folder; `os.fdopen` leaves it open.
                stream = open(at, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
            except (FileNotFoundError, NotADirectoryError):
                yield None
                return
            with stream:
                within = at.resolve().is_relative_to(self.folder.resolve())
                if not (within and stat.S_ISREG(os.fstat(stream.fileno()).st_mode)):
                    raise UploadError(
                        f"{at} was not read", because="it is no plain file of that folder", next_step=_COPY
                    )
                yield stream


@contextlib.contextmanager
def _using(what: str) -> Iterator[None]:
    """Turn an unusable folder into one error about *what*."""
    try:
        with storing(what, instead=_INSTEAD):
            yield
    except OSError as error:
        raise UploadError(
            f"{what} failed", because=error.strerror or str(error), next_step=_INSTEAD
        ) from error


# One writer at a time --------------------------------------------------------------------------------


LEASE = "lease.txt"
LEASE_LASTS_S = 60.0
_POLL_S = 0.2


def clock() -> float:
    """Return the seconds since boot, suspended time included; setting the clock does not change them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Lease:
    """The lease of *target*, a small file there, held for the length of a ``with`` block.

    A writer holds it while it moves a pointer, or removes what nothing names, and writes it again while it
    works. Others take it over once they saw it unchanged for `LEASE_LASTS_S` by their own clock, so that one
    that was killed holds them up for that time, whatever the clocks of machines say. One that was stopped for
    as long writes no more: `require` and the conditional write of every pointer see to that.
    """

    target: Target
    patience_s: float
    _holder: str = field(default_factory=lambda: f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")
    _tag: str | None = None
    _since: float = 0.0

    def __enter__(self) -> Self:
        """Take the lease."""
        begun, seen, told = clock(), clock(), False
        while True:
            stored = self.target.read(LEASE)
            holder, tag = (stored.data.decode(errors="replace"), stored.tag) if stored else ("", None)
            if tag != self._tag:
                self._tag, seen = tag, clock()
            if not holder or clock() - seen >= LEASE_LASTS_S:
                with contextlib.suppress(LostRaceError):
                    self._write(self._holder)
                    return self
            if clock() - begun >= self.patience_s:
                raise LostRaceError(
                    f"{self.target.url(LEASE)} is held by another writer",
                    because=f"{holder or 'another one'} writes there",
                    next_step="run the same command again; one that was killed holds it for "
                    f"{LEASE_LASTS_S:.0f} s",
                )
            if not told:
                emit("lock.waiting", what=f"the lease of {holder}", path=self.target.url(LEASE))
            told = True
            time.sleep(_POLL_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lease back, if it is still this writer's."""
        del kind, error, trace
        with contextlib.suppress(LostRaceError):
            self._write("")

    def require(self) -> None:
        """Make sure that the lease lasts: half of its time is left after that."""
        if clock() - self._since > LEASE_LASTS_S / 2:
            self._write(self._holder)

    def _write(self, holder: str) -> None:
        since = clock()
        self._tag = self.target.replace(LEASE, holder.encode(), expected=self._tag)
        self._since = since
