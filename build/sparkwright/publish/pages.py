"""The pages of a simple repository, as pure functions of the files that they list.

HTML after PEP 503, metadata links after PEP 658 and PEP 714. Nothing here reads a clock: equal files give
equal pages.
"""

from __future__ import annotations

import html
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from urllib.parse import quote

from packaging.version import Version

PAGE = "index.html"
BEGINNING = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="pypi:repository-version" content="1.4">
"""
"""The beginning of each of our pages, by which they are known."""


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
    """Return every page over *files* by path in ``simple/``, in the order in which they may be written."""
    ordered = sorted(files, key=lambda file: (file.project, file.order))
    pages: dict[str, bytes] = {}
    for project, group in groupby(ordered, key=lambda file: file.project):
        pages[f"{project}/{PAGE}"] = project_page(project, tuple(group))
    links = [f'<a href="{quote(name)}/">{html.escape(name)}</a>' for name in map(posixpath.dirname, pages)]
    return {**pages, PAGE: _page("Simple index", links)}


def project_page(project: str, files: Sequence[PublishedFile]) -> bytes:
    """Return the page of *project*; ``+`` in addresses is ``%2B``, which is never read as a space."""
    return _page(f"Links for {project}", [_anchor(file) for file in files])


def _anchor(file: PublishedFile) -> str:
    attributes = {"href": f"../../{quote(file.filename, safe='')}#sha256={file.sha256}"}
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
