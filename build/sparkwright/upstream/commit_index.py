"""Upstream's index of wheels by commit: one folder for each commit of its main branch, pages without digests.

Below the address of the settings, ``{commit}/`` holds the files of all variants. The page of one variant
is ``{commit}/{variant}/vllm/index.html``; ``nightly/`` and ``{version}/`` have the same pages, which lead
into the folder of a commit. Nothing there states a digest or is signed, so nothing on a page is believed
that its address, its commit or the name of the file contradicts.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from sparkwright.base.errors import FetchError
from sparkwright.lock.model import Artifact
from sparkwright.upstream.index import IndexFile
from sparkwright.upstream.network import fetch_failed, open_session, retrying, shown
from sparkwright.upstream.settings import IndexSettings

if TYPE_CHECKING:
    import requests


NIGHTLY = "nightly"
_PROJECT = "vllm"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NOT_FOUND = 404
_LINUX = re.compile(r"(?:many)?linux\w*_(aarch64|x86_64)")


@dataclass(frozen=True)
class CommitWheel:
    """A wheel as a page of the index lists it.

    Attributes:
        commit: full id of the commit whose folder holds it.
        machine: the machine that it is for; empty for another system than Linux.
    """

    commit: str
    filename: str
    url: str
    machine: str


def list_wheels(target: str, settings: IndexSettings) -> tuple[CommitWheel, ...]:
    """Return the wheels of *target*, in the variant of the settings; none where the index has no such page.

    Args:
        target: full id of a commit, a release's version, or ``nightly``.
        settings: how to reach the index.

    Raises:
        FetchError: it did not answer, or its page links to something else than wheels that fit.
    """
    page = "/".join(filter(None, (target, settings.upstream_variant, _PROJECT, "index.html")))
    address = urljoin(settings.upstream_wheels.rstrip("/") + "/", page)
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
    """Return the wheel at *url*, the address of a link resolved against its page's.

    Raises:
        FetchError: it is not a wheel in the folder of the commit, or its name does not fit.
    """
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
    return CommitWheel(commit, filename, url, _machine(filename, commit, url, settings.upstream_variant))


def _machine(filename: str, commit: str, url: str, variant: str) -> str:
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
    if others := [mark for mark in marks if mark not in {f"g{stated}", variant}]:
        raise _refused(
            url, f"version {version} is of the variant {others[0]}, not {variant or 'the main one'}"
        )
    machines = {found[1] for tag in tags if (found := _LINUX.fullmatch(tag.platform))}
    return machines.pop() if len(machines) == 1 else ""


def find_wheel(commit: str, machine: str, settings: IndexSettings) -> CommitWheel | None:
    """Return the wheel of *commit* for *machine*, or `None`; see `list_wheels`."""
    return next((wheel for wheel in list_wheels(commit, settings) if wheel.machine == machine), None)


def locate_in_commit(artifact: Artifact, settings: IndexSettings) -> IndexFile:
    """Return the present address of *artifact*, which is a wheel of a commit.

    Raises:
        FetchError: the index no longer lists it.
    """
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
