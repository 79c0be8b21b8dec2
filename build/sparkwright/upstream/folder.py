"""A folder as the source: a repository, or a mirror of the release's files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import FetchError
from sparkwright.git import check_object_id, fetch
from sparkwright.lock import Artifact, Lock
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

_WHOLE_HISTORY = 0x7FFFFFFF  # git's own "infinite depth" (fetch-options, --unshallow)
_FULL_ID = 40
_FETCHED = "folder-fetched"


@dataclass(frozen=True)
class FolderSource:
    """A folder of the user's; nothing in it is ever written to.

    Attributes:
        access: where what is taken from it is kept.
    """

    access: Access
    path: Path

    def pristine(self, lock: Lock) -> Pristine:
        """Return Upstream's files at the pinned release, in whichever form the folder has them.

        A repository gives the pinned commit with the history that it has, a folder with the sdist that, by
        its digest.

        Raises:
            FetchError: it is a repository without the pinned commit, or nothing of vLLM.
            LockMismatchError: it is a repository in which the release is another commit.
            DigestError: the sdist in it is not the pinned one.
        """
        if lock.sdist is None:
            return require_tree(lock, self.commit(lock.release.commit, lock.release.git))
        if self._is_repository():
            return self._from_repository(lock)
        if (self.path / lock.sdist.filename).is_file():
            return self._from_sdist(lock.sdist)
        raise FetchError(
            f"{self.path} holds no {PROJECT}",
            because=f"it is no repository, and has no {lock.sdist.filename}",
            next_step="give a clone, or a folder with the release's files",
        )

    def known(self, lock: Lock) -> Pristine | None:
        """Return the same, if the store has it and the folder cannot have changed it: a commit, or a digest.

        How much history a repository has is only known once it was fetched from.
        """
        repository, commit = self.access.repository, lock.release.commit
        if lock.sdist is None:
            known = len(commit) == _FULL_ID and repository.has(commit)
            return require_tree(lock, self._of_commit(commit)) if known else None
        if self._is_repository():
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
        if not self._is_repository():
            from sparkwright.upstream.source import GitSource

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

    def _is_repository(self) -> bool:
        bare = (self.path / "HEAD").is_file() and (self.path / "objects").is_dir()
        return bare or (self.path / ".git").exists()

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
