"""Paths of the store, and the few ways to put something into it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from sparkwright.base.config import decode_json
from sparkwright.base.digests import copy_hashed, sha256_file
from sparkwright.base.errors import DigestError, LostFileError, StorageError
from sparkwright.base.events import emit
from sparkwright.store.disk import (
    ActiveRun,
    claim,
    hold,
    make_folder,
    note_use,
    owned_file,
    owned_folder,
    remove_tree,
    running,
    shared,
    storing,
    sweep,
    sweep_beside,
    write_atomically,
)
from sparkwright.store.remote.tier import RemoteTier

T = TypeVar("T")

_DIGEST = re.compile(r"[0-9a-f]{64}")


def default_home() -> Path:
    """Return ``SPARKWRIGHT_HOME``, or the user's cache folder."""
    if chosen := os.environ.get("SPARKWRIGHT_HOME"):
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("sparkwright")


def open_store(home: Path | None = None, remote: RemoteTier | None = None) -> Store:
    """Return the store at *home*, made when missing, with what dead runs left swept away.

    *remote* is asked for what is not here, and told of what is new.
    """
    store = Store(home or default_home(), remote)
    with storing(f"opening the store {store.home}"):
        for folder in (store.files, store.records, store.trees, store.partial, store.scratch_root):
            make_folder(folder)
        store.sweep()
    return store


class Store:
    """Paths of the store, and atomic ways to fill it."""

    def __init__(self, home: Path, remote: RemoteTier | None = None) -> None:
        """Name the folders in *home*; nothing is made yet."""
        self.home, self.remote = home, remote
        self.files = home / "files"  # by SHA-256, read-only
        self.records = home / "records"  # small JSON results by kind and key
        self.trees = home / "trees"  # checked-out, by git tree id
        self.partial = home / "partial"  # downloads under way, by the SHA-256 that they should have
        self.scratch_root = home / "scratch"  # folders, each with a lock that its owner holds
        self.git = home / "git"  # the bare repository
        self.environments = home / "environments"  # of Python, for probes and rehearsals, by content's digest
        self.models = home / "models"  # weights for rehearsals, by the digest of what they are made from
        self.toolchains = home / "toolchains"  # unpacked compilers and libraries, and what is made of them
        self.named = home / "named"  # links into `files` under names that tell what they are
        self.bytecode = home / "bytecode"  # of checked-out trees: Python keeps it by their whole path
        self.runs = home / "runs"  # one locked file for each run under way

    def bytecode_of(self, folder: Path) -> Path:
        """Return where the bytecode of the tree in *folder* is."""
        return self.bytecode / folder.resolve().relative_to("/")

    def running(self) -> contextlib.AbstractContextManager[ActiveRun]:
        """Be seen as a run for the length of the block: what it finds in the store is not pruned."""
        return running(self.runs)

    def claim(self, folder: Path) -> bool:
        """Note that *folder* of the store is used now; return if it is there, and is not pruned any more."""
        return claim(folder, self.runs)

    def lock(self, name: str, what: str) -> contextlib.AbstractContextManager[None]:
        """Hold the store's lock called *name*; *what* it protects is shown to runs that wait."""
        return hold(self.home / "locks" / f"{name}.lock", what)

    # Files -----------------------------------------------------------------------------

    def file_path(self, sha256: str) -> Path:
        """Return where the file with that digest is, or would be."""
        return self.files / sha256[:2] / sha256

    def find_file(
        self, sha256: str, *, size: int | None = None, remote: bool = True, fresh: bool = False
    ) -> Path | None:
        """Return the file with that digest, or `None`; its bytes were verified when it came in.

        What is not here is brought from the remote tier, where there is one.

        A file of another *size* counts as none: a machine that lost power may have kept a file's name and not
        its bytes. *fresh* asks the remote tier again, though this command has asked before.
        """
        if not _DIGEST.fullmatch(sha256):  # what a damaged record names
            return None
        path = self.file_path(sha256)
        with contextlib.suppress(FileNotFoundError):
            state = path.stat()
            if stat.S_ISREG(state.st_mode) and size in {None, state.st_size}:
                note_use(path, state)
                return path
        if not remote or self.remote is None:
            return None
        try:
            with self.scratch() as scratch:
                brought = scratch / sha256
                if self.remote.fetch_file(sha256, brought, size, fresh=fresh):
                    return self.adopt_file(brought, sha256, verified=True)
        except StorageError as error:
            # The build needs the disk too, and says so itself where it cannot do without.
            self.remote.stop_reading(str(error))
        return None

    def find_intact(self, sha256: str, *, size: int | None = None, remote: bool = True) -> Path | None:
        """Like `find_file`, but read: a file that holds other bytes is dropped, and counts as none.

        *size* bounds what the remote tier may send; a file that is here is dropped by its digest.
        """
        path = self.find_file(sha256, remote=False) or self.find_file(sha256, size=size, remote=remote)
        if path is None:
            return None
        try:
            actual = sha256_file(path)
        except FileNotFoundError:  # pruned meanwhile
            return None
        if actual == sha256:
            return path
        self.drop(sha256, f"its SHA-256 is {actual}")
        return None

    def require_intact(self, sha256: str) -> Path:
        """Return the file with that digest, whose bytes were read.

        Raises:
            LostFileError: it is not here, or held other bytes, which are dropped.
        """
        path = self.find_intact(sha256)
        if path is None:
            raise _lost(self.file_path(sha256), "it is gone, or is damaged and was dropped")
        return path

    def drop(self, sha256: str, because: str) -> None:
        """Remove the file with that digest and its names: it is damaged, and is fetched or made again."""
        path = self.file_path(sha256)
        with storing("removing what is damaged"):
            emit("store.removed", what="damaged", path=str(path), because=because)
            remove_tree(path)
            remove_tree(self.named / sha256[:16])

    def adopt_file(self, source: Path, sha256: str, *, verified: bool = False) -> Path:
        """Move *source*, on the store's disk, into the store under *sha256*, once that digest is verified.

        *verified* says that the caller has computed that digest while writing the file.

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
            note_use(source)
            if target.exists() and (target.is_dir() or target.stat().st_size != source.stat().st_size):
                self.drop(sha256, "it has another size")  # its names too, which lead to what it was
            # Killed in between, a download can still be resumed; a read-only one could not.
            source.replace(target)
            target.chmod(0o444)
        return target

    def share(self, sha256: str) -> None:
        """Have the file with that digest written to the remote tier, where there is one."""
        if self.remote is not None:
            self.remote.write_file(sha256, self.file_path(sha256))

    def link(self, sha256: str, target: Path) -> Path:
        """Put the file with that digest at *target* too, inside the store.

        Raises:
            LostFileError: the store holds it no longer.
            StorageError: the disk is full or cannot be written.
        """
        source = self.file_path(sha256)
        with self._placing(sha256, target), shared(source):
            temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
            try:
                temporary.hardlink_to(source)
                temporary.replace(target)
            except OSError as error:
                if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}:
                    raise
                self._copy(sha256, target, mode=0o444)  # a file system without hard links
            finally:
                # Also where it was renamed: renaming one link of a file to another does nothing.
                temporary.unlink(missing_ok=True)
        return target

    def copy_out(self, sha256: str, target: Path) -> Path:
        """Copy the file with that digest out of the store: what is done to *target* stays there.

        The digest is computed of the bytes that are copied, and *target* appears once it is the right one.

        Raises:
            LostFileError: the store holds it no longer, or held other bytes, which are dropped.
            StorageError: the disk is full or cannot be written.
        """
        with self._placing(sha256, target):
            self._copy(sha256, target, mode=0o644)
        return target

    def _copy(self, sha256: str, target: Path, *, mode: int) -> None:
        source = self.file_path(sha256)
        with owned_file(target.parent, f".{target.name}.") as (handle, temporary):
            with source.open("rb") as reading, os.fdopen(os.dup(handle), "wb") as writing:
                actual = copy_hashed(reading, writing)
            if actual != sha256:
                self.drop(sha256, f"its SHA-256 is {actual}")
                raise _lost(target, f"{sha256[:12]} is damaged there, and was dropped")
            shutil.copystat(source, temporary)
            temporary.chmod(mode)
            temporary.replace(target)

    @contextlib.contextmanager
    def _placing(self, sha256: str, target: Path) -> Iterator[None]:
        with storing(f"placing {target.name}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            sweep_beside(target)
            try:
                yield
            except FileNotFoundError as error:
                if self.file_path(sha256).exists():
                    raise
                why = f"another run pruned {sha256[:12]}, or somebody removed it by hand"
                raise _lost(target, why) from error

    def named_file(self, sha256: str, filename: str) -> Path:
        """Return the file with that digest under a *filename* that tells what it is; it must be here."""
        target = self.named / sha256[:16] / filename
        if not _leads_to(target, self.file_path(sha256)):
            return self.link(sha256, target)
        note_use(target)
        return target

    # Records ---------------------------------------------------------------------------

    def find_record(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return the JSON object recorded under *kind* and *key*, or `None`; a damaged one counts as none."""
        data = self._read_record(kind, key)
        try:
            found = None if data is None else json.loads(data)
        except ValueError:  # neither JSON nor even text
            return None
        return found if isinstance(found, dict) else None

    def find_record_as(self, model: type[T], kind: str, key: str) -> T | None:
        """Return the same, read as a *model*; one that does not fit it counts as none."""
        data = self._read_record(kind, key)
        return None if data is None else _decoded(data, model)

    def find_records_as(self, model: type[T], kind: str, key: str, *, fresh: bool = False) -> Iterator[T]:
        """Yield what is recorded here and then, if more is wanted, what the remote tier has for the same key.

        For records that machines extend, each by its own results. *fresh* asks again what this command asked
        before.
        """
        here = self._read_record(kind, key)
        if here is not None and (found := _decoded(here, model)) is not None:
            yield found
        there = None if self.remote is None else self.remote.fetch_record(kind, key, fresh=fresh)
        if there is not None and there != here and (found := _decoded(there, model)) is not None:
            yield found

    def _read_record(self, kind: str, key: str) -> bytes | None:
        path = self.record_path(kind, key)
        data: bytes | None
        try:
            data = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            data = self.remote.fetch_record(kind, key) if self.remote is not None else None
            if data is not None:
                with contextlib.suppress(StorageError):  # of what is made here, it is an error
                    self._write_record(kind, key, data)
            return data
        note_use(path)
        return data

    def put_record(self, kind: str, key: str, value: dict[str, Any], *, share: bool = True) -> None:
        """Record *value* under *kind* and *key*, atomically.

        Without *share* it is kept from the remote tier, which has as much already.
        """
        record = json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
        self._write_record(kind, key, record)
        if share and self.remote is not None:
            self.remote.write_record(kind, key, record, self.file_path)

    def _write_record(self, kind: str, key: str, data: bytes) -> None:
        path = self.record_path(kind, key)
        with storing(f"recording {kind} {key[:12]}"):
            if path.is_dir():  # not made by the store
                remove_tree(path)
            write_atomically(path, data)

    def record_path(self, kind: str, key: str) -> Path:
        """Return where what is recorded under *kind* and *key* is, or would be."""
        return self.records / kind / key[:2] / f"{key}.json"

    # Scratch and folders ---------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a folder on the store's own disk that is gone after the block."""
        with contextlib.ExitStack() as stack:
            with storing("making a scratch folder"):
                self.scratch_root.mkdir(parents=True, exist_ok=True)
                folder = stack.enter_context(owned_folder(self.scratch_root))
            with storing("writing to the store's disk"):
                yield folder

    def sweep(self) -> None:
        """Remove what belongs to processes that are dead."""
        for folder in self.scratch_root.iterdir():
            sweep(folder)

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


def _decoded(data: bytes, model: type[T]) -> T | None:
    import msgspec

    try:
        return decode_json(data, model)
    except msgspec.DecodeError:
        return None


def _lost(target: Path, because: str) -> LostFileError:
    return LostFileError(
        f"{target.name} cannot be taken from the store",
        because=because,
        next_step="run the same command again: what is missing is fetched or made again",
    )


def _leads_to(name: Path, source: Path) -> bool:
    """Tell whether *name* is a link to *source*, or (on a disk without links) seems to be a copy of it."""
    try:
        left, right = name.stat(), source.stat()
    except FileNotFoundError:
        return False
    same_file = (left.st_dev, left.st_ino) == (right.st_dev, right.st_ino)
    return same_file or (
        (left.st_nlink, left.st_size, left.st_mtime_ns) == (1, right.st_size, right.st_mtime_ns)
    )
