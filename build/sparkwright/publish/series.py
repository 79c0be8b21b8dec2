"""All pages of an index, and of one index for each series in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from urllib.parse import urlsplit

from packaging.version import Version

from sparkwright.companion.package import is_companion
from sparkwright.publish.pages import (
    ProjectStatus,
    PublishedFile,
    address_of,
    project_html,
    project_json,
    root_html,
    root_json,
)

FOLDER = "series"
"""The folder of the series' indexes, below the index over all."""
_DEEPER = "../../"


def series_of(version: str) -> str:
    """Return the series of a PEP 440 *version*: ``0.24`` of ``0.24.0+spark.4.84110ebb``."""
    return ".".join(str(number) for number in Version(version).release[:2])


def index_pages(files: Sequence[PublishedFile], status: ProjectStatus | None = None) -> dict[str, bytes]:
    """Return the pages over *files* by path below the index's root, each project's before the root's.

    Args:
        files: the files.
        status: the status of every project; see `project_html`.
    """
    ordered = sorted(files, key=lambda file: (file.project, file.order))
    pages: dict[str, bytes] = {}
    for project, group in groupby(ordered, key=lambda file: file.project):
        listed = tuple(group)
        pages[f"{project}/index.html"] = project_html(project, listed, status)
        pages[f"{project}/index.json"] = project_json(project, listed, status)
    projects = sorted({file.project for file in ordered})
    return {**pages, "index.html": root_html(projects), "index.json": root_json(projects)}


def series_pages(files: Sequence[PublishedFile], status: ProjectStatus | None = None) -> dict[str, bytes]:
    """Return the pages of one index for each series of *files*, by path below the root of the index over all.

    The index of a series is at ``series/0.24/``. Relative addresses of files are those that a page of the
    index over all has; here they lead two folders further up. Companions, whose versions are FlashInfer's,
    are in the index of every series.
    """
    pages: dict[str, bytes] = {}
    companions = [file for file in files if is_companion(file.filename)]
    wheels = [file for file in files if file not in companions]
    for series in sorted({series_of(file.version) for file in wheels}):
        of_series = [_deeper(file) for file in wheels if series_of(file.version) == series]
        of_series += map(_deeper, companions)
        below = index_pages(of_series, status)
        pages |= {f"{FOLDER}/{series}/{path}": page for path, page in below.items()}
    return pages


def _deeper(file: PublishedFile) -> PublishedFile:
    address = address_of(file)
    absolute = urlsplit(address).scheme or address.startswith("/")
    return file if absolute else replace(file, url=_DEEPER + address)
