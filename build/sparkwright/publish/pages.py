"""The pages of a simple repository, as pure functions of the files that they list.

HTML after PEP 503, JSON after PEP 691 and PEP 700, metadata links after PEP 658 and PEP 714, yanks after
PEP 592, a project's status after PEP 792. Nothing here reads a clock:
an upload time is on a page only where the caller gives one, so equal files give equal pages.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from packaging.version import Version

from sparkwright.base.digests import to_json

API_VERSION = "1.4"
_UP = "../../"


@dataclass(frozen=True)
class PublishedFile:
    """One wheel as the index lists it.

    Attributes:
        project: its project's name, normalized after PEP 503.
        version: its PEP 440 version.
        filename: its name, unescaped.
        sha256: digest of its bytes, 64 hex digits.
        size: in bytes.
        requires_python: PEP 440 specifier, or the empty string.
        metadata_sha256: digest of its METADATA, 64 hex digits; empty for a file without one.
        url: its address, absolute or relative to the project's page, with METADATA at the same address and
            ``.metadata`` behind it; two folders above the page if empty.
        upload_time: time of its upload, in UTC, as ``2026-11-23T00:52:10Z``; on no page if empty.
        yanked: reason for its yank, which may be empty; `None` if it is not yanked.
    """

    project: str
    version: str
    filename: str
    sha256: str
    size: int
    requires_python: str
    metadata_sha256: str
    url: str = ""
    upload_time: str = ""
    yanked: str | None = None

    @property
    def order(self) -> tuple[Version, str]:
        """The sort key of files."""
        return Version(self.version), self.filename


@dataclass(frozen=True)
class ProjectStatus:
    """The status of a project after PEP 792.

    Attributes:
        status: its marker. The page of a quarantined project names its versions and lists no file.
        reason: the reason for it, for people; may be empty.
    """

    status: Literal["active", "archived", "quarantined", "deprecated"] = "active"
    reason: str = ""

    def offered(self, files: Sequence[PublishedFile]) -> Sequence[PublishedFile]:
        """Return those of *files* that a page with this status may list."""
        return () if self.status == "quarantined" else files


def root_html(projects: Sequence[str]) -> bytes:
    """Return the page that lists *projects*, normalized names."""
    return _page("Simple index", [f'<a href="{quote(name)}/">{html.escape(name)}</a>' for name in projects])


def root_json(projects: Sequence[str]) -> bytes:
    """Return the list of *projects* as JSON."""
    return _json({"projects": [{"name": name} for name in projects]})


def project_html(project: str, files: Sequence[PublishedFile], status: ProjectStatus | None = None) -> bytes:
    """Return the page of *project*, two folders below those of its *files* that have no address of their own.

    Args:
        project: its normalized name.
        files: the files, in the order in which they are listed.
        status: the project's status, which the page states; active, and not stated, if `None`.
    """
    marker = status or ProjectStatus()
    meta = [] if status is None else [_meta("pypi:project-status", marker.status)]
    meta += [_meta("pypi:project-status-reason", marker.reason)] if marker.reason else []
    return _page(f"Links for {project}", [_anchor(file) for file in marker.offered(files)], meta)


def project_json(project: str, files: Sequence[PublishedFile], status: ProjectStatus | None = None) -> bytes:
    """Return the page of *project* as JSON; see `project_html`."""
    marker = status or ProjectStatus()
    page: dict[str, Any] = {
        "name": project,
        "versions": list(dict.fromkeys(file.version for file in files)),
        "files": [_entry(file) for file in marker.offered(files)],
    }
    if status is not None:
        reason = {"reason": marker.reason} if marker.reason else {}
        page["project-status"] = {"status": marker.status, **reason}
    return _json(page)


def address_of(file: PublishedFile) -> str:
    """Return the address of *file* on a page; ``+`` as ``%2B``, which is never read as a space."""
    return file.url or _UP + quote(file.filename, safe="")


def _anchor(file: PublishedFile) -> str:
    attributes = {"href": f"{address_of(file)}#sha256={file.sha256}"}
    if file.requires_python:
        attributes["data-requires-python"] = file.requires_python
    # Clients older than PEP 714 read the attribute under its first name only.
    for name in ("data-dist-info-metadata", "data-core-metadata") if file.metadata_sha256 else ():
        attributes[name] = f"sha256={file.metadata_sha256}"
    if file.yanked is not None:
        attributes["data-yanked"] = file.yanked
    listed = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<a {listed}>{html.escape(file.filename)}</a>"


def _entry(file: PublishedFile) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "filename": file.filename,
        "url": address_of(file),
        "hashes": {"sha256": file.sha256},
        "size": file.size,
    }
    if file.metadata_sha256:
        entry["core-metadata"] = entry["dist-info-metadata"] = {"sha256": file.metadata_sha256}
    if file.requires_python:
        entry["requires-python"] = file.requires_python
    if file.upload_time:
        entry["upload-time"] = file.upload_time
    if file.yanked is not None:
        entry["yanked"] = file.yanked or True
    return entry


def _meta(name: str, content: str) -> str:
    return f'<meta name="{name}" content="{html.escape(content)}">'


def _page(title: str, links: Sequence[str], meta: Sequence[str] = ()) -> bytes:
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        _meta("pypi:repository-version", API_VERSION),
        *meta,
        f"<title>{html.escape(title)}</title>",
        "</head>",
        "<body>",
        f"<h1>{html.escape(title)}</h1>",
        *(f"{link}<br>" for link in links),
        "</body>",
        "</html>",
    ]
    return ("\n".join(lines) + "\n").encode()


def _json(value: Mapping[str, Any]) -> bytes:
    return to_json({"meta": {"api-version": API_VERSION}, **value}) + b"\n"
