"""The difference of two resolved specs as changes, and the candidate that a set of them makes.

Upstream's points between two pins are listed from its history or its index; everything else is computed from
arguments alone. `candidates` makes the trees and wheels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import BisectionError, DependencyOrderError, NotInStoreError
from sparkwright.carries.model import Carry
from sparkwright.git.repository import Repository
from sparkwright.search.model import Axis, Change
from sparkwright.search.specs import ResolvedSpec, UpstreamPoint
from sparkwright.search.subsets import in_order
from sparkwright.upstream.index import versions
from sparkwright.upstream.releases import Access, UpstreamSource

AXES: tuple[Axis, ...] = ("upstream", "carries", "kernels")
REORDERED = "reordered"
KERNELS = "kernels"
_TITLES = {"added": "{title}", "removed": "Removing {name} ({title})", "revised": "Revising {name} ({title})"}


@dataclass(frozen=True)
class SpecDifference:
    """The difference between two specs.

    Attributes:
        path: points of upstream's line after the start's, the last of which is the end's.
        left_out: the axes that differ too and were not chosen: candidates have the start's state of these.
    """

    start: ResolvedSpec
    end: ResolvedSpec
    path: tuple[UpstreamStep, ...]
    changes: tuple[Change, ...]
    left_out: tuple[Axis, ...] = ()

    def candidate(self, applied: Collection[str]) -> ResolvedSpec:
        """Return the start with the changes *applied*, which have to be closed under what they require."""
        start, end = self.start, self.end
        reached = [step.point for step in self.path if step.point.label in applied]
        point = reached[-1] if reached else start.point
        lock = start.lock if point == start.point else end.lock if point == end.point else None
        return ResolvedSpec(
            text="",
            patchset=end.patchset if len(applied) == len(self.changes) else start.patchset,
            point=point,
            lock=lock,
            carries=_applied_carries(start.carries, end.carries, applied),
            arch=end.arch if KERNELS in applied else start.arch,
        )


def difference(
    start: ResolvedSpec, end: ResolvedSpec, path: Sequence[UpstreamStep] = (), *, axes: Collection[Axis] = ()
) -> SpecDifference:
    """Return what lies between two specs.

    *path* are the points of upstream's line up to the end's, oldest first; *axes* those to search, all by
    default.
    """
    found: dict[Axis, tuple[Change, ...]] = {
        "upstream": tuple(upstream_changes(path)),
        "carries": tuple(_carries(start, end)),
        "kernels": tuple(_kernels(start, end)),
    }
    differing = [axis for axis in AXES if found[axis]]
    chosen = [axis for axis in differing if not axes or axis in axes]
    if not chosen:
        because = f"they differ in: {', '.join(differing)}" if differing else "they are the same build spec"
        raise BisectionError(
            f"nothing lies between {start.text} and {end.text}" + (f" on {', '.join(axes)}" if axes else ""),
            because=because,
            next_step="give other ends, or another --axis",
        )
    changes = tuple(change for axis in chosen for change in found[axis])
    left_out = tuple(axis for axis in differing if axis not in chosen)
    return SpecDifference(start, end, tuple(path) if "upstream" in chosen else (), changes, left_out)


def weigh(changes: Iterable[Change], files: Collection[str], factor: float = 4.0) -> dict[str, float]:
    """Return the weights of those of *changes* that touch one of *files*, which a symptom points to."""
    suspected = set(files)
    return {change.id: factor for change in changes if suspected.intersection(change.files)}


def upstream_changes(path: Iterable[UpstreamStep]) -> Iterator[Change]:
    """Yield the points of *path* as changes, each of which needs the one before it."""
    before: tuple[str, ...] = ()
    for step in path:
        name = step.point.label
        yield Change(id=name, axis="upstream", title=step.title, requires=before, files=step.files)
        before = (name,)


def _kernels(start: ResolvedSpec, end: ResolvedSpec) -> Iterable[Change]:
    if start.arch != end.arch:
        before, after = (f"native for {arch}" if arch else "upstream's" for arch in (start.arch, end.arch))
        yield Change(id=KERNELS, axis="kernels", title=f"kernels: {before} → {after}")


def _carries(start: ResolvedSpec, end: ResolvedSpec) -> Iterable[Change]:
    """Yield a change for each carry that was added, removed or revised, and one if the order differs."""
    before, after = _by_name(start.carries), _by_name(end.carries)
    versions = {start.point.version, end.point.version}
    kinds: dict[str, str] = {}
    for name in dict.fromkeys([*before, *after]):
        if name not in before:
            kinds[name] = "added"
        elif name not in after:
            kinds[name] = "removed"
        elif _differ(before[name], after[name], versions):
            kinds[name] = "revised"
    for name, kind in kinds.items():
        carry = after.get(name) or before[name]
        yield Change(
            id=f"{name}:{kind}",
            axis="carries",
            title=_TITLES[kind].format(name=name, title=carry.spec.title),
            requires=tuple(_needed(name, kinds, before, after)),
            files=_files(carry, (start if kind == "removed" else end).point.version),
        )
    common = [name for name in before if name in after]
    if common != [name for name in after if name in before]:
        yield Change(id=REORDERED, axis="carries", title="the order of the carries that both have")


def _differ(old: Carry, new: Carry, versions: Collection[str]) -> bool:
    """Tell if two states of a carry change other things, or require other carries."""
    if set(old.spec.requires) != set(new.spec.requires):
        return True
    return any(old.content_id(version) != new.content_id(version) for version in versions)


def _needed(
    name: str, kinds: Mapping[str, str], before: Mapping[str, Carry], after: Mapping[str, Carry]
) -> Iterable[str]:
    """Yield the changes without which the one of the carry *name* leaves a requirement unmet."""
    if name in after:  # what it requires now has to be there
        for required in after[name].spec.requires:
            if kinds.get(required) == "added":
                yield f"{required}:added"
    if kinds[name] == "removed":  # what required it has to be gone, or to require it no longer
        for other, carry in before.items():
            if name in carry.spec.requires and other in kinds:
                yield f"{other}:{kinds[other]}"


def _files(carry: Carry, version: str) -> tuple[str, ...]:
    revision = carry.revision_for(version)
    return carry.patch(revision).paths if revision is not None else ()


def _by_name(carries: Iterable[Carry]) -> dict[str, Carry]:
    return {carry.name: carry for carry in carries}


def _applied_carries(
    start: Sequence[Carry], end: Sequence[Carry], applied: Collection[str]
) -> tuple[Carry, ...]:
    """Return the carries of *start* with the changes *applied*, each after what it requires."""
    before, after = _by_name(start), _by_name(end)
    chosen: dict[str, Carry] = {}
    for name in {**before, **after}:
        if name not in after:
            if f"{name}:removed" not in applied:
                chosen[name] = before[name]
        elif name not in before:
            if f"{name}:added" in applied:
                chosen[name] = after[name]
        else:
            chosen[name] = (after if f"{name}:revised" in applied else before)[name]
    leading, other = (after, before) if REORDERED in applied else (before, after)
    order = _woven([name for name in leading if name in chosen], [name for name in other if name in chosen])
    requires = {name: chosen.keys() & set(chosen[name].spec.requires) for name in order}
    with contextlib.suppress(DependencyOrderError):  # merging the candidate refuses the cycle
        order = list(in_order(requires, order.index))
    return tuple(chosen[name] for name in order)


def _woven(leading: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return *leading* with what only *other* has, each behind its predecessor there."""
    order = list(leading)
    for number, name in enumerate(other):
        if name not in order:
            earlier = [order.index(known) for known in other[:number] if known in order]
            order.insert(earlier[-1] + 1 if earlier else 0, name)
    return order


# Points of upstream's line ------------------------------------------------------------------------

_PROJECT = "vllm"
_FULL_ID = 40
_COMMIT, _FIELD = "\x01", "\x02"


@dataclass(frozen=True)
class UpstreamStep:
    """A point between two pins.

    Attributes:
        files: paths that it changes, where they are known.
    """

    point: UpstreamPoint
    title: str
    files: tuple[str, ...] = ()


def upstream_steps(
    access: Access, source: UpstreamSource, git: str, start: ResolvedSpec, end: ResolvedSpec, *, commits: bool
) -> tuple[UpstreamStep, ...]:
    """Return the points after the pin of *start* up to that of *end*, oldest first.

    Commits are taken where an end is one, or *commits* asks for them; *git* is their address where *source*
    has none.

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
