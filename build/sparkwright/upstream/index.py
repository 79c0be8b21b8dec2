"""The package index (PEP 503 pages, PEP 691 JSON), and upstream's index of wheels by commit.

The second has one folder for each commit of its main branch, and pages without digests: below the address of
the settings, ``{commit}/`` holds the files of all variants. The page of one variant is
``{commit}/{variant}/vllm/index.html``; ``nightly/`` and ``{version}/`` have the same pages, which lead into
the folder of a commit. Nothing there states a digest or is signed, so nothing on a page is believed that its
address, its commit or the name of the file contradicts.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

from sparkwright.base.errors import DigestError, FetchError, NotInStoreError, UnknownNameError
from sparkwright.base.events import emit
from sparkwright.lock.model import Artifact
from sparkwright.upstream.network import (
    IndexSettings,
    fetch_failed,
    open_session,
    reason_of,
    retrying,
    shown,
    stated_bytes,
)

if TYPE_CHECKING:
    import requests
    from packaging.version import Version


@dataclass(frozen=True)
class IndexFile:
    """A file as an index lists it."""

    filename: str
    url: str
    sha256: str | None
    size: int | None
    is_sdist: bool
    yanked: bool


def find(project: str, version: str, settings: IndexSettings) -> list[IndexFile]:
    """Return the sdist and wheels of one release, from the first index that has it.

    A release is never mixed from two indexes: anybody could add a file to it on the second.

    Raises:
        UnknownNameError: *version* is no version.
        FetchError: the main index did not answer. Further indexes that do not are skipped with an
            ``index.skipped`` event.
    """
    from packaging.version import InvalidVersion, Version

    try:
        wanted = Version(version)
    except InvalidVersion as error:
        raise UnknownNameError(
            f"{version!r} is no version of {project}",
            because=str(error),
            next_step="give a release, such as 0.33.0",
        ) from error
    for listed in _listings(project, settings):
        if files := [file for found, file in listed if found == wanted]:
            return files
    return []


def versions(project: str, settings: IndexSettings, *, sdist: bool = False, machine: str = "") -> list[str]:
    """Return the final releases of *project* on the first index that has it, oldest first.

    Withdrawn files and pre-releases do not count.

    Raises:
        FetchError: the main index did not answer.
    """
    listed = listing(project, settings)
    usable = [(version, file) for version, file in listed if not file.yanked and not version.is_prerelease]
    found = {version for version, _ in usable}
    if sdist:
        found &= {version for version, file in usable if file.is_sdist}
    if machine:
        found &= {version for version, file in usable if file.filename.endswith(f"_{machine}.whl")}
    return [str(version) for version in sorted(found)]


def listing(project: str, settings: IndexSettings) -> list[tuple[Version, IndexFile]]:
    """Return every sdist and wheel of *project* with its version, from the first index that has it."""
    return next(filter(None, _listings(project, settings)), [])


def locate(artifact: Artifact, settings: IndexSettings) -> IndexFile:
    """Return where *artifact* is to be had: the file of that name whose stated digest is the lock's."""
    project = project_of(artifact.filename)
    others: list[str] = []
    for listed in _listings(project, settings):
        named = [file for _, file in listed if file.filename == artifact.filename]
        for file in named:
            # Where no digest is stated the file is worth fetching: it is verified anyway.
            if file.sha256 in {artifact.sha256, None}:
                return file
        others += [str(file.sha256) for file in named]
    if others:
        raise DigestError(
            f"{artifact.filename} on the index is not the file that the lock names",
            because=f"its SHA-256 is stated as {others[0]}, not {artifact.sha256}",
            next_step="do not use it before you know who changed which: the index or the lock",
        )
    raise FetchError(
        f"{artifact.filename} was not found", because=f"no index lists it for the project {project}",
        next_step="check pip's index-url and extra-index-url, or give a folder that holds the file",
    )  # fmt: skip


def project_of(filename: str) -> str:
    """Return the normalized project name (PEP 503) in the file name of an sdist or wheel.

    Raises:
        FetchError: it is the name of neither.
    """
    return _parsed(filename)[0]


def _parsed(filename: str) -> tuple[str, Any]:
    from packaging.utils import (
        InvalidSdistFilename,
        InvalidWheelFilename,
        parse_sdist_filename,
        parse_wheel_filename,
    )

    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[:2]
        return parse_sdist_filename(filename)
    except (InvalidSdistFilename, InvalidWheelFilename) as error:
        raise FetchError(f"{filename!r} is no file of a package index", because=str(error)) from error


def _listings(project: str, settings: IndexSettings) -> Iterator[list[tuple[Any, IndexFile]]]:
    """Yield each sdist and wheel of *project* with its version, index by index."""
    if settings.offline:
        raise NotInStoreError(
            f"the index page of {project} cannot be fetched",
            because="the network is off",
            next_step="run once without --offline",
        )
    from pypi_simple import NoSuchProjectError

    with open_session(settings) as session:
        for number, address in enumerate((settings.index_url, *settings.extra_index_urls)):
            try:
                page = retrying(settings, f"the index page of {project}")(
                    _page, session, address, project, settings
                )
            except Exception as error:
                if number == 0 and not isinstance(error, (NoSuchProjectError, FileNotFoundError)):
                    raise fetch_failed(f"the index page of {project}", error) from error
                emit("index.skipped", index=shown(address), project=project, reason=reason_of(error))
                continue
            files = _files(page)
            if local_path(address) is None:
                _refuse_local(files, address)
            yield files


def _refuse_local(files: list[tuple[Any, IndexFile]], address: str) -> None:
    """Do nothing if no file that the index at *address* on a network lists lies on this machine."""
    for _, file in files:
        if local_path(file.url) is not None:
            raise FetchError(
                f"the index {shown(address)} was refused",
                because=f"it says that {file.filename} is at {file.url}, on this machine",
                next_step="find out who changed it; only an index at a file:// address may name local files",
            )


def _page(session: requests.Session, address: str, project: str, settings: IndexSettings) -> Any:
    from pypi_simple import ProjectPage, PyPISimple

    if folder := local_path(address):
        page = folder / project / "index.html"
        return ProjectPage.from_html(project, page.read_bytes(), base_url=page.as_uri())
    client = PyPISimple(address, session=session) if address else PyPISimple(session=session)
    return client.get_project_page(project, timeout=settings.timeout_s)


def _files(page: Any) -> list[tuple[Any, IndexFile]]:
    files: list[tuple[Any, IndexFile]] = []
    for package in page.packages:
        if package.package_type not in {"sdist", "wheel"}:
            continue
        try:
            _, version = _parsed(package.filename)
        except FetchError:  # an old file with a name that no standard allows; we never want one
            continue
        files.append(
            (
                version,
                IndexFile(
                    filename=package.filename,
                    url=package.url,
                    sha256=package.digests.get("sha256"),
                    size=package.size,
                    is_sdist=package.package_type == "sdist",
                    yanked=package.is_yanked,
                ),
            )
        )
    return files


def local_path(url: str) -> Path | None:
    """Return the path that a ``file://`` address names, or `None` for any other address."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def remote_size(file: IndexFile, settings: IndexSettings) -> int:
    """Return the size of *file* in bytes: as the index states it, or as its server does."""
    if file.size is not None:
        return file.size
    if path := local_path(file.url):
        if not path.is_file():
            raise FetchError(f"the size of {file.filename} is unknown", because=f"{path} is no plain file")
        return path.stat().st_size
    with open_session(settings) as session:
        try:
            length = retrying(settings, f"the size of {file.filename}")(
                _stated_length, session, file.url, settings
            )
        except Exception as error:
            raise fetch_failed(f"the size of {file.filename}", error) from error
    if length is None:
        raise FetchError(f"the size of {file.filename} is unknown", because="its server does not state it")
    return length


def _stated_length(session: requests.Session, url: str, settings: IndexSettings) -> int | None:
    headers = {"Accept-Encoding": "identity"}
    response = session.head(url, headers=headers, timeout=settings.timeout_s, allow_redirects=True)
    response.raise_for_status()
    return stated_bytes(response)


# Wheels by commit ------------------------------------------------------------------------------------


NIGHTLY = "nightly"
VARIANT = "cu130"
"""CUDA 13, which knows the card; pages have it under this name also where it is upstream's main variant."""
_PROJECT = "vllm"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NOT_FOUND = 404
_LINUX = re.compile(r"(?:many)?linux\w*_(aarch64|x86_64)")


@dataclass(frozen=True)
class CommitWheel:
    """A wheel as a page of the index lists it.

    Attributes:
        machine: the machine that it is for; empty for another system than Linux.
    """

    commit: str
    filename: str
    url: str
    machine: str


def list_wheels(target: str, settings: IndexSettings) -> tuple[CommitWheel, ...]:
    """Return the wheels of *target*; none where the index has no such page.

    *target* is the full id of a commit, a release's version, or ``nightly``.
    """
    address = urljoin(settings.upstream_wheels.rstrip("/") + "/", f"{target}/{VARIANT}/{_PROJECT}/index.html")
    what = f"the page of {target} in upstream's index of wheels"
    with open_session(settings) as session:
        try:
            text = retrying(settings, what)(_text, session, address, settings)
        except Exception as error:
            raise fetch_failed(what, error) from error
    return () if text is None else _wheels(text, address, target, settings)


def _text(session: requests.Session, address: str, settings: IndexSettings) -> str | None:
    response = session.get(address, timeout=settings.timeout_s, allow_redirects=False)
    if response.status_code == _NOT_FOUND:
        return None
    response.raise_for_status()
    if response.is_redirect:
        raise FetchError(f"{shown(address)} was refused", because="it redirects to another address")
    return response.content.decode(errors="replace")


def _wheels(text: str, address: str, target: str, settings: IndexSettings) -> tuple[CommitWheel, ...]:
    from pypi_simple import ProjectPage

    page = ProjectPage.from_html(_PROJECT, text, base_url=address)
    wheels = tuple(_wheel(package.url, target, settings) for package in page.packages)
    if len({wheel.commit for wheel in wheels}) > 1:
        raise _refused(address, "it lists wheels of several commits")
    for machine in {wheel.machine for wheel in wheels} - {""}:
        if len(same := [wheel.filename for wheel in wheels if wheel.machine == machine]) > 1:
            raise _refused(address, f"it lists several wheels for {machine}: {', '.join(sorted(same))}")
    return wheels


def _wheel(url: str, target: str, settings: IndexSettings) -> CommitWheel:
    """Return the wheel at *url*, the address of a link resolved against its page's."""
    base, parts = urlsplit(settings.upstream_wheels.rstrip("/") + "/"), urlsplit(url)
    if (parts.scheme, parts.netloc) != (base.scheme, base.netloc):
        raise _refused(url, f"it leads away from {shown(settings.upstream_wheels)}")
    path = unquote(parts.path)
    if posixpath.normpath(path) != path or not path.startswith(base.path):
        raise _refused(url, f"it leads out of {shown(settings.upstream_wheels)}")
    commit, _, filename = path.removeprefix(base.path).partition("/")
    if not _COMMIT.fullmatch(commit) or not re.fullmatch(r"[\w.+-]+\.whl", filename, re.ASCII):
        raise _refused(url, "it is no wheel in the folder of a commit")
    if _COMMIT.fullmatch(target) and commit != target:
        raise _refused(url, f"it is in the folder of another commit than {target}")
    return CommitWheel(commit, filename, url, _machine(filename, commit, url))


def _machine(filename: str, commit: str, url: str) -> str:
    """Return the machine that the wheel *filename* is for, once its project and version fit *commit*."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename
    from packaging.version import InvalidVersion

    try:
        project, version, _, tags = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise _refused(url, str(error)) from error
    if project != _PROJECT:
        raise _refused(url, f"it is a wheel of {project}")
    # Versions have the commit as a mark unless they are releases, and the variant unless it is the main one.
    marks = version.local.split(".") if version.local else []
    stated = next((mark[1:] for mark in marks if re.fullmatch(r"g[0-9a-f]{7,40}", mark)), None)
    if not (commit.startswith(stated) if stated else version.dev is None):
        raise _refused(url, f"version {version} is not of commit {commit[:12]}")
    if others := [mark for mark in marks if mark not in {f"g{stated}", VARIANT}]:
        raise _refused(url, f"version {version} is of the variant {others[0]}, not {VARIANT}")
    machines = {found[1] for tag in tags if (found := _LINUX.fullmatch(tag.platform))}
    return machines.pop() if len(machines) == 1 else ""


def find_wheel(commit: str, machine: str, settings: IndexSettings) -> CommitWheel | None:
    """Return the wheel of *commit* for *machine*, or `None`; see `list_wheels`."""
    return next((wheel for wheel in list_wheels(commit, settings) if wheel.machine == machine), None)


def locate_in_commit(artifact: Artifact, settings: IndexSettings) -> IndexFile:
    """Return the present address of *artifact*, which is a wheel of a commit."""
    commit = artifact.commit or ""
    for wheel in list_wheels(commit, settings):
        if wheel.filename == artifact.filename:
            return as_file(wheel)
    raise FetchError(
        f"{artifact.filename} was not found",
        because=f"{shown(settings.upstream_wheels)} does not list it for commit {commit[:12]}",
        next_step="give a folder that holds the file with --source, or pin a newer commit",
    )


def as_file(wheel: CommitWheel) -> IndexFile:
    """Return *wheel* as a file of an index that states neither digest nor size."""
    return IndexFile(wheel.filename, wheel.url, sha256=None, size=None, is_sdist=False, yanked=False)


def _refused(address: str, why: str) -> FetchError:
    return FetchError(
        f"{shown(address)} in upstream's index of wheels was refused", because=why,
        next_step="do not use it before you know what changed; SPARKWRIGHT_UPSTREAM_WHEELS names the index",
    )  # fmt: skip
