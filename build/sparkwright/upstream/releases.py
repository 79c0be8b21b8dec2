"""From an sdist to a tree in git, and from a version number to an sdist."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import (
    DigestError,
    FetchError,
    LockMismatchError,
    NotInStoreError,
    UnknownNameError,
)
from sparkwright.base.events import task
from sparkwright.git.remotes import list_remote
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry, import_files
from sparkwright.lock.model import Artifact, Lock
from sparkwright.store.paths import Store
from sparkwright.upstream.archive import read_sdist
from sparkwright.upstream.download import fetch_artifact
from sparkwright.upstream.index import IndexFile, find, remote_size
from sparkwright.upstream.network import IndexSettings

PROJECT = "vllm"


@dataclass(frozen=True)
class Access:
    """The tools that every source needs: the store, its git repository, and how to reach the index."""

    store: Store
    repository: Repository
    settings: IndexSettings


@dataclass(frozen=True)
class Pristine:
    """Upstream's files at one release, untouched.

    Attributes:
        commit: upstream's commit, where its object is in the store.
        history: whether commits before `commit` are in the store too.
    """

    tree: str
    commit: str | None
    origin: str
    history: bool = False


def pristine_commit(access: Access, commit: str, origin: str) -> Pristine:
    """Return the files of *commit*, which is in the store's repository."""
    repository = access.repository
    tree = repository.tree_of(commit)
    history = len(repository.command("rev-list", "--max-count=2", commit).text.split()) > 1
    return Pristine(tree, commit, f"commit {commit[:12]} of {origin}", history=history)


def require_tree(lock: Lock, pristine: Pristine) -> Pristine:
    """Return *pristine*, if it is the tree that *lock* names, or *lock* names none."""
    if lock.release.tree not in {None, pristine.tree}:
        raise LockMismatchError(
            "the lock contradicts itself",
            because=f"commit {lock.release.commit} has the tree {pristine.tree}, not {lock.release.tree}",
            next_step=f"write the pin again: sparkwright lock bump {lock.release.commit}",
        )
    return pristine


def pinned_tag(repository: Repository, lock: Lock, address: str) -> tuple[str, str]:
    """Return the ref of the release's tag at *address*, and its commit, which is the pinned one.

    It is asked where *address* cannot or need not give the pinned commit by its id.
    """
    tag = f"refs/tags/v{lock.release.version}"
    found = list_remote(repository, address, [tag]).get(tag)
    if found is None:
        raise FetchError(
            f"{address} has neither the commit {lock.release.commit} nor the tag {tag}",
            because="it was asked for both",
            next_step="give a repository of vLLM that has the release; 'git fetch --tags' may bring it there",
        )
    if not found.commit.startswith(lock.release.commit):
        raise LockMismatchError(
            f"the tag v{lock.release.version} at {address} is not the pinned commit",
            because=f"it is {found.commit}, and the lock pins {lock.release.commit}",
            next_step="do not build it before you know which is right",
        )
    return tag, found.commit


def sdist_tree(access: Access, artifact: Artifact, fetch: Callable[[], Path]) -> str:
    """Return the tree of the sdist *artifact*, imported once and remembered.

    *fetch* gives its verified file; it is called when the tree is not known yet.
    """
    if tree := known_tree(access, artifact.sha256):
        return tree
    with access.store.lock(f"import-{artifact.sha256}", f"the import of {artifact.filename}"):
        if tree := known_tree(access, artifact.sha256):
            return tree
        path = fetch()
        with task(f"import {artifact.filename}", unit="files") as progress:
            files = {entry.path: FileEntry(entry.mode, entry.data) for entry in read_sdist(path)}
            tree = import_files(access.repository, files.items())
            progress.advance(len(files))
        access.repository.keep(f"refs/sparkwright/sdist/{artifact.sha256}", tree)
        access.store.put_record("sdist-tree", artifact.sha256, {"tree": tree, "files": len(files)})
    return tree


def known_tree(access: Access, sha256: str) -> str | None:
    """Return the tree that the sdist of that digest was imported as, if git still has it."""
    record = access.store.find_record("sdist-tree", sha256)
    tree = record.get("tree") if record else None
    return tree if isinstance(tree, str) and access.repository.has(tree) else None


def upstream_ref(commit: str) -> str:
    """Return the ref that keeps upstream's *commit* in the store's repository."""
    return f"refs/sparkwright/upstream/{commit}"


def other_release(access: Access, version: str, *, sha256: str | None = None) -> Pristine:
    """Return the files of any release, by its version, from the index.

    The digest that the index states when it is first asked is remembered, and is what counts
    from then on, offline too. *sha256* is the one that its sdist must have, if one is known.
    """
    artifact = _release_sdist(access, version)
    require_digest(artifact, sha256)
    tree = sdist_tree(access, artifact, lambda: fetch_artifact(access.store, artifact, access.settings))
    return Pristine(tree, None, f"{artifact.filename}, by the digest that the index stated")


def require_digest(artifact: Artifact, sha256: str | None) -> None:
    """Do nothing if *artifact* has the digest that is asked for, or none is."""
    if sha256 is not None and artifact.sha256 != sha256:
        raise DigestError(
            f"{artifact.filename} is not the one that a carry was written against",
            because=f"its SHA-256 is {artifact.sha256}, not {sha256}",
            next_step="check sdist-sha256 in the carry's [[revision]] and the package index",
        )


def _for_commits(name: str) -> str:
    """Return what takes *name*, if it may be a commit's; empty if it is not."""
    if not re.fullmatch(r"[0-9a-f]{7,40}", name):
        return ""
    return f"for a commit: 'sparkwright lock bump {name}', or 'sparkwright nightly --onto {name}'"


def _release_sdist(access: Access, version: str) -> Artifact:
    from packaging.version import InvalidVersion, Version

    try:
        key = f"{PROJECT}-{Version(version)}"
    except InvalidVersion as error:
        raise UnknownNameError(
            f"{version!r} is no version of {PROJECT}",
            because=str(error),
            next_step=_for_commits(version) or "give a release, such as 0.33.0",
        ) from error
    if known := access.store.find_record_as(Artifact, "release-sdist", key):
        return known
    if access.settings.offline:
        raise NotInStoreError(
            f"the sdist of {PROJECT} {version} is not in the store", because="the network is off",
            next_step="run once without --offline",
        )  # fmt: skip
    sdists = [file for file in find(PROJECT, version, access.settings) if file.is_sdist]
    if not sdists:
        raise FetchError(
            f"{PROJECT} {version} was not found", because="no index has an sdist of that version",
            next_step=_for_commits(version) or "check the version number and pip's index settings",
        )  # fmt: skip
    artifact = as_artifact(sdists[0], access.settings)
    access.store.put_record("release-sdist", key, to_builtins(artifact))
    return artifact


def as_artifact(file: IndexFile, settings: IndexSettings) -> Artifact:
    """Return the file of an index as a lock would name it."""
    if file.sha256 is None:
        raise FetchError(
            f"{file.filename} cannot be pinned", because="the index states no SHA-256 for it",
            next_step="use an index that does (PEP 503)",
        )  # fmt: skip
    return Artifact(filename=file.filename, sha256=file.sha256, size=remote_size(file, settings))
