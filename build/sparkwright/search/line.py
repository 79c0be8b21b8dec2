"""Points of upstream's line between two pins: first-parent commits where history is to be had, or releases."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import BisectionError, NotInStoreError
from sparkwright.git import fetch, list_remote
from sparkwright.search.axes import UpstreamStep
from sparkwright.search.specs import UpstreamPoint
from sparkwright.upstream.index import versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkwright.search.specs import ResolvedSpec
    from sparkwright.upstream import Access

_PROJECT = "vllm"
_WHOLE_HISTORY = 0x7FFFFFFF  # git's own "infinite depth" (fetch-options, --unshallow)
_COMMIT, _FIELD = "\x01", "\x02"


def upstream_steps(
    access: Access, start: ResolvedSpec, end: ResolvedSpec, *, repository: str = ""
) -> tuple[UpstreamStep, ...]:
    """Return the points after the pin of *start* up to that of *end*, oldest first.

    Args:
        access: the store, its repository and the network settings.
        start: the older end.
        end: the newer end.
        repository: address or folder of a repository with upstream's history; releases are the points if
            it is empty and both pins are releases.

    Raises:
        BisectionError: the pins are not on one line, in this order, or a commit's history is missing.
        NotInStoreError: the network is off, and the releases were never listed.
    """
    if start.point == end.point:
        return ()
    if repository or start.point.commit or end.point.commit:
        return _commits(access, start, end, repository)
    return _releases(access, start.point.version, end.point.version)


def _releases(access: Access, low: str, high: str) -> tuple[UpstreamStep, ...]:
    from packaging.version import Version

    if Version(low) > Version(high):
        raise _wrong_order(low, high)
    between = [text for text in _listed(access) if Version(low) < Version(text) < Version(high)]
    return tuple(UpstreamStep(UpstreamPoint(text), f"release {text}") for text in [*between, high])


def _listed(access: Access) -> list[str]:
    """Return upstream's final releases, oldest first; the last list fetched, if the network is off."""
    from packaging.version import Version

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
    access: Access, start: ResolvedSpec, end: ResolvedSpec, address: str
) -> tuple[UpstreamStep, ...]:
    """Return first-parent commits from the fork point of both, which is the first of them if not *start*."""
    git = access.repository
    old, new = (_commit(access, spec, address) for spec in (start, end))
    if address:
        missing = [commit for commit in (old, new) if not git.has(commit)]
        if missing or not _joined(access, old, new):
            fetch(git, address, [old, new], depth=_WHOLE_HISTORY)
            for commit in (old, new):
                git.keep(f"refs/sparkwright/upstream/{commit}", commit)
    if not all(map(git.has, (old, new))) or not _joined(access, old, new):
        raise BisectionError(
            f"the commits between {old[:12]} and {new[:12]} are unknown",
            because="the store does not hold upstream's history between them",
            next_step="name a repository that does: --upstream FOLDER, or an address",
        )
    base = git.command("merge-base", old, new).text
    if base == new:
        raise _wrong_order(old[:12], new[:12])
    steps = list(_log(access, base, new, start.point.version))
    if base != old:  # the older pin is on a branch of its own, as releases are
        steps.insert(
            0, UpstreamStep(UpstreamPoint(start.point.version, base), f"where {old[:12]} branched off")
        )
    if end.point != steps[-1].point:
        steps[-1] = UpstreamStep(end.point, steps[-1].title, steps[-1].files)
    return tuple(steps)


def _joined(access: Access, old: str, new: str) -> bool:
    return access.repository.command("merge-base", old, new, accept=(0, 1, 128)).status == 0


def _log(access: Access, base: str, new: str, version: str) -> Iterator[UpstreamStep]:
    shown = f"--format={_COMMIT}%H{_FIELD}%s{_FIELD}"
    options = ["--first-parent", "--diff-merges=first-parent", "--reverse", "--name-only", "--no-renames"]
    listed = access.repository.command("log", *options, shown, f"{base}..{new}").stdout
    for entry in listed.decode(errors="replace").split(_COMMIT)[1:]:
        commit, title, files = entry.split(_FIELD)
        yield UpstreamStep(UpstreamPoint(version, commit), title, tuple(files.split("\n")[1:-1]))


def _commit(access: Access, spec: ResolvedSpec, address: str) -> str:
    """Return the full id of the commit of *spec*: its own, its pin's, or its release's tag."""
    if spec.point.commit:
        return spec.point.commit
    if spec.lock is not None and len(spec.lock.release.commit) == 40:  # noqa: PLR2004 - a full id
        return spec.lock.release.commit
    if address:
        tag = f"refs/tags/v{spec.point.version}"
        with contextlib.suppress(NotInStoreError):
            if (found := list_remote(access.repository, address, [tag]).get(tag)) is not None:
                return found.commit
    raise BisectionError(
        f"the commit of vllm {spec.point.version} is unknown",
        because="neither a lock nor a tag of that repository names it",
        next_step="give the commit itself instead of the release",
    )


def _wrong_order(low: str, high: str) -> BisectionError:
    return BisectionError(
        f"{low} is not older than {high}",
        because="changes are searched from the older pin to the newer one",
        next_step="swap the ends; to find what fixed a failure, use --find-fix",
    )
