"""Upstream's files at a release or a commit: from the index, a git remote, or a folder.

Open `open_source` first; what a source gives is a tree in git, which an sdist is imported as, and wheels.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sparkwright.base.config import to_builtins
from sparkwright.base.digests import sha256_file
from sparkwright.base.errors import (
    DigestError,
    FetchError,
    LockMismatchError,
    NotInStoreError,
    RefError,
    UnknownNameError,
)
from sparkwright.base.events import task
from sparkwright.git.remotes import check_address, check_object_id, fetch, list_remote, refuse_secret
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry, import_files
from sparkwright.lock.model import Artifact, Lock
from sparkwright.store.paths import Store
from sparkwright.upstream.archive import read_sdist
from sparkwright.upstream.download import adopt_copy, fetch_artifact
from sparkwright.upstream.index import IndexFile, find, remote_size
from sparkwright.upstream.network import IndexSettings

PROJECT = "vllm"
_FULL_ID = 40


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


def _pristine_commit(access: Access, commit: str, origin: str) -> Pristine:
    """Return the files of *commit*, which is in the store's repository."""
    repository = access.repository
    tree = repository.tree_of(commit)
    history = len(repository.command("rev-list", "--max-count=2", commit).text.split()) > 1
    return Pristine(tree, commit, f"commit {commit[:12]} of {origin}", history=history)


def _require_tree(lock: Lock, pristine: Pristine) -> Pristine:
    """Return *pristine*, if it is the tree that *lock* names, or *lock* names none."""
    if lock.release.tree not in {None, pristine.tree}:
        raise LockMismatchError(
            "the lock contradicts itself",
            because=f"commit {lock.release.commit} has the tree {pristine.tree}, not {lock.release.tree}",
            next_step=f"write the pin again: sparkwright lock bump {lock.release.commit}",
        )
    return pristine


def _pinned_tag(repository: Repository, lock: Lock, address: str) -> tuple[str, str]:
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


def _sdist_tree(access: Access, artifact: Artifact, fetch: Callable[[], Path]) -> str:
    """Return the tree of the sdist *artifact*, imported once and remembered.

    *fetch* gives its verified file; it is called when the tree is not known yet.
    """
    if tree := _known_tree(access, artifact.sha256):
        return tree
    with access.store.lock(f"import-{artifact.sha256}", f"the import of {artifact.filename}"):
        if tree := _known_tree(access, artifact.sha256):
            return tree
        path = fetch()
        with task(f"import {artifact.filename}", unit="files") as progress:
            files = {entry.path: FileEntry(entry.mode, entry.data) for entry in read_sdist(path)}
            tree = import_files(access.repository, files.items())
            progress.advance(len(files))
        access.repository.keep(f"refs/sparkwright/sdist/{artifact.sha256}", tree)
        access.store.put_record("sdist-tree", artifact.sha256, {"tree": tree, "files": len(files)})
    return tree


def _known_tree(access: Access, sha256: str) -> str | None:
    """Return the tree that the sdist of that digest was imported as, if git still has it."""
    record = access.store.find_record("sdist-tree", sha256)
    tree = record.get("tree") if record else None
    return tree if isinstance(tree, str) and access.repository.has(tree) else None


def _upstream_ref(commit: str) -> str:
    """Return the ref that keeps upstream's *commit* in the store's repository."""
    return f"refs/sparkwright/upstream/{commit}"


def other_release(access: Access, version: str, *, sha256: str | None = None) -> Pristine:
    """Return the files of any release, by its version, from the index.

    The digest that the index states when it is first asked is remembered, and is what counts
    from then on, offline too. *sha256* is the one that its sdist must have, if one is known.
    """
    artifact = _release_sdist(access, version)
    _require_digest(artifact, sha256)
    tree = _sdist_tree(access, artifact, lambda: fetch_artifact(access.store, artifact, access.settings))
    return Pristine(tree, None, f"{artifact.filename}, by the digest that the index stated")


def _require_digest(artifact: Artifact, sha256: str | None) -> None:
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


# Sources -------------------------------------------------------------------------------------------


def open_source(spec: str, access: Access) -> UpstreamSource:
    """Return the source that *spec* names.

    That is ``index``, ``git`` (the lock's repository), the address of a repository, or a folder.
    """
    if spec in {"index", "git"}:
        return UpstreamSource(access, by_commit=spec == "git")
    if spec and (folder := Path(spec).expanduser().absolute()).is_dir():
        clone = is_clone(folder)
        return UpstreamSource(access, str(folder) if clone else "", folder, by_commit=clone)
    refuse_secret(spec)
    try:
        return UpstreamSource(access, check_address(spec), by_commit=True)
    except RefError as error:
        raise UnknownNameError(
            f"there is no source {spec!r}", because=error.because,
            next_step="give index, git, the address of a repository, or a folder that exists",
        ) from error  # fmt: skip


def is_clone(folder: Path) -> bool:
    """Tell if *folder* is a git repository, bare or with a work tree."""
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


@dataclass(frozen=True)
class UpstreamSource:
    """Somewhere that upstream's files come from; nothing is ever written there.

    Attributes:
        remote: the repository with commits, an address or a clone; empty for the one that the lock names.
        folder: the user's, which sdists and wheels are taken from before the package index is asked.
        by_commit: a pinned release is taken from the repository, and not from its sdist.
    """

    access: Access
    remote: str = ""
    folder: Path | None = None
    by_commit: bool = False

    def pristine(self, lock: Lock) -> Pristine:
        """Return upstream's files at the pinned release or commit.

        A release comes by the digest of its sdist, or by its commit: with the history that a clone has of it,
        from a remote without.
        """
        commit, address, repository = (
            lock.release.commit,
            self.remote or lock.release.git,
            self.access.repository,
        )
        if lock.sdist is None:
            return _require_tree(lock, self.commit(commit, address))
        if not self.by_commit:
            return self._imported(lock.sdist)
        found = self.known(lock)
        if found is None:
            self._require_reach(commit, address)
            depth, by_id = None if self.folder else 1, len(commit) == _FULL_ID
            if by_id:
                try:
                    fetch(repository, address, [commit], depth=depth)
                except FetchError:  # a server may refuse to serve commits by id; tags it always serves
                    by_id = False
            if not by_id:
                tag, commit = _pinned_tag(repository, lock, address)
                fetch(repository, address, [tag], depth=depth)
            found = self._of_release(commit, address)
        repository.keep(_upstream_ref(commit), commit)
        return found

    def known(self, lock: Lock) -> Pristine | None:
        """Return what `pristine` would give, if the store holds it; nothing is fetched or written.

        How much history a clone has is only known once it was fetched from.
        """
        commit, address = lock.release.commit, self.remote or lock.release.git
        if lock.sdist is not None and not self.by_commit:
            tree = _known_tree(self.access, lock.sdist.sha256)
            with contextlib.suppress(FetchError):
                return None if tree is None else Pristine(tree, None, self._origin(lock.sdist))
            return None
        if len(commit) != _FULL_ID or not self.access.repository.has(commit):
            return None
        if lock.sdist is None:
            return _require_tree(lock, _pristine_commit(self.access, commit, address))
        found = self._of_release(commit, address)
        return found if found.history or self.folder is None else None

    def commit(self, commit: str, git: str) -> Pristine:
        """Return upstream's files at any *commit*, with its whole history; from *git* where this names none.

        Later commits then cost what is new in them. Offline, what the store has is taken.

        Raises:
            RefError: it is no full commit id.
            NotInStoreError: the network is off, and the commit is not here.
            FetchError: the remote did not answer, or does not have it.
        """
        address, repository = self.remote or git, self.access.repository
        here = repository.has(check_object_id(commit))
        if here and (found := _pristine_commit(self.access, commit, address)).history:
            return found
        if self._is_in_reach(address):
            fetch(repository, address, [commit], depth=None)
            repository.keep(_upstream_ref(commit), commit)
        elif not here:
            self._require_reach(commit, address)
        return _pristine_commit(self.access, commit, address)

    def release(self, version: str, *, sha256: str | None = None) -> Pristine:
        """Return upstream's files at another release, whose sdist has the digest *sha256* if one is given.

        It is the folder's if that has it; see `other_release`.
        """
        path = self.folder and self.folder / f"{PROJECT}-{version}.tar.gz"
        if not path or not path.is_file():
            return other_release(self.access, version, sha256=sha256)
        artifact = Artifact(filename=path.name, sha256=sha256_file(path), size=path.stat().st_size)
        _require_digest(artifact, sha256)
        return self._imported(artifact)

    def wheel(self, lock: Lock, machine: str) -> Path:
        """Return upstream's wheel of the pinned release for *machine*, verified by its digest."""
        return self._file(lock.wheel(machine))

    def _of_release(self, commit: str, address: str) -> Pristine:
        """Return the pinned commit of a release; of its history, what a clone has."""
        found = _pristine_commit(self.access, commit, address)
        return found if self.folder else replace(found, history=False)

    def _is_in_reach(self, address: str) -> bool:
        return not self.access.settings.offline or address.startswith(("file://", "/"))

    def _require_reach(self, commit: str, address: str) -> None:
        if not self._is_in_reach(address):
            raise NotInStoreError(
                f"commit {commit} is not in the store", because="the network is off",
                next_step="run once without --offline, or give a folder as the source",
            )  # fmt: skip

    def _imported(self, sdist: Artifact) -> Pristine:
        origin = self._origin(sdist)
        return Pristine(_sdist_tree(self.access, sdist, lambda: self._file(sdist)), None, origin)

    def _origin(self, sdist: Artifact) -> str:
        if self.folder is None:
            return f"{sdist.filename} from the package index"
        if not (path := self.folder / sdist.filename).is_file():
            raise FetchError(
                f"{self.folder} holds no {PROJECT}",
                because=f"it is no repository, and has no {sdist.filename}",
                next_step="give a clone, or a folder with that file",
            )
        return str(path)

    def _file(self, artifact: Artifact) -> Path:
        """Return the folder's file, or else the index's, verified by its digest."""
        store, otherwise = self.access.store, ", or give a folder that holds that file with --source"
        if self.folder is not None:
            if (path := self.folder / artifact.filename).is_file():
                return adopt_copy(store, path, artifact)
            otherwise = f", or put that file into {self.folder}"
        return fetch_artifact(store, artifact, self.access.settings, otherwise=otherwise)
