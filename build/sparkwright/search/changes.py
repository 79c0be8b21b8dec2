"""The difference of two resolved specs as changes, and the candidate that a set of them makes.

Everything here is computed from its arguments alone: `candidates` makes the trees and wheels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparkwright.base.errors import BisectionError
from sparkwright.carries.model import Carry
from sparkwright.search.history import UpstreamStep
from sparkwright.search.model import Axis, Change
from sparkwright.search.specs import ResolvedSpec

AXES: tuple[Axis, ...] = ("upstream", "carries", "kernels")
REORDERED = "reordered"
KERNELS = "kernels"
_TITLES = {
    "added": "{title}",
    "removed": "Removing {name} ({title})",
    "revised": "Revising {name} ({title})",
}


@dataclass(frozen=True)
class SpecDifference:
    """The difference between two specs.

    Attributes:
        start: the spec without any change.
        end: the spec with all of them.
        path: points of upstream's line after the start's, the last of which is the end's.
        changes: those of the chosen axes; upstream's in their order.
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

    Args:
        start: the spec without any change.
        end: the spec with all of them.
        path: points of upstream's line between them, oldest first, up to the end's; empty for the same pin.
        axes: the axes to search; all that differ by default.

    Raises:
        BisectionError: the two do not differ, or not on these axes.
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
    return tuple(chosen[name] for name in _after_required(order, chosen))


def _woven(leading: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return *leading* with what only *other* has, each behind its predecessor there."""
    order = list(leading)
    for number, name in enumerate(other):
        if name not in order:
            earlier = [order.index(known) for known in other[:number] if known in order]
            order.insert(earlier[-1] + 1 if earlier else 0, name)
    return order


def _after_required(order: Sequence[str], chosen: Mapping[str, Carry]) -> Iterable[str]:
    """Yield the names of *order*, each as early as it stands there and after all that it requires."""
    waiting, done = list(order), set[str]()
    while waiting:
        ready = next((name for name in waiting if _is_ready(name, chosen, done)), waiting[0])
        waiting.remove(ready)
        done.add(ready)
        yield ready


def _is_ready(name: str, chosen: Mapping[str, Carry], done: Collection[str]) -> bool:
    return all(required in done or required not in chosen for required in chosen[name].spec.requires)
