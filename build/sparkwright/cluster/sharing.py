"""Put trees and inputs that tasks share into the store that machines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_bytes, sha256_file
from sparkwright.base.events import task
from sparkwright.cluster.messages import PackedTree
from sparkwright.git import pack_tree

if TYPE_CHECKING:
    from sparkwright.cluster.messages import BuildInputs, ProofInputs
    from sparkwright.git import Repository
    from sparkwright.store import Store

_PACK = "tree-pack"


def share_inputs(store: Store, inputs: BuildInputs | ProofInputs) -> tuple[str, int]:
    """Put *inputs* and the packs of their trees where machines share the store; return digest and bytes."""
    data = msgspec.json.encode(to_builtins(inputs))
    digest = sha256_bytes(data)
    with store.scratch() as scratch:
        path = scratch / "inputs"
        path.write_bytes(data)
        store.adopt_file(path, digest, verified=True)
    for sha256 in (*(packed.sha256 for packed in inputs.trees), digest):
        store.share(sha256)
    if store.remote is not None:
        with task("share the sources"):
            store.remote.finish(store, limit_s=float("inf"))
    return digest, len(data)


def packed_tree(store: Store, repository: Repository, tree: str) -> PackedTree:
    """Return the pack of *tree* in the store; made once."""
    recorded = store.find_record(_PACK, tree) or {}
    known = recorded.get("sha256")
    if isinstance(known, str) and (path := store.find_file(known, remote=False)):
        return PackedTree(tree=tree, sha256=known, size=path.stat().st_size)
    with task("pack the sources"), store.scratch() as scratch:
        path = scratch / "pack"
        pack_tree(repository, tree, path)
        sha256, size = sha256_file(path), path.stat().st_size
        store.adopt_file(path, sha256, verified=True)
    store.put_record(_PACK, tree, {"sha256": sha256})
    return PackedTree(tree=tree, sha256=sha256, size=size)
