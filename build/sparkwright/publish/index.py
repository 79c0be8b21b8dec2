"""Writing a static index beside the wheels that it lists."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from sparkwright.canonical import sha256_bytes, sha256_file
from sparkwright.errors import PublishError
from sparkwright.events import emit
from sparkwright.publish.pages import IndexFile, project_html, project_json, root_html, root_json
from sparkwright.store import hold, storing, write_atomically
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.stamp import header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["PublishedIndex", "publish", "wheels_in"]

SIMPLE = "simple"
_METADATA = ".metadata"


@dataclass(frozen=True)
class PublishedIndex:
    """A finished index.

    Attributes:
        folder: holds the wheels and, in ``simple/``, the pages.
        files: what the index lists, by project and version.
        written: the pages and metadata files that changed, relative to *folder*.
        removed: those that went away, relative to *folder*.
    """

    folder: Path
    files: tuple[IndexFile, ...]
    written: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def url(self) -> str:
        """The address that pip takes as ``--index-url`` on this machine."""
        return (self.folder / SIMPLE).absolute().as_uri()


def wheels_in(folder: Path) -> tuple[Path, ...]:
    """The wheels in *folder*, sorted by name; those still being written are not among them."""
    return tuple(sorted(path for path in folder.glob("*.whl") if not path.name.startswith(".")))


def publish(
    wheels: Sequence[Path], folder: Path, *, digests: Mapping[str, str] | None = None
) -> PublishedIndex:
    """Make the index in *folder* list exactly *wheels*.

    A wheel that lies elsewhere is put into *folder* first. Files appear one by one, whole,
    and in an order in which no page ever names what is not there: wheels and their metadata,
    then the projects' pages, then the root; what is stale goes last, the other way round. The
    same wheels give the same bytes.

    Args:
        wheels: what to list.
        folder: where to; the pages go to ``simple/`` in it.
        digests: SHA-256 of wheels by file name, where the caller knows it; the others are read.

    Raises:
        PublishError: two wheels have one name, or a wheel's name and metadata disagree.
        ArchiveError: a wheel cannot be read.
        WheelError: a file is not named as a wheel is.
        StorageError: the disk is full or cannot be written.
    """
    _check_names(wheels)
    with storing(f"publishing into {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with hold(folder / ".publish.lock", f"the index in {folder}"):
            described = [_describe(_placed(wheel, folder), digests or {}) for wheel in wheels]
            files = sorted((file for file, _ in described), key=lambda file: (file.project, file.order))
            pages = {file.filename + _METADATA: metadata for file, metadata in described}
            pages |= _pages(files)
            written = tuple(name for name, data in pages.items() if _put(folder / name, data))
            removed = _remove_stale(folder, set(pages))
    emit("index.published", folder=str(folder), files=len(files), written=len(written), removed=len(removed))
    return PublishedIndex(folder, tuple(files), written, removed)


def _check_names(wheels: Sequence[Path]) -> None:
    names = [wheel.name for wheel in wheels]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise PublishError("the index cannot be written", because=f"two wheels are called {doubled[0]}")


def _placed(wheel: Path, folder: Path) -> Path:
    """*wheel* inside *folder*, copied there when it lies elsewhere."""
    target = folder / wheel.name
    if wheel.parent.resolve() == folder.resolve():
        return target
    handle, name = tempfile.mkstemp(prefix=f".{wheel.name}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as copy, wheel.open("rb") as original:
            shutil.copyfileobj(original, copy, 1 << 20)
            os.fchmod(copy.fileno(), 0o644)
            copy.flush()
            os.fsync(copy.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def _describe(wheel: Path, digests: Mapping[str, str]) -> tuple[IndexFile, bytes]:
    """How the index lists *wheel*, and its METADATA."""
    name = parse_name(wheel.name)
    with open_archive(wheel) as archive:
        metadata = archive.read(f"{name.dist_info}/METADATA")
    project = canonicalize_name(name.distribution)
    stated: list[str] = [canonicalize_name(value) for value in header(metadata, "Name")]
    with contextlib.suppress(InvalidVersion):
        stated += [str(Version(value)) for value in header(metadata, "Version")]
    version = str(Version(name.version))
    if stated != [project, version]:
        raise PublishError(
            f"{wheel.name} cannot be published",
            because=f"its name says {project} {version}, its METADATA {' '.join(stated) or 'nothing'}",
            next_step="build it again",
        )
    file = IndexFile(
        project, version, wheel.name, digests.get(wheel.name) or sha256_file(wheel), wheel.stat().st_size,
        ",".join(header(metadata, "Requires-Python")), sha256_bytes(metadata),
    )  # fmt: skip
    return file, metadata


def _pages(files: Sequence[IndexFile]) -> dict[str, bytes]:
    """Every page by its path below the index's folder, in the order in which they may appear."""
    pages: dict[str, bytes] = {}
    for project, group in groupby(files, key=lambda file: file.project):
        listed = tuple(group)
        pages[f"{SIMPLE}/{project}/index.html"] = project_html(project, listed)
        pages[f"{SIMPLE}/{project}/index.json"] = project_json(project, listed)
    projects = sorted({file.project for file in files})
    pages[f"{SIMPLE}/index.html"] = root_html(projects)
    pages[f"{SIMPLE}/index.json"] = root_json(projects)
    return pages


def _put(path: Path, data: bytes) -> bool:
    """Write *data* to *path* unless it is there already; whether it was not."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return True


def _remove_stale(folder: Path, current: set[str]) -> tuple[str, ...]:
    """Remove pages of projects, and metadata of wheels, that the index does not list any more."""
    ours = [*folder.glob(f"{SIMPLE}/*/index.html"), *folder.glob(f"{SIMPLE}/*/index.json")]
    ours += folder.glob(f"*.whl{_METADATA}")
    removed = []
    for path in ours:
        if (name := path.relative_to(folder).as_posix()) not in current:
            path.unlink()
            removed.append(name)
            with contextlib.suppress(OSError):  # the folder holds something that is not ours
                if path.parent != folder:
                    path.parent.rmdir()
    return tuple(removed)
