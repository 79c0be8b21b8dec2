"""A folder as the source: a repository, a mirror of the release's files, or an unpacked tree."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.errors import ArchiveError, FetchError
from sparkwright.base.events import task, warn
from sparkwright.git import FileEntry, check_object_id, fetch, import_files
from sparkwright.lock import Artifact, Lock
from sparkwright.lock.statements import VERSION_FILE, stated_commit
from sparkwright.upstream.archive import (
    EXECUTABLE,
    REGULAR,
    SYMLINK,
    Measure,
    bad_component,
    inward_target,
    refuse_outward,
)
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
_CACHES = frozenset({"__pycache__", ".git"})


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

        A repository gives the pinned commit with the history that it has; a folder with the sdist
        gives that, by its digest; anything else that looks like vLLM's tree is taken as it is,
        and is only `verified` when it equals the pinned sdist.

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
            return self._from_sdist(lock.sdist, verified=True)
        if (self.path / PROJECT).is_dir() and (self.path / "pyproject.toml").is_file():
            return self._from_tree(lock)
        raise FetchError(
            f"{self.path} holds no {PROJECT}",
            because=f"it is no repository, has no {lock.required_sdist().filename} and no {PROJECT} folder",
            next_step="give a clone, a folder with the release's files, or an unpacked sdist",
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
            return None if tree is None else self._of_sdist(lock.sdist, tree, verified=True)
        return None  # an unpacked tree has to be read to know what it is

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
        return self._from_sdist(artifact, verified=False)

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

    def _from_sdist(self, artifact: Artifact, *, verified: bool) -> Pristine:
        path = self.path / artifact.filename
        tree = sdist_tree(self.access, artifact, lambda: adopt_copy(self.access.store, path, artifact))
        return self._of_sdist(artifact, tree, verified=verified)

    def _of_sdist(self, artifact: Artifact, tree: str, *, verified: bool) -> Pristine:
        return Pristine(tree, None, str(self.path / artifact.filename), verified)

    def _from_tree(self, lock: Lock) -> Pristine:
        with task(f"import {self.path}", unit="files") as progress:
            files = dict(walk_folder(self.path))
            tree = import_files(self.access.repository, files.items())
            progress.advance(len(files))
        record = self.access.store.find_record("sdist-tree", lock.required_sdist().sha256) or {}
        verified = record.get("tree") == tree
        if not verified:
            known = (
                "it differs from the pinned sdist" if record else "the pinned sdist is not here to compare"
            )
            stated = stated_commit(files[VERSION_FILE].data) if VERSION_FILE in files else None
            warn(
                f"{self.path} is used as it is, unverified: {known}; it says that it is commit "
                f"{stated or 'unknown'}, and the lock pins {lock.release.commit}",
                source=str(self.path), stated=stated, pinned=lock.release.commit,
            )  # fmt: skip
        return Pristine(tree, None, f"the folder {self.path}", verified)


def walk_folder(root: Path) -> Iterator[tuple[str, FileEntry]]:
    """Yield every file under *root* by its path there, but for repositories and Python's caches.

    Raises:
        ArchiveError: a name or link is not safe everywhere, something is no file, folder or link, or all
            is absurdly large. Links are looked at last: use nothing before the iteration has ended.
    """
    measure, links = Measure(str(root)), dict[str, str]()
    for parent, folders, names in os.walk(root, onerror=_raise):
        folders[:] = sorted(name for name in folders if name not in _CACHES)
        for name in folders:
            _require_safe(Path(parent, name))
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        for name in sorted([*names, *linked]):
            path = Path(parent, name)
            relative = path.relative_to(root).as_posix()
            _require_safe(path)
            state = path.lstat()
            if stat.S_ISLNK(state.st_mode):
                links[relative] = inward_target(relative, os.readlink(path), str(root))  # noqa: PTH115 - raw text
                yield relative, FileEntry(SYMLINK, os.fsencode(links[relative]))
            elif stat.S_ISREG(state.st_mode):
                measure.take(relative, state.st_size)
                kind = EXECUTABLE if state.st_mode & stat.S_IXUSR else REGULAR
                yield relative, FileEntry(kind, path.read_bytes())
            else:
                raise ArchiveError(f"{path} cannot be imported", because="it is no file, folder or link")
    refuse_outward(links, str(root))


def _require_safe(path: Path) -> None:
    if why := bad_component(path.name):
        raise ArchiveError(f"{path} cannot be imported", because=why)


def _raise(error: OSError) -> None:
    """Raise *error*: a folder that cannot be looked into is not empty."""
    raise error
