"""Points of upstream's line between two pins: first-parent commits where there is history, else releases."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import BisectionError, NotInStoreError
from sparkwright.git.repository import Repository
from sparkwright.search.specs import ResolvedSpec, UpstreamPoint
from sparkwright.upstream.index import versions
from sparkwright.upstream.releases import Access
from sparkwright.upstream.source import UpstreamSource

_PROJECT = "vllm"
_FULL_ID = 40
_COMMIT, _FIELD = "\x01", "\x02"


@dataclass(frozen=True)
class UpstreamStep:
    """A point between two pins.

    Attributes:
        title: the commit's subject, or the release.
        files: paths that it changes, where they are known.
    """

    point: UpstreamPoint
    title: str
    files: tuple[str, ...] = ()


def upstream_steps(
    access: Access, source: UpstreamSource, git: str, start: ResolvedSpec, end: ResolvedSpec, *, commits: bool
) -> tuple[UpstreamStep, ...]:
    """Return the points after the pin of *start* up to that of *end*, oldest first.

    Args:
        access: the store, its repository and the network settings.
        source: the origin of upstream's commits.
        git: address of upstream's repository, where *source* has none of its own.
        start: the older end.
        end: the newer end.
        commits: take commits, also between two releases; without it, only where an end is a commit.

    Raises:
        BisectionError: the pins are not on one line, in this order.
        NotInStoreError: the network is off, and the commits or the list of releases were never fetched.
    """
    if start.point == end.point:
        return ()
    if commits or start.point.commit or end.point.commit:
        return _commits(access.repository, source, git, start, end)
    return _releases(access, start.point.version, end.point.version)


def _releases(access: Access, low: str, high: str) -> tuple[UpstreamStep, ...]:
    if Version(low) > Version(high):
        raise _wrong_order(low, high)
    between = [text for text in _listed(access) if Version(low) < Version(text) < Version(high)]
    return tuple(UpstreamStep(UpstreamPoint(text), f"release {text}") for text in [*between, high])


def _listed(access: Access) -> list[str]:
    """Return upstream's final releases, oldest first; the last list fetched, if the network is off."""
    if not access.settings.offline:
        listed = sorted(map(Version, versions(_PROJECT, access.settings)))
        found = [str(version) for version in listed if not version.is_prerelease]
        access.store.put_record("release-list", digest_of(_PROJECT), {"versions": found})
        return found
    known = access.store.find_record("release-list", digest_of(_PROJECT))
    if known is None:
        raise NotInStoreError(
            "the releases between the ends are unknown",
            because="the network is off, and they were never listed",
            next_step="run once without --offline",
        )
    return [str(version) for version in known["versions"]]


def _commits(
    repository: Repository, source: UpstreamSource, git: str, start: ResolvedSpec, end: ResolvedSpec
) -> tuple[UpstreamStep, ...]:
    """Return first-parent commits, after the older pin or from where its branch left the newer one's."""
    old, new = _commit(start), _commit(end)
    for commit in (old, new):
        source.commit(commit, git)
    found = repository.command("merge-base", old, new, accept=(0, 1))
    if found.status:
        raise BisectionError(
            f"nothing is known to lie between {old[:12]} and {new[:12]}",
            because="the two commits share no history in that repository",
            next_step="name one with upstream's whole history: --source FOLDER, or an address",
        )
    base = found.text
    if base == new:
        raise _wrong_order(old[:12], new[:12])
    steps = commit_steps(repository, base, new, start.point.version)
    if base != old:  # the older pin is on a branch of its own, as releases are
        point = UpstreamPoint(start.point.version, base, repository.tree_of(base))
        steps.insert(0, UpstreamStep(point, f"where {old[:12]} branched off"))
    if not end.point.commit:  # a release with digests of its own is the last point
        steps[-1] = UpstreamStep(end.point, steps[-1].title, steps[-1].files)
    return tuple(steps)


def commit_steps(repository: Repository, base: str, new: str, version: str) -> list[UpstreamStep]:
    """Return the first-parent commits after *base* up to *new*, oldest first, as points of *version*."""
    listed = repository.command(
        "log", "--first-parent", "--diff-merges=first-parent", "--reverse", "--name-only", "--no-renames",
        f"--format={_COMMIT}%H{_FIELD}%T{_FIELD}%s{_FIELD}", f"{base}..{new}",
    ).stdout  # fmt: skip
    fields = [entry.split(_FIELD) for entry in listed.decode(errors="replace").split(_COMMIT)[1:]]
    return [
        UpstreamStep(UpstreamPoint(version, commit, tree), title, tuple(filter(None, files.split("\n"))))
        for commit, tree, title, files in fields
    ]


def _commit(spec: ResolvedSpec) -> str:
    """Return the full id of the commit of *spec*: its own, or its pin's."""
    if spec.point.commit:
        return spec.point.commit
    if spec.lock is not None and len(spec.lock.release.commit) == _FULL_ID:
        return spec.lock.release.commit
    raise BisectionError(
        f"the commit of vllm {spec.point.version} is unknown",
        because="no lock of this repository names all of its digits",
        next_step="give the commit itself instead of the release, as PATCHSET@COMMIT",
    )


def _wrong_order(low: str, high: str) -> BisectionError:
    return BisectionError(
        f"{low} is not older than {high}",
        because="changes are searched from the older pin to the newer one",
        next_step="swap the ends; to find what fixed a failure, use --find-fix",
    )
