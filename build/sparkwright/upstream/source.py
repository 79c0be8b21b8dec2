"""Sources of pristine trees and stock wheels: the index, a git remote, or a folder."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from sparkwright.base.digests import sha256_file
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
            return require_tree(lock, self.commit(commit, address))
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
                tag, commit = pinned_tag(repository, lock, address)
                fetch(repository, address, [tag], depth=depth)
            found = self._of_release(commit, address)
        repository.keep(upstream_ref(commit), commit)
        return found

    def known(self, lock: Lock) -> Pristine | None:
        """Return what `pristine` would give, if the store holds it; nothing is fetched or written.

        How much history a clone has is only known once it was fetched from.
        """
        commit, address = lock.release.commit, self.remote or lock.release.git
        if lock.sdist is not None and not self.by_commit:
            tree = known_tree(self.access, lock.sdist.sha256)
            with contextlib.suppress(FetchError):
                return None if tree is None else Pristine(tree, None, self._origin(lock.sdist))
            return None
        if len(commit) != _FULL_ID or not self.access.repository.has(commit):
            return None
        if lock.sdist is None:
            return require_tree(lock, pristine_commit(self.access, commit, address))
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
        if here and (found := pristine_commit(self.access, commit, address)).history:
            return found
        if self._is_in_reach(address):
            fetch(repository, address, [commit], depth=None)
            repository.keep(upstream_ref(commit), commit)
        elif not here:
            self._require_reach(commit, address)
        return pristine_commit(self.access, commit, address)

    def release(self, version: str, *, sha256: str | None = None) -> Pristine:
        """Return upstream's files at another release, whose sdist has the digest *sha256* if one is given.

        It is the folder's if that has it; see `other_release`.
        """
        path = self.folder and self.folder / f"{PROJECT}-{version}.tar.gz"
        if not path or not path.is_file():
            return other_release(self.access, version, sha256=sha256)
        artifact = Artifact(filename=path.name, sha256=sha256_file(path), size=path.stat().st_size)
        require_digest(artifact, sha256)
        return self._imported(artifact)

    def wheel(self, lock: Lock, machine: str) -> Path:
        """Return upstream's wheel of the pinned release for *machine*, verified by its digest."""
        return self._file(lock.wheel(machine))

    def _of_release(self, commit: str, address: str) -> Pristine:
        """Return the pinned commit of a release; of its history, what a clone has."""
        found = pristine_commit(self.access, commit, address)
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
        return Pristine(sdist_tree(self.access, sdist, lambda: self._file(sdist)), None, origin)

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
