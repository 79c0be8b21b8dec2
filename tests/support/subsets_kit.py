"""Parts of a patchset: which of them can be asked for, and which show that all of them merge.

A part keeps the patchset's order and is *closed*: whatever one of its carries requires is in it too.
A search for the carry to blame walks such parts, so each has to merge. There are up to 2ⁿ of them;
`telling_subsets` names the few that settle it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from sparkwright.carries.model import Carry
from sparkwright.carries.patchset import closure

Part = tuple["Carry", ...]


def prefixes(carries: Sequence[Carry]) -> Iterator[Part]:
    """Return the first carry, the first two, and so on to all of *carries*.

    Args:
        carries: in a valid order: each after what it requires, so that every prefix is closed.
    """
    return (tuple(carries[:length]) for length in range(1, len(carries) + 1))


def closed_subsets(carries: Sequence[Carry]) -> Iterator[Part]:
    """Yield every closed part of *carries* but the empty one, each once and always in the same order.

    Args:
        carries: in a valid order: each after what it requires.
    """

    def extend(part: Part, index: int) -> Iterator[Part]:
        if index == len(carries):
            yield part
            return
        yield from extend(part, index + 1)
        names = {carry.name for carry in part}
        if names.issuperset(carries[index].spec.requires):
            yield from extend((*part, carries[index]), index + 1)

    return (part for part in extend((), 0) if part)


def telling_subsets(carries: Sequence[Carry], touched: Mapping[str, Collection[str]]) -> tuple[Part, ...]:
    """Return closed parts of *carries* that all merge cleanly only if every closed part does.

    A merge decides file by file, and what it finds for a file hangs on those carries alone that touch
    it. So it is enough that, for each file, every combination of its carries that occurs in a closed
    part occurs in one of the parts returned: the smallest closed one that holds it. Their number grows
    with 2 to the number of carries that meet in one file, and not with 2 to the number of carries.

    It takes for granted that no carry renames a file. And it is true of text: whether a carry *works*
    without another one that it does not require, no merge can tell. That is for its probe, run with what
    it requires and nothing else.

    Args:
        carries: in a valid order: each after what it requires.
        touched: the files that each carry changes, by its name. A file in a folder counts as touching the
            folder, since a file of that name would be in its way.
    """
    by_file: dict[str, set[str]] = {}
    for carry in carries:
        for path in touched[carry.name]:
            by_file.setdefault(path, set()).add(carry.name)
    groups = {
        frozenset(names).union(*(by_file[above] for above in _folders(path) if above in by_file))
        for path, names in by_file.items()
    }
    found = {closure([carry.name], carries): None for carry in carries}
    for group in sorted(groups, key=sorted):
        for part in closed_subsets(closure(group, carries)):
            meeting = [carry.name for carry in part if carry.name in group]
            found.setdefault(closure(meeting, carries))
    return tuple(part for part in found if part)


def _folders(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
