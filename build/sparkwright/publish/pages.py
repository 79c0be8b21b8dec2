"""The pages of a simple repository, as pure functions of the files that they list.

HTML after PEP 503, JSON after PEP 691 and PEP 700, metadata links after PEP 658 and PEP 714. Nothing here
reads a clock: equal files give equal pages.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import quote

from packaging.version import Version

from sparkwright.base.digests import to_json
from sparkwright.companion.package import is_companion
from sparkwright.publish.series import series_of

SERIES = "series"
"""The folder of the series' indexes, below the index over all."""
API_VERSION = "1.4"


@dataclass(frozen=True)
class PublishedFile:
    """One wheel as the index lists it.

    Attributes:
        project: its project's name, normalized after PEP 503.
        version: its PEP 440 version.
        sha256: digest of its bytes, 64 hex digits.
        requires_python: PEP 440 specifier, or the empty string.
        metadata_sha256: digest of its METADATA, 64 hex digits.
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


def all_pages(files: Sequence[PublishedFile]) -> dict[str, bytes]:
    """Return every page over *files* by path in ``simple/``, in the order in which they may be written.

    The index of a series is at ``series/0.24/``. Companions, whose versions are FlashInfer's, are in the
    index of every series.
    """
    pages = _index(files, "", "../../")
    companions = [file for file in files if is_companion(file.filename)]
    wheels = [file for file in files if file not in companions]
    for series in sorted({series_of(file.version) for file in wheels}):
        of_series = [file for file in wheels if series_of(file.version) == series]
        pages |= _index([*of_series, *companions], f"{SERIES}/{series}/", "../../../../")
    return pages


def _index(files: Sequence[PublishedFile], below: str, up: str) -> dict[str, bytes]:
    """Return the pages of one index, each project's before the root's; *up* leads from these to the files."""
    ordered = sorted(files, key=lambda file: (file.project, file.order))
    pages: dict[str, bytes] = {}
    for project, group in groupby(ordered, key=lambda file: file.project):
        listed = tuple(group)
        pages[f"{below}{project}/index.html"] = project_html(project, listed, up)
        pages[f"{below}{project}/index.json"] = project_json(project, listed, up)
    projects = sorted({file.project for file in ordered})
    links = [f'<a href="{quote(name)}/">{html.escape(name)}</a>' for name in projects]
    pages[f"{below}index.html"] = _page("Simple index", links)
    pages[f"{below}index.json"] = _json({"projects": [{"name": name} for name in projects]})
    return pages


def project_html(project: str, files: Sequence[PublishedFile], up: str = "../../") -> bytes:
    """Return the page of *project*, from which *up* leads to the *files*."""
    return _page(f"Links for {project}", [_anchor(file, up) for file in files])


def project_json(project: str, files: Sequence[PublishedFile], up: str = "../../") -> bytes:
    """Return the page of *project* as JSON; see `project_html`."""
    return _json(
        {
            "name": project,
            "versions": list(dict.fromkeys(file.version for file in files)),
            "files": [_entry(file, up) for file in files],
        }
    )


def _address(file: PublishedFile, up: str) -> str:
    """Return the address of *file* on a page; ``+`` as ``%2B``, which is never read as a space."""
    return up + quote(file.filename, safe="")


def _anchor(file: PublishedFile, up: str) -> str:
    attributes = {"href": f"{_address(file, up)}#sha256={file.sha256}"}
    if file.requires_python:
        attributes["data-requires-python"] = file.requires_python
    # Clients older than PEP 714 read the attribute under its first name only.
    for name in ("data-dist-info-metadata", "data-core-metadata"):
        attributes[name] = f"sha256={file.metadata_sha256}"
    listed = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<a {listed}>{html.escape(file.filename)}</a>"


def _entry(file: PublishedFile, up: str) -> dict[str, Any]:
    metadata = {"sha256": file.metadata_sha256}
    return {
        "filename": file.filename,
        "url": _address(file, up),
        "hashes": {"sha256": file.sha256},
        "size": file.size,
        "core-metadata": metadata,
        "dist-info-metadata": metadata,
        **({"requires-python": file.requires_python} if file.requires_python else {}),
    }


def _page(title: str, links: Sequence[str]) -> bytes:
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="pypi:repository-version" content="{API_VERSION}">',
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
