"""Where the store keeps what, and the few ways to put something into it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.canonical import sha256_file
from sparkwright.errors import DigestError, StorageError
from sparkwright.store.locks import hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Store", "default_home", "open_store", "remove_tree", "storing", "write_atomically"]


def default_home() -> Path:
    """``SPARKWRIGHT_HOME``, or the user's cache folder."""
    if chosen := os.environ.get("SPARKWRIGHT_HOME"):
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("sparkwright")


def open_store(home: Path | None = None) -> Store:
    """The store at *home*, made when missing, with what dead runs left swept away."""
    store = Store(home or default_home())
    with storing(f"opening the store {store.home}"):
        for folder in (store.files, store.records, store.trees, store.partial, store.scratch_root):
            folder.mkdir(parents=True, exist_ok=True)
        store.sweep()
    return store


@contextlib.contextmanager
def storing(what: str) -> Iterator[None]:
    """Turn a full, read-only or broken disk into one clear error about *what*.

    Raises:
        StorageError: the block raised such an `OSError`.
    """
    hints = {
        errno.ENOSPC: "free some space, or point SPARKWRIGHT_HOME to a larger disk",
        errno.EDQUOT: "raise the quota, or point SPARKWRIGHT_HOME elsewhere",
        errno.EROFS: "point SPARKWRIGHT_HOME to a disk that can be written",
        errno.EACCES: "check the owner and mode of that folder, or set SPARKWRIGHT_HOME",
        errno.EPERM: "check the owner and mode of that folder, or set SPARKWRIGHT_HOME",
        errno.EIO: "check the disk",
    }
    try:
        yield
    except OSError as error:
        if error.errno not in hints:
            raise
        where = f" ({error.filename})" if error.filename else ""
        raise StorageError(
            f"{what} failed",
            because=f"{os.strerror(error.errno).lower()}{where}",
            next_step=hints[error.errno],
        ) from error


@dataclass(frozen=True)
class Store:
    """Paths of the store, and atomic ways to fill it.

    Attributes:
        home: the store's root folder.
    """

    home: Path

    @property
    def files(self) -> Path:
        """Files by SHA-256, read-only."""
        return self.home / "files"

    @property
    def records(self) -> Path:
        """Small JSON results by kind and key."""
        return self.home / "records"

    @property
    def trees(self) -> Path:
        """Checked-out trees by git tree id."""
        return self.home / "trees"

    @property
    def partial(self) -> Path:
        """Downloads under way, by the SHA-256 that they should have."""
        return self.home / "partial"

    @property
    def scratch_root(self) -> Path:
        """Scratch folders, each named after the process that owns it."""
        return self.home / "scratch"

    @property
    def git(self) -> Path:
        """The bare git repository."""
        return self.home / "git"

    @property
    def environments(self) -> Path:
        """Python environments for probes, by the digest of their requirements."""
        return self.home / "environments"

    @property
    def toolchains(self) -> Path:
        """Unpacked compilers, headers and libraries, and what was made of them."""
        return self.home / "toolchains"

    def lock(self, name: str, what: str) -> contextlib.AbstractContextManager[None]:
        """Hold the store's lock called *name*; *what* it protects is told to those who wait."""
        return hold(self.home / "locks" / f"{name}.lock", what)

    # Files -----------------------------------------------------------------------------

    def file_path(self, sha256: str) -> Path:
        """Where the file with that digest is, or would be."""
        return self.files / sha256[:2] / sha256

    def find_file(self, sha256: str) -> Path | None:
        """The file with that digest, or `None`. Its bytes were verified when it came in."""
        path = self.file_path(sha256)
        return path if path.is_file() else None

    def adopt_file(self, source: Path, sha256: str, *, verified: bool = False) -> Path:
        """Move *source* into the store under *sha256*, once that digest is verified.

        Args:
            source: the file, on the store's disk.
            sha256: the digest that it should have.
            verified: whether the caller has computed that digest while writing the file.

        Raises:
            DigestError: *source* holds other bytes; it is removed.
        """
        actual = sha256 if verified else sha256_file(source)
        if actual != sha256:
            source.unlink()
            raise DigestError(
                f"{source.name} is not what was asked for",
                because=f"its SHA-256 is {actual}, not {sha256}",
                next_step="run again; if it stays so, the origin or the lock is wrong: do not use the file",
            )
        target = self.file_path(sha256)
        with storing(f"storing {sha256[:12]}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            # Killed in between, a download can still be resumed; a read-only one could not.
            source.replace(target)
            target.chmod(0o444)
        return target

    def link(self, sha256: str, target: Path) -> Path:
        """Put the file with that digest at *target* too, inside the store."""

        def link_or_copy(source: Path, temporary: Path) -> None:
            try:
                temporary.hardlink_to(source)
            except OSError as error:
                if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}:
                    raise
                shutil.copy2(source, temporary)  # a file system without hard links

        return self._appear(sha256, target, link_or_copy)

    def copy_out(self, sha256: str, target: Path) -> Path:
        """Copy the file with that digest out of the store: what is done to *target* stays there."""

        def copy(source: Path, temporary: Path) -> None:
            shutil.copy2(source, temporary)
            temporary.chmod(0o644)

        return self._appear(sha256, target, copy)

    def _appear(self, sha256: str, target: Path, make: Callable[[Path, Path], None]) -> Path:
        with storing(f"placing {target.name}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            _sweep_beside(target)
            temporary = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
            try:
                make(self.file_path(sha256), temporary)
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return target

    def named_file(self, sha256: str, filename: str) -> Path:
        """The file with that digest under a *filename* that tells what it is; it must be here."""
        target = self.home / "named" / sha256[:16] / filename
        return target if target.is_file() else self.link(sha256, target)

    # Records ---------------------------------------------------------------------------

    def find_record(self, kind: str, key: str) -> dict[str, Any] | None:
        """The JSON object recorded under *kind* and *key*, or `None`; a damaged one counts as none."""
        path = self._record_path(kind, key)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # the latter: neither JSON nor even text
            return None
        return found if isinstance(found, dict) else None

    def put_record(self, kind: str, key: str, value: dict[str, Any]) -> None:
        """Record *value* under *kind* and *key*, atomically."""
        path = self._record_path(kind, key)
        with storing(f"recording {kind} {key[:12]}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")

    def _record_path(self, kind: str, key: str) -> Path:
        return self.records / kind / key[:2] / f"{key}.json"

    # Scratch and folders ---------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder on the store's own disk that is gone after the block."""
        with storing("making a scratch folder"):
            self.scratch_root.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self.scratch_root))
        try:
            with storing("writing to the store's disk"):
                yield folder
        finally:
            remove_tree(folder)

    def sweep(self) -> None:
        """Remove scratch folders whose process is dead."""
        for folder in self.scratch_root.iterdir():
            if not _is_owned(folder.name):
                remove_tree(folder)

    def publish_folder(self, folder: Path, target: Path) -> Path:
        """Rename the finished *folder* to *target*; if another run was first, theirs stays."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(target)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            remove_tree(folder)
        return target


def write_atomically(path: Path, data: bytes) -> None:
    """Replace *path* by *data*: readers see the old bytes or the new ones, never a mixture."""
    _sweep_beside(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.{os.getpid()}-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sweep_beside(path: Path) -> None:
    """Remove what runs that were killed while they wrote *path* left beside it."""
    prefix = f".{path.name}."
    for name in os.listdir(path.parent):  # noqa: PTH208 - names are all that is wanted
        if name.startswith(prefix) and not _is_owned(name.removeprefix(prefix)):
            path.with_name(name).unlink(missing_ok=True)


def _is_owned(name: str) -> bool:
    """Whether the process whose id *name* begins with is alive."""
    owner = name.split("-", 1)[0]
    return owner.isdigit() and Path("/proc", owner).exists()


def remove_tree(folder: Path) -> None:
    """Remove *folder* and all in it, read-only folders included.

    A missing one is fine, also when another process removes it at the same time. A file or link of
    that name is removed too; nothing is ever reached through a link.
    """
    if folder.is_symlink() or folder.is_file():
        folder.unlink(missing_ok=True)
        return
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        _make_folders_writable(folder)
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)  # says why it cannot be removed


def _make_folders_writable(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        folder.chmod(0o700)
        for parent, names, _ in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                if not path.is_symlink():
                    path.chmod(0o700)
