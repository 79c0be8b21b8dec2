"""The news: newest release and commit of upstream's. What cannot be asked is noted, never guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from packaging.version import InvalidVersion, Version

from sparkwright.base.errors import FetchError, NotInStoreError, SparkwrightError, UnknownNameError
from sparkwright.git.remotes import fetch, list_remote
from sparkwright.git.repository import Repository
from sparkwright.lock.statements import VERSION_FILE, stated_commit
from sparkwright.nightly.judging import fork
from sparkwright.nightly.model import UpstreamTarget
from sparkwright.pipeline.job import Job
from sparkwright.search.changes import UpstreamStep
from sparkwright.search.specs import UpstreamPoint
from sparkwright.upstream.commits import known_wheel, nightly_commit
from sparkwright.upstream.index import find_wheel, versions
from sparkwright.upstream.releases import PROJECT

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_FULL_ID = 40
_KEPT = "refs/sparkwright/nightly/main"
_PATIENCE_S = 20.0


@dataclass
class UpstreamNews:
    """Upstream as it is now.

    Attributes:
        job: the job, whose lock is the pin.
        address: repository with upstream's history: an address or a folder; empty for none.
        notes: what could not be asked, in words.
    """

    job: Job
    address: str
    notes: list[str] = field(default_factory=list)

    @property
    def _repository(self) -> Repository:
        return self.job.repository

    @property
    def _offline(self) -> bool:
        return self.job.options.offline

    @cached_property
    def head(self) -> str:
        """The newest commit of upstream's branch in the store, fetched if it is new; empty if none is."""
        if self.address and not (self._offline and "://" in self.address):
            try:
                listed = list_remote(self._repository, self.address, ["HEAD"], timeout=_PATIENCE_S)
                if self._kept != (found := listed["HEAD"].commit):
                    fetch(self._repository, self.address, ["HEAD"], depth=None)
                    self._repository.keep(_KEPT, found)
            except (FetchError, KeyError) as error:
                self.notes.append(f"upstream's history was not updated: {error}")
        return self._kept

    @property
    def _kept(self) -> str:
        return self._repository.find(_KEPT)

    @cached_property
    def releases(self) -> list[str]:
        """Upstream's releases with a wheel for the platform, oldest first; none if no index answered."""
        if self._offline:
            self.notes.append("no index was asked for releases: the network is off")
            return []
        try:
            return versions(PROJECT, self.job.access.settings, sdist=True, machine=self.job.options.platform)
        except FetchError as error:
            self.notes.append(f"no release could be looked for: {error}")
            return []

    @cached_property
    def pin(self) -> UpstreamTarget:
        """The lock's own release or commit."""
        lock = self.job.spec.lock
        release = lock.release
        pristine = self.job.pristine
        return self._with_history(
            UpstreamTarget(
                kind="release" if lock.sdist is not None else "commit",
                version=release.version,
                tree=pristine.tree,
                commit=release.commit,
                wheel=True,
                origin=pristine.origin,
            )
        )

    def newest(self) -> list[UpstreamTarget]:
        """Return the newest release and the newest commit, where they are newer than the pin."""
        targets = []
        if self.releases and Version(self.releases[-1]) > Version(self.pin.version):
            targets.append(self.release(self.releases[-1]))
        commit = self._newest_commit()
        if commit and commit not in {self.pin.commit, *(one.commit for one in targets)}:
            targets.append(self.commit(commit))
        return targets

    def _newest_commit(self) -> str:
        """Return the newest commit with a wheel, or the newest one if wheels are unknown; empty if none."""
        head = self.head
        try:
            commit = nightly_commit(self.job.access)
        except (FetchError, NotInStoreError) as error:
            self.notes.append(f"no commit with a wheel could be looked for: {error}")
            return head
        if head and not self._repository.has(commit):
            self.notes.append(f"commit {commit[:12]} has a wheel and is not in the history of {self.address}")
            return head
        return commit

    def named(self, name: str) -> UpstreamTarget:
        """Return the target that a user calls *name*: a release's version, or a commit.

        Raises:
            UnknownNameError: it is neither.
            FetchError, NotInStoreError: it cannot be had.
        """
        if _COMMIT.fullmatch(name) and (commit := self._full(name)):
            return self.commit(commit)
        try:
            return self.release(str(Version(name)))
        except InvalidVersion as error:
            raise UnknownNameError(
                f"there is no target {name!r}",
                because="; ".join(
                    [
                        "it is no version, and no commit of that name is in upstream's history here",
                        *self.notes,
                    ]
                ),
                next_step="give a release, or --history with a repository that has the commit",
            ) from error

    def release(self, version: str) -> UpstreamTarget:
        """Return the release *version*, fetched if the store lacks it."""
        pristine = self.job.source.release(version)
        found = self._repository.files(pristine.tree, [VERSION_FILE]).get(VERSION_FILE)
        commit = None if found is None else stated_commit(self._repository.blob(found.blob))
        return self._with_history(
            UpstreamTarget(
                kind="release",
                version=version,
                tree=pristine.tree,
                commit=commit or "",
                wheel=None if not self.releases else version in self.releases,
                origin=pristine.origin,
            )
        )

    def commit(self, commit: str) -> UpstreamTarget:
        """Return the target of a commit, whose tree has to be in the store."""
        version, wheel = None, None
        try:
            version = self._wheel_version(commit)
            wheel = version is not None
        except SparkwrightError as error:
            self.notes.append(f"the wheel of commit {commit[:12]} could not be looked for: {error}")
        return self._with_history(
            UpstreamTarget(
                kind="commit",
                version=version or self._version_of(commit),
                tree=self._repository.tree_of(commit),
                commit=commit,
                wheel=wheel,
                origin=f"commit {commit[:12]} of {self.address or 'the store'}",
            )
        )

    def _wheel_version(self, commit: str) -> str | None:
        """Return the version that upstream's wheel of *commit* states; `None` if there is no such wheel."""
        access, platform = self.job.access, self.job.options.platform
        if (known := known_wheel(access, commit, platform)) is not None:
            return known.filename.split("-")[1]
        listed = None if access.settings.offline else find_wheel(commit, platform, access.settings)
        return None if listed is None else listed.filename.split("-")[1]

    def _version_of(self, commit: str) -> str:
        """Return a version for *commit* such as its wheel would have: the next one after the pin's."""
        done = self._repository.command("rev-list", "--count", "--first-parent", commit, f"^{self._base}")
        release = Version(self.job.spec.lock.release.version)
        return f"{release.major}.{release.minor}.{release.micro + 1}.dev{done.text or 0}+g{commit[:9]}"

    @property
    def _base(self) -> str:
        return self._full(self.job.spec.lock.release.commit) or self._kept

    def _full(self, commit: str) -> str:
        """Return the full id of *commit*, if it is in the store."""
        if not _COMMIT.fullmatch(commit) or not (self.head or len(commit) == _FULL_ID):
            return ""
        return self._repository.find(f"{commit}^{{commit}}")

    def _with_history(self, target: UpstreamTarget) -> UpstreamTarget:
        """Return *target* with its commit in full and whether history leads from upstream's branch to it."""
        from msgspec.structs import replace

        full = self._full(target.commit) if target.commit and self.head else ""
        linked = bool(full) and fork(self._repository, full, self.head) is not None
        return replace(target, commit=full or target.commit, history=linked)

    def between(self, old: UpstreamTarget, new: UpstreamTarget) -> list[UpstreamStep]:
        """Return the releases after *old* up to *new*, oldest first; those that cannot be had are left out.

        Between them the index is asked only where *new* is a release.
        """
        trees = {}
        if new.kind == old.kind == "release":
            first, last = Version(old.version), Version(new.version)
            for name in self.releases:
                if first < Version(name) < last:
                    try:
                        trees[name] = self.job.source.release(name).tree
                    except SparkwrightError as error:
                        self.notes.append(f"release {name} was left out of a search: {error}")
        trees[new.label] = new.tree
        return [
            UpstreamStep(UpstreamPoint(name, tree=tree), f"{PROJECT} {name}") for name, tree in trees.items()
        ]
