"""Writing a static index beside the wheels that it lists."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from sparkwright.base.digests import sha256_bytes, sha256_file, to_json
from sparkwright.base.errors import PublishError
from sparkwright.base.events import emit
from sparkwright.publish.pages import (
    PublishedFile,
    has_our_form,
    project_html,
    project_json,
    root_html,
    root_json,
)
from sparkwright.store import hold, storing, write_atomically
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.stamp import header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SIMPLE = "simple"
_METADATA = ".metadata"
_LOCK = ".publish.lock"
_WRITTEN = f"{SIMPLE}/.written.json"
"""The list of what we wrote, with digests: nothing else is ever replaced or removed."""
_IS_OURS = re.compile(rf"{SIMPLE}/([^/]+/)?index\.(html|json)|[^/]+\.whl{re.escape(_METADATA)}")


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
    files: tuple[PublishedFile, ...]
    written: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def url(self) -> str:
        """The address that pip takes as ``--index-url`` on this machine."""
        return (self.folder / SIMPLE).absolute().as_uri()


def wheels_in(folder: Path) -> tuple[Path, ...]:
    """Return what is named as a wheel in *folder*, sorted; those still being written are not among them."""
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
        PublishError: two wheels have one name, a wheel is no plain file, its name and metadata disagree,
            or something that we did not write is where a page belongs.
        ArchiveError: a wheel cannot be read.
        WheelError: a file is not named as a wheel is.
        StorageError: the disk is full or cannot be written.
    """
    _check_wheels(wheels)
    with storing(f"publishing into {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with hold(folder / _LOCK, f"the index in {folder}"):
            ours = _read_written(folder)
            described = [_describe(_placed(wheel, folder), digests or {}) for wheel in wheels]
            files = sorted((file for file, _ in described), key=lambda file: (file.project, file.order))
            pages = {file.filename + _METADATA: metadata for file, metadata in described}
            pages |= _pages(files)
            digests_of_pages = {name: sha256_bytes(data) for name, data in pages.items()}
            _refuse_others(folder, digests_of_pages, ours)
            # Killed at any moment, the next run still knows what is ours.
            _write_written(folder, {**ours, **digests_of_pages})
            written = tuple(name for name, data in pages.items() if _put(folder / name, data))
            removed = _remove_stale(folder, {name: ours[name] for name in ours.keys() - pages.keys()})
            _write_written(folder, digests_of_pages)
    emit("index.published", folder=str(folder), files=len(files), written=len(written), removed=len(removed))
    return PublishedIndex(folder, tuple(files), written, removed)


def require_plain(wheels: Sequence[Path]) -> None:
    """Do nothing if all *wheels* are files.

    Raises:
        PublishError: one is a folder, a pipe or whatever else has only the name of a wheel.
    """
    for wheel in wheels:
        if os.path.lexists(wheel) and not wheel.is_file():
            raise PublishError(
                "the index cannot be written",
                because=f"{_shown(wheel)} is named as a wheel and is no plain file",
                next_step="move it away",
            )


def _shown(path: Path) -> str:
    """*path* as any encoding can say it."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _check_wheels(wheels: Sequence[Path]) -> None:
    require_plain(wheels)
    for wheel in wheels:
        try:
            wheel.name.encode()
        except UnicodeEncodeError as error:
            raise PublishError(
                "the index cannot be written", because=f"the name {_shown(wheel)} is not UTF-8",
                next_step="rename it or move it away",
            ) from error  # fmt: skip
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


def _describe(wheel: Path, digests: Mapping[str, str]) -> tuple[PublishedFile, bytes]:
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
    file = PublishedFile(
        project, version, wheel.name, digests.get(wheel.name) or sha256_file(wheel), wheel.stat().st_size,
        ",".join(header(metadata, "Requires-Python")), sha256_bytes(metadata),
    )  # fmt: skip
    return file, metadata


def _pages(files: Sequence[PublishedFile]) -> dict[str, bytes]:
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


def _read_written(folder: Path) -> dict[str, str]:
    """SHA-256 of every page and metadata file that we wrote in *folder*, by its path there.

    An index of an earlier version has no such list, but its pages can be told by their form.
    """
    path = folder / _WRITTEN
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, msgspec.DecodeError, UnicodeDecodeError):
        written = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        return {name: sha256 for name, sha256 in written.items() if _IS_OURS.fullmatch(name)}
    pages = {page: page.read_bytes() for page in folder.glob(f"{SIMPLE}/**/index.*") if page.is_file()}
    return {
        page.relative_to(folder).as_posix(): sha256_bytes(data)
        for page, data in pages.items()
        if has_our_form(data)
    }


def _write_written(folder: Path, digests: Mapping[str, str]) -> None:
    _put(folder / _WRITTEN, to_json(digests) + b"\n")


def _refuse_others(folder: Path, pages: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Do nothing if no page takes the place of something that we did not write.

    Raises:
        PublishError: one does.
    """
    for name, sha256 in pages.items():
        path = folder / name
        above = [at for at in path.parents if at != folder and at.is_relative_to(folder)]
        in_the_way = next((at for at in above if os.path.lexists(at) and not at.is_dir()), None)
        if in_the_way is None and os.path.lexists(path):
            # One of ours may have been damaged since, or the list of them.
            known = path.is_file() and (
                name in ours or has_our_form(data := path.read_bytes()) or sha256_bytes(data) == sha256
            )
            in_the_way = None if known else path
        if in_the_way is not None:
            raise PublishError(
                "the index cannot be written",
                because=f"{in_the_way} is in the way, and was not written by us",
                next_step="move it away, or publish into another folder",
            )


def _remove_stale(folder: Path, stale: Mapping[str, str]) -> tuple[str, ...]:
    """Remove those pages and metadata files, by their digests, that are still as we wrote them."""
    removed = []
    for name, sha256 in sorted(stale.items()):
        path = folder / name
        if not path.is_file() or sha256_file(path) != sha256:
            continue
        path.unlink()
        removed.append(name)
        with contextlib.suppress(OSError):  # the folder holds something that is not ours
            if path.parent != folder:
                path.parent.rmdir()
    return tuple(removed)
