"""Making carries: from an edited tree, from a pull request, and onto a newer pin.

`edited` turns a folder that somebody edited into a patch, `pull` pins a pull request, `files` writes
``carries/<name>/`` and keeps comments that people put there.
"""

from sparkwright.authoring.edited import diff_folder, write_tree
from sparkwright.authoring.files import Draft, add_revision, create_own, create_pull, repin
from sparkwright.authoring.pull import PullName, ResolvedPull, parse_pull, resolve_pull
from sparkwright.authoring.rework import Ground, Workshop

__all__ = [
    "Draft",
    "Ground",
    "PullName",
    "ResolvedPull",
    "Workshop",
    "add_revision",
    "create_own",
    "create_pull",
    "diff_folder",
    "parse_pull",
    "repin",
    "resolve_pull",
    "write_tree",
]
