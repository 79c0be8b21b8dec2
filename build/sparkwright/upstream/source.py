"""Sources of pristine trees and stock wheels: the index, a git remote, or a folder."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import FetchError, NotInStoreError, RefError, UnknownNameError
from sparkwright.git.remotes import check_address, check_object_id, fetch, refuse_secret
from sparkwright.lock.model import Artifact, Lock
from sparkwright.upstream.download import adopt_copy, fetch_artifact
from sparkwright.upstream.releases import (
    PROJECT,
    Access,
    Pristine,
    known_tree,
    other_release,
    pinned_tag,
    pristine_commit,
    require_digest,
    require_tree,
    sdist_tree,
    upstream_ref,
)

_FULL_ID = 40
_BY_FOLDER = ", or give a folder that holds that file with --source"


class UpstreamSource(Protocol):
    """Somewhere that upstream's files come from."""

    def pristine(self, lock: Lock) -> Pristine:
        """Return upstream's files at the pinned release."""

    def known(self, lock: Lock) -> Pristine | None:
        """Return what `pristine` would give, if the store holds it; nothing is fetched or written."""

    def commit(self, commit: str, git: str) -> Pristine:
        """Return upstream's files at any *commit*, with its history; from *git* where this has none."""

    def release(self, version: str, *, sha256: str | None = None) -> Pristine:
        """Return upstream's files at another release, whose sdist has the digest *sha256* if one is given."""

    def wheel(self, lock: Lock, machine: str) -> Path:
        """Return upstream's wheel of the pinned release for *machine*, verified by its digest."""


def open_source(spec: str, access: Access) -> UpstreamSource:
    """Return the source that *spec* names.

    That is ``index``, ``git`` (the lock's repository), the address of a repository, or a folder.

    Raises:
        UnknownNameError: it is none of these.
        RefError: it is an address with a password in it.
    """
    if spec == "index":
        return IndexSource(access)
    if spec == "git":
        return GitSource(access)
    if spec and Path(spec).expanduser().is_dir():
        return FolderSource(access, Path(spec).expanduser().absolute())
    refuse_secret(spec)
    try:
        return GitSource(access, check_address(spec))
    except RefError as error:
        raise UnknownNameError(
            f"there is no source {spec!r}", because=error.because,
            next_step="give index, git, the address of a repository, or a folder that exists",
        ) from error  # fmt: skip


def is_clone(folder: Path) -> bool:
    """Tell if *folder* is a git repository, bare or with a work tree."""
    return (folder / ".git").exists() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


@dataclass(frozen=True)
class IndexSource:
    """The package index: the release's sdist and wheels, by the lock's digests."""

    access: Access

    def pristine(self, lock: Lock) -> Pristine:
        """Return the files of the pinned sdist, or of the pinned commit from the lock's git remote.

        See `fetch_artifact` and `GitSource.pristine` for what can go wrong.
        """
        access, sdist = self.access, lock.sdist
        if sdist is None:
            return GitSource(access).pristine(lock)
        tree = sdist_tree(
            access, sdist, lambda: fetch_artifact(access.store, sdist, access.settings, otherwise=_BY_FOLDER)
        )
        return self._as_pristine(sdist, tree)

    def known(self, lock: Lock) -> Pristine | None:
        """Return the tree of the pinned sdist or commit, if it was imported before."""
        if lock.sdist is None:
            return GitSource(self.access).known(lock)
        tree = known_tree(self.access, lock.sdist.sha256)
        return None if tree is None else self._as_pristine(lock.sdist, tree)

    @staticmethod
    def _as_pristine(sdist: Artifact, tree: str) -> Pristine:
        return Pristine(tree, None, f"{sdist.filename} from the package index")

    def commit(self, commit: str, git: str) -> Pristine:
        """See `GitSource.commit`: the package index has no commits."""
        return GitSource(self.access).commit(commit, git)

    def release(self, version: str, *, sha256: str | None = None) -> Pristine:
        """See `other_release`."""
        return other_release(self.access, version, sha256=sha256)

    def wheel(self, lock: Lock, machine: str) -> Path:
        """See `fetch_artifact`."""
        access = self.access
        return fetch_artifact(access.store, lock.wheel(machine), access.settings, otherwise=_BY_FOLDER)


@dataclass(frozen=True)
class GitSource:
    """A git remote that has the pinned commit.

    Attributes:
        address: the remote's; empty for the one that the lock names.
    """

    access: Access
    address: str = ""

    def pristine(self, lock: Lock) -> Pristine:
        """Return the tree of the pinned commit: with its history if no sdist is pinned, else without.

        Raises:
            LockMismatchError: the release's tag is another commit than the pinned one.
            NotInStoreError: the network is off, and the commit is not here.
            FetchError: the remote did not answer, or has neither the commit nor the tag.
        """
        address = self.address or lock.release.git
        if lock.sdist is None:
            return require_tree(lock, self.commit(lock.release.commit, address))
        commit = self._commit(lock, address)
        self.access.repository.keep(upstream_ref(commit), commit)
        return self._as_pristine(commit, address)

    def known(self, lock: Lock) -> Pristine | None:
        """Return the tree of the pinned commit, if it was fetched before."""
        commit = lock.release.commit
        if len(commit) != _FULL_ID or not self.access.repository.has(commit):
            return None
        if lock.sdist is None:
            return require_tree(lock, pristine_commit(self.access, commit, self.address or lock.release.git))
        return self._as_pristine(commit, self.address or lock.release.git)

    def commit(self, commit: str, git: str) -> Pristine:
        """Return the files of *commit* from `address` or else *git*, fetched with its whole history.

        Later commits then cost what is new in them. Offline, what the store has is taken.

        Raises:
            RefError: it is no full commit id.
            NotInStoreError: the network is off, and the commit is not here.
            FetchError: the remote did not answer, or does not have it.
        """
        address, repository = self.address or git, self.access.repository
        here = repository.has(check_object_id(commit))
        if here and (found := pristine_commit(self.access, commit, address)).history:
            return found
        if not self.access.settings.offline or address.startswith("file://"):
            fetch(repository, address, [commit], depth=None)
            repository.keep(upstream_ref(commit), commit)
        elif not here:
            raise _not_here(commit)
        return pristine_commit(self.access, commit, address)

    def _as_pristine(self, commit: str, address: str) -> Pristine:
        tree = self.access.repository.tree_of(commit)
        return Pristine(tree, commit, f"commit {commit[:12]} of {address}")

    def _commit(self, lock: Lock, address: str) -> str:
        """Return the full id of the pinned commit, which is in the store afterwards."""
        pinned, repository = lock.release.commit, self.access.repository
        is_full = len(pinned) == _FULL_ID
        if is_full and repository.has(pinned):
            return pinned
        if self.access.settings.offline and not address.startswith("file://"):
            raise _not_here(pinned)
        if is_full:
            try:
                fetch(repository, address, [pinned])
            except FetchError:  # a server may refuse to serve commits by id; tags it always serves
                return self._by_tag(lock, address)
            return pinned
        return self._by_tag(lock, address)

    def _by_tag(self, lock: Lock, address: str) -> str:
        tag, commit = pinned_tag(self.access.repository, lock, address)
        fetch(self.access.repository, address, [tag])
        return commit

    def release(self, version: str, *, sha256: str | None = None) -> Pristine:
        """See `other_release`: other releases come from the index, where they have digests."""
        return other_release(self.access, version, sha256=sha256)

    def wheel(self, lock: Lock, machine: str) -> Path:
        """See `fetch_artifact`: a git remote has no wheels, so the index is asked."""
        access = self.access
        return fetch_artifact(access.store, lock.wheel(machine), access.settings, otherwise=_BY_FOLDER)


def _not_here(commit: str) -> NotInStoreError:
    return NotInStoreError(
        f"commit {commit} is not in the store", because="the network is off",
        next_step="run once without --offline, or give a folder as the source",
    )  # fmt: skip


_WHOLE_HISTORY = 0x7FFFFFFF  # git's own "infinite depth" (fetch-options, --unshallow)
_FETCHED = "folder-fetched"


# Folders ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FolderSource:
    """A folder of the user's; nothing in it is ever written to."""

    access: Access
    path: Path

    def pristine(self, lock: Lock) -> Pristine:
        """Return upstream's files at the pinned release, in whichever form the folder has them.

        A repository gives the pinned commit with the history that it has, a folder with the sdist that, by
        its digest.

        Raises:
            FetchError: it is a repository without the pinned commit, or nothing of vLLM.
            LockMismatchError: it is a repository in which the release is another commit.
            DigestError: the sdist in it is not the pinned one.
        """
        if lock.sdist is None:
            return require_tree(lock, self.commit(lock.release.commit, lock.release.git))
        if is_clone(self.path):
            return self._from_repository(lock)
        if (self.path / lock.sdist.filename).is_file():
            return self._from_sdist(lock.sdist)
        raise FetchError(
            f"{self.path} holds no {PROJECT}",
            because=f"it is no repository, and has no {lock.sdist.filename}",
            next_step="give a clone, or a folder with that file",
        )

    def known(self, lock: Lock) -> Pristine | None:
        """Return the same, if the store has it and the folder cannot have changed it: a commit, or a digest.

        How much history a repository has is only known once it was fetched from.
        """
        repository, commit = self.access.repository, lock.release.commit
        if lock.sdist is None:
            known = len(commit) == _FULL_ID and repository.has(commit)
            return require_tree(lock, self._of_commit(commit)) if known else None
        if is_clone(self.path):
            here = len(commit) == _FULL_ID and self.access.store.find_record(
                _FETCHED, self._fetched_key(lock)
            )
            return self._of_commit(commit) if here and repository.has(commit) else None
        if (self.path / lock.sdist.filename).is_file():
            tree = known_tree(self.access, lock.sdist.sha256)
            return None if tree is None else self._of_sdist(lock.sdist, tree)
        return None

    def commit(self, commit: str, git: str) -> Pristine:
        """Return the files of *commit*, with the history that the repository in the folder has of it.

        A folder that is no repository may still have upstream's wheels: the commit then comes from *git*.

        Raises:
            FetchError: neither has the commit.
            NotInStoreError: the folder is no repository, the network is off, and the commit is not here.
        """
        repository = self.access.repository
        if repository.has(commit) and (found := self._of_commit(commit)).history:
            return found
        if not is_clone(self.path):
            return GitSource(self.access).commit(commit, git)
        fetch(repository, str(self.path), [check_object_id(commit)], depth=_WHOLE_HISTORY)
        repository.keep(upstream_ref(commit), commit)
        return self._of_commit(commit)

    def _fetched_key(self, lock: Lock) -> str:
        return digest_of([str(self.path), lock.release.commit])

    def release(self, version: str, *, sha256: str | None = None) -> Pristine:
        """Return another release: its sdist if the folder has it, and `other_release` otherwise."""
        path = self.path / f"{PROJECT}-{version}.tar.gz"
        if not path.is_file():
            return other_release(self.access, version, sha256=sha256)
        artifact = Artifact(filename=path.name, sha256=sha256_file(path), size=path.stat().st_size)
        require_digest(artifact, sha256)
        return self._from_sdist(artifact)

    def wheel(self, lock: Lock, machine: str) -> Path:
        """Return the wheel in the folder, verified by its digest; the index's if it has none."""
        artifact = lock.wheel(machine)
        path = self.path / artifact.filename
        if path.is_file():
            return adopt_copy(self.access.store, path, artifact)
        otherwise = f", or put that file into {self.path}"
        return fetch_artifact(self.access.store, artifact, self.access.settings, otherwise=otherwise)

    def _from_repository(self, lock: Lock) -> Pristine:
        repository, commit = self.access.repository, lock.release.commit
        if len(commit) != _FULL_ID:
            raise FetchError(
                f"the pinned commit cannot be taken from {self.path}",
                because=f"the lock has only {commit}, which is abbreviated",
                next_step="write the full commit id into the lock",
            )
        try:
            fetch(repository, str(self.path), [commit], depth=_WHOLE_HISTORY)
        except FetchError:
            with contextlib.suppress(FetchError):
                pinned_tag(repository, lock, str(self.path))  # which says more, if the release is another
            raise
        repository.keep(upstream_ref(commit), commit)
        self.access.store.put_record(_FETCHED, self._fetched_key(lock), {"folder": str(self.path)})
        return self._of_commit(commit)

    def _of_commit(self, commit: str) -> Pristine:
        return pristine_commit(self.access, commit, f"the repository {self.path}")

    def _from_sdist(self, artifact: Artifact) -> Pristine:
        path = self.path / artifact.filename
        tree = sdist_tree(self.access, artifact, lambda: adopt_copy(self.access.store, path, artifact))
        return self._of_sdist(artifact, tree)

    def _of_sdist(self, artifact: Artifact, tree: str) -> Pristine:
        return Pristine(tree, None, str(self.path / artifact.filename))
