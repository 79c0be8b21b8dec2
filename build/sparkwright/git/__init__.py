"""The only package that runs git.

`Repository` is a bare object store that we own: trees and commits are written to it with a
fixed identity and date, under an environment and configuration that ignore the user's, so
that the same inputs give the same ids on every machine. Nothing here needs a work tree.

Open `repository` first; `merging` holds the three-way merge, `importing` turns files into trees,
`fetching` talks to remotes, `checkout` writes a tree to disk, `links` finds links that lead
out of one, `soundness` what a disk lost, and `clone` is the person's clone of this project.
"""

from sparkwright.git.checkout import check_out, make_read_only
from sparkwright.git.clone import ProjectClone, open_clone
from sparkwright.git.fetching import RemoteRef, fetch, list_remote
from sparkwright.git.importing import FileEntry, blob_id, import_files, patch_tree, tree_id
from sparkwright.git.links import outward_link
from sparkwright.git.merging import MergeResult, merge_trees
from sparkwright.git.packing import pack_tree, unpack_tree
from sparkwright.git.refs import check_address, check_object_id, check_ref, refuse_secret
from sparkwright.git.repository import Repository, as_argument, open_repository, require_git
from sparkwright.git.soundness import begin_again, inode, mended, unsoundness
from sparkwright.git.trees import LINK, SUBMODULE, TreeEntry

__all__ = [
    "LINK",
    "SUBMODULE",
    "FileEntry",
    "MergeResult",
    "ProjectClone",
    "RemoteRef",
    "Repository",
    "TreeEntry",
    "as_argument",
    "begin_again",
    "blob_id",
    "check_address",
    "check_object_id",
    "check_out",
    "check_ref",
    "fetch",
    "import_files",
    "inode",
    "list_remote",
    "make_read_only",
    "mended",
    "merge_trees",
    "open_clone",
    "open_repository",
    "outward_link",
    "pack_tree",
    "patch_tree",
    "refuse_secret",
    "require_git",
    "tree_id",
    "unpack_tree",
    "unsoundness",
]
