"""Sources of pristine trees and stock wheels: the package index, a git remote, a folder.

Open `source` first. `settings`, `network`, `index`, `download` and `members` talk to the index,
`archive` reads sdists, `releases` turns them into trees, and `evidence` gathers what
``upstream.lock`` is checked against. `commit_index` reads upstream's index of wheels by commit, and
`commits` takes wheels from there.
"""

from sparkwright.upstream.commits import first_download, gather_commit, has_wheels, nightly_commit
from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.evidence import gather, gather_cuda, propose, propose_lock
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
    "first_download",
    "gather",
    "gather_commit",
    "gather_cuda",
    "has_wheels",
    "nightly_commit",
    "open_source",
    "other_release",
    "propose",
    "propose_lock",
    "read_settings",
]
