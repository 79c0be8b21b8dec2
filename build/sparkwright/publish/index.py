"""A static index of wheels, written beside them: a simple repository.

HTML after PEP 503, metadata links after PEP 658 and PEP 714. No page reads a clock: equal files give equal
pages.
"""

from __future__ import annotations

import contextlib
import html
import os
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.errors import DigestError, PublishError
from sparkwright.base.events import warn
from sparkwright.base.text import one_line
from sparkwright.lock.model import series_of
from sparkwright.lock.runtime import (
    SUFFIX,
    LockedPackage,
    LockedRuntime,
    format_runtime,
    read_runtime,
    runtime_name,
)
from sparkwright.store.disk import hold, storing, write_atomically
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.checks import is_ours
from sparkwright.wheel.names import WheelName, header, parse_name

PAGE = "index.html"
BEGINNING = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="pypi:repository-version" content="1.4">
"""
"""The beginning of each of our pages, by which they are known."""


SIMPLE = "simple"
_METADATA = ".metadata"
_LOCK = ".publish.lock"
DIST_VARIABLE = "SPARKWRIGHT_DIST"


def dist_folder(root: Path, chosen: Path | None = None) -> Path:
    """Return *chosen*, or the folder named by ``SPARKWRIGHT_DIST``, or ``dist/`` in the checkout *root*."""
    if chosen is not None:
        return chosen
    named = os.environ.get(DIST_VARIABLE)
    return Path(named) if named else root / "dist"


@dataclass(frozen=True)
class PublishedFile:
    """One wheel as the index lists it.

    Attributes:
        project: its project's name, normalized after PEP 503.
    """

    project: str
    version: str
    filename: str
    sha256: str
    size: int
    requires_python: str
    metadata_sha256: str

    @property
    def order(self) -> tuple[Version, str]:
        """The sort key of files."""
        return Version(self.version), self.filename


@dataclass(frozen=True)
class PublishedIndex:
    """A finished index."""

    folder: Path
    files: tuple[PublishedFile, ...]

    @property
    def url(self) -> str:
        """The address that pip takes as ``--index-url`` on this machine."""
        return (self.folder / SIMPLE).absolute().as_uri()


def wheels_in(folder: Path) -> tuple[Path, ...]:
    """Return the wheels in *folder*, by name, sorted; without those that are still being written."""
    return tuple(sorted(path for path in folder.glob("*.whl") if not path.name.startswith(".")))


def publish(
    folder: Path,
    *,
    digests: Mapping[str, str] | None = None,
    runtimes: Mapping[str, LockedRuntime] | None = None,
) -> PublishedIndex:
    """Make the index in *folder* list exactly the wheels there.

    Files appear one by one, whole, and in an order in which no page ever names a missing file: metadata, then
    the projects' pages, then the root; pages of projects without a wheel are removed last. The same wheels
    give the same bytes.

    *digests* are SHA-256 of wheels by file name, if the caller has them, and *runtimes* those of
    `runtimes_in`; each wheel gets its own beside it.
    """
    wheels = wheels_in(folder)
    _check_wheels(wheels)
    with storing(f"publishing into {folder}", instead="publish into another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        with hold(folder / _LOCK, f"the index in {folder}"):
            described = [describe(wheel, digests) for wheel in wheels]
            files = sorted((file for file, _ in described), key=lambda file: (file.project, file.order))
            beside = {file.filename + _METADATA: metadata for file, metadata in described}
            beside |= dict(filter(None, (runtime_page(file, runtimes or {}) for file in files)))
            pages = {f"{SIMPLE}/{path}": page for path, page in all_pages(files).items()}
            for name in (*beside, *pages):
                _require_free(folder, name)
            for name, data in {**beside, **pages}.items():
                _put(folder / name, data)
            remove_stale(folder, pages)
    return PublishedIndex(folder, tuple(files))


def require_listed(wheel: Path, sha256: str) -> None:
    """Refuse *wheel*, which has the digest *sha256*, if the index beside it lists the file with another one.

    Raises:
        DigestError: it does.
    """
    project = canonicalize_name(parse_name(wheel.name).distribution)
    with contextlib.suppress(FileNotFoundError):
        page = (wheel.parent / SIMPLE / project / PAGE).read_text("utf-8", errors="replace")
        listed = re.search(rf"{re.escape(quote(wheel.name, safe=''))}#sha256=([0-9a-f]{{64}})", page)
        if listed and listed[1] != sha256:
            raise DigestError(
                f"{wheel.name} is not the file that the index in {wheel.parent} lists",
                because=f"it has SHA-256 {sha256}, and the index {listed[1]}",
                next_step="do not use it: move it away, and build or fetch it again",
            )


def runtimes_in(patchsets: Path) -> dict[str, LockedRuntime]:
    """Return the locked runtimes in a folder of patchsets, by file name."""
    return {path.name: read_runtime(path) for path in sorted(patchsets.glob(f"*{SUFFIX}"))}


def runtime_page(file: PublishedFile, runtimes: Mapping[str, LockedRuntime]) -> tuple[str, bytes] | None:
    """Return name and content of the requirements beside the wheel *file*; `None` without a runtime.

    They hold the wheel itself by its digest, and everything that its series runs with on its machine.
    """
    machine = parse_name(file.filename).machine
    runtime = runtimes.get(runtime_name(series_of(file.version), machine))
    if runtime is None or file.project != "vllm":
        return None
    own = LockedPackage(file.project, file.version, "", (file.sha256,))
    whole = replace(runtime, packages=(own, *runtime.packages))
    text = format_runtime(whole, release=file.version, machine=machine)
    return f"{file.filename.removesuffix('.whl')}{SUFFIX}", text.encode()


def require_plain(wheels: Sequence[Path]) -> None:
    """Refuse anything but files among *wheels*."""
    for wheel in wheels:
        if os.path.lexists(wheel) and not wheel.is_file():
            raise PublishError(
                "the index cannot be written",
                because=f"{one_line(wheel)} is named as a wheel and is no plain file",
                next_step="move it away",
            )


def _check_wheels(wheels: Sequence[Path]) -> None:
    require_plain(wheels)
    for wheel in wheels:
        try:
            wheel.name.encode()
        except UnicodeEncodeError as error:
            raise PublishError(
                "the index cannot be written", because=f"the name {one_line(wheel)} is not UTF-8",
                next_step="rename it or move it away",
            ) from error  # fmt: skip


def describe(wheel: Path, digests: Mapping[str, str] | None = None) -> tuple[PublishedFile, bytes]:
    """Return the index's entry for *wheel*, and its METADATA.

    *digests* are SHA-256 of wheels by file name, if the caller has them.
    """
    name = parse_name(wheel.name)
    with open_archive(wheel) as archive:
        metadata = archive.read(f"{name.dist_info}/METADATA")
        tags = header(archive.read(f"{name.dist_info}/WHEEL"), "Tag")
        generic = "" if is_ours(archive, name) else f"{name.python}-{name.abi}-linux_{name.machine}"
    project = canonicalize_name(name.distribution)
    stated: list[str] = [canonicalize_name(value) for value in header(metadata, "Name")]
    with contextlib.suppress(InvalidVersion):
        stated += [str(Version(value)) for value in header(metadata, "Version")]
    version = str(Version(name.version))
    if stated != [project, version]:
        raise PublishError(
            f"{wheel.name} cannot be published",
            because=f"its name states {project} {version}, its METADATA {' '.join(stated) or 'nothing'}",
            next_step="build it again",
        )
    requires = ",".join(header(metadata, "Requires-Python"))
    _check_installable(name, tags, requires, generic)
    digest = (digests or {}).get(wheel.name) or sha256_file(wheel)
    file = PublishedFile(
        project, version, wheel.name, digest, wheel.stat().st_size, requires, sha256_bytes(metadata),
    )  # fmt: skip
    return file, metadata


def _check_installable(name: WheelName, tags: Sequence[str], requires: str, generic: str) -> None:
    """Refuse a wheel that installers refuse, or understand otherwise than the index says."""
    try:
        SpecifierSet(requires)
    except InvalidSpecifier as error:
        raise PublishError(
            f"{name.filename} cannot be published",
            because=f"no installer can read its Requires-Python {requires!r}",
            next_step="build it again from metadata that PEP 440 allows",
        ) from error
    if sorted(tags) == sorted(name.tags):
        return
    stated = f"its WHEEL file has the tags {', '.join(tags) or '(none)'}, its name {', '.join(name.tags)}"
    if tags == [generic]:  # as in upstream's own wheels
        warn(f"{name.filename}: {stated}")
        return
    raise PublishError(
        f"{name.filename} cannot be published",
        because=stated,
        next_step="build it again; 'python -m wheel tags' changes both",
    )


def _put(path: Path, data: bytes) -> None:
    """Write *data* to *path* unless it is there already."""
    if not path.is_file() or path.read_bytes() != data:
        write_atomically(path, data)


def _is_page(path: Path) -> bool:
    """Tell if `publish` wrote the page at *path*."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(BEGINNING)) == BEGINNING


def _require_free(folder: Path, name: str) -> None:
    """Refuse *name* if a link leads to it, or if it would replace a file that `publish` did not write."""
    path = folder / name
    above = [at for at in path.parents if folder in at.parents]
    in_the_way = [at for at in above if os.path.lexists(at) and (at.is_symlink() or not at.is_dir())]
    if not in_the_way and os.path.lexists(path):
        known = _is_page(path) if above else path.is_file() and not path.is_symlink()
        in_the_way = [] if known else [path]
    if in_the_way:
        raise PublishError(
            "the index cannot be written",
            because=f"{in_the_way[0]} is in the way, and was not written by sparkwright",
            next_step="move it away, or publish into another folder",
        )


def remove_stale(folder: Path, pages: Collection[str]) -> None:
    """Remove pages that an earlier `publish` wrote and that are not among *pages*."""
    for path in sorted((folder / SIMPLE).glob(f"*/{PAGE}")):
        name = path.relative_to(folder).as_posix()
        if name not in pages and not path.parent.is_symlink() and _is_page(path):
            path.unlink()
            with contextlib.suppress(OSError):  # it contains other files
                path.parent.rmdir()


# Pages ----------------------------------------------------------------------


def all_pages(files: Sequence[PublishedFile], addresses: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Return every page over *files* by path in ``simple/``, in the order in which they may be written.

    *addresses* are those of wheels by file name, if they are not two folders above their page.
    """
    ordered = sorted(files, key=lambda file: (file.project, file.order))
    pages: dict[str, bytes] = {}
    for project, group in groupby(ordered, key=lambda file: file.project):
        anchors = [_anchor(file, (addresses or {}).get(file.filename, "")) for file in group]
        pages[f"{project}/{PAGE}"] = _page(f"Links for {project}", anchors)
    links = [f'<a href="{quote(name)}/">{html.escape(name)}</a>' for name in map(posixpath.dirname, pages)]
    return {**pages, PAGE: _page("Simple index", links)}


def _anchor(file: PublishedFile, address: str) -> str:
    # ``+`` is ``%2B``, which is never read as a space.
    attributes = {"href": f"{address or '../../' + quote(file.filename, safe='')}#sha256={file.sha256}"}
    if file.requires_python:
        attributes["data-requires-python"] = file.requires_python
    # Clients older than PEP 714 read the attribute under its first name only.
    for name in ("data-dist-info-metadata", "data-core-metadata"):
        attributes[name] = f"sha256={file.metadata_sha256}"
    listed = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<a {listed}>{html.escape(file.filename)}</a>"


def _page(title: str, links: Sequence[str]) -> bytes:
    lines = [
        f"<title>{html.escape(title)}</title>",
        "</head>",
        "<body>",
        f"<h1>{html.escape(title)}</h1>",
        *(f"{link}<br>" for link in links),
        "</body>",
        "</html>",
    ]
    return BEGINNING + ("\n".join(lines) + "\n").encode()
