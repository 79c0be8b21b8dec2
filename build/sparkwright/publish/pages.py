"""The pages of a simple repository, as pure functions of the files that they list.

HTML after PEP 503, JSON after PEP 691 and PEP 700, metadata links after PEP 658 and PEP 714.
Upload times are left out: they would make equal indexes differ.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.version import Version

from sparkwright.base.digests import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

API_VERSION = "1.1"
_UP = "../../"
_HEAD = (
    "<!DOCTYPE html>",
    '<html lang="en">',
    "<head>",
    '<meta charset="utf-8">',
    f'<meta name="pypi:repository-version" content="{API_VERSION}">',
)


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


def root_html(projects: Sequence[str]) -> bytes:
    """Return the page that lists *projects*, normalized names."""
    return _page("Simple index", [f'<a href="{quote(name)}/">{html.escape(name)}</a>' for name in projects])


def root_json(projects: Sequence[str]) -> bytes:
    """Return the list of *projects* as JSON."""
    return _json({"projects": [{"name": name} for name in projects]})


def project_html(project: str, files: Sequence[PublishedFile]) -> bytes:
    """Return the page of *project*, two folders below its *files*."""
    return _page(f"Links for {project}", [_anchor(file) for file in files])


def project_json(project: str, files: Sequence[PublishedFile]) -> bytes:
    """Return the page of *project* as JSON."""
    versions = list(dict.fromkeys(file.version for file in files))
    return _json({"name": project, "versions": versions, "files": [_entry(file) for file in files]})


def _url(filename: str) -> str:
    """Return *filename* relative to its project's page; ``+`` as ``%2B``, which is never read as a space."""
    return _UP + quote(filename, safe="")


def _anchor(file: PublishedFile) -> str:
    attributes = {"href": f"{_url(file.filename)}#sha256={file.sha256}"}
    if file.requires_python:
        attributes["data-requires-python"] = file.requires_python
    # Clients older than PEP 714 read the attribute under its first name only.
    for name in ("data-dist-info-metadata", "data-core-metadata"):
        attributes[name] = f"sha256={file.metadata_sha256}"
    listed = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<a {listed}>{html.escape(file.filename)}</a>"


def _entry(file: PublishedFile) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "filename": file.filename,
        "url": _url(file.filename),
        "hashes": {"sha256": file.sha256},
        "size": file.size,
        "core-metadata": {"sha256": file.metadata_sha256},
        "dist-info-metadata": {"sha256": file.metadata_sha256},
    }
    if file.requires_python:
        entry["requires-python"] = file.requires_python
    return entry


def is_index_page(page: bytes) -> bool:
    """Tell if *page* has the form that this module writes: HTML with its head, or JSON in canonical form."""
    if page.startswith("\n".join(_HEAD).encode()):
        return True
    try:
        value = json.loads(page)
        return isinstance(value, dict) and "meta" in value and page == to_json(value) + b"\n"
    except ValueError:
        return False


def _page(title: str, links: Sequence[str]) -> bytes:
    lines = [
        *_HEAD,
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
