"""Symbolic links of a tree that lead out of it, also through one another."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

_MOST_HOPS = 40  # as many as Linux follows (path_resolution(7)); what needs more leads nowhere


def outward_link(links: Mapping[str, str]) -> str | None:
    """Return the path of a link that leads out of its tree, or `None`.

    Args:
        links: the target of each symbolic link of the tree, by its path there.
    """
    return next((path for path in links if _leads_out(path, links)), None)


def _leads_out(path: str, links: Mapping[str, str]) -> bool:
    """Follow the link at *path* as the kernel does, but for the names that are no links."""
    place: list[str] = []
    todo = path.split("/")[::-1]
    hops = 0
    while todo:
        part = todo.pop()
        if part == "..":
            if not place:
                return True
            place.pop()
        elif part not in {"", "."}:
            place.append(part)
            target = links.get("/".join(place))
            if target is not None:
                hops += 1
                if posixpath.isabs(target):
                    return True
                if hops > _MOST_HOPS:
                    return False
                place.pop()
                todo += target.split("/")[::-1]
    return False
