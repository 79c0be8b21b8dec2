"""Sources of pristine trees and stock wheels: the package index, a git remote, a folder.

Open `source` first. `settings`, `network`, `index`, `download` and `members` talk to the index,
`archive` reads sdists, `releases` turns them into trees, and `evidence` gathers what
``upstream.lock`` is checked against.
"""

from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.evidence import gather, gather_cuda, propose
from sparkwright.upstream.members import fetch_members
from sparkwright.upstream.releases import Access, Pristine, other_release
from sparkwright.upstream.settings import IndexSettings, read_settings
from sparkwright.upstream.source import GitSource, IndexSource, UpstreamSource, open_source

__all__ = [
    "Access",
    "GitSource",
    "IndexSettings",
    "IndexSource",
    "Pristine",
    "UpstreamSource",
    "fetch_artifact",
    "fetch_members",
    "gather",
    "gather_cuda",
    "open_source",
    "other_release",
    "propose",
    "read_settings",
]
