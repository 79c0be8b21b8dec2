"""Pins and architecture lists that differ between two upstream trees, read out of their own files."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from sparkwright.git import Repository
from sparkwright.lock.cmake import is_cmake_file, read_pins
from sparkwright.nightly.model import ArchMove, PinMove

# Python packages whose versions decide how kernels behave; the names as requirements files spell them.
_WATCHED = re.compile(r"^(?:torch|triton|flashinfer-[a-z]+|nvidia-cutlass-dsl|nvidia-cudnn-frontend)$")
_REQUIREMENTS = ("requirements/common.txt", "requirements/cuda.txt", "requirements/build/cuda.txt")
_ARCHS = re.compile(
    r"\bset\s*\(\s*(?P<set>\w*ARCHS\w*)\s+\"(?P<values>[^\"$]+)\"\s*\)"
    r"|\bcuda_archs_loose_intersection\s*\(\s*(?P<use>\w+)\s+\"(?P<wanted>[^\"$]+)\"",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"#[^\n]*")


def pin_moves(repository: Repository, old: str, new: str) -> tuple[PinMove, ...]:
    """Return the dependencies that the tree *new* pins otherwise than the tree *old*, by name."""
    before, after = (_pins(_texts(repository, tree)) for tree in (old, new))
    return tuple(
        PinMove(
            name=name,
            before=before.get((name, where), ""),
            after=after.get((name, where), ""),
            declared_in=where,
        )
        for name, where in sorted(before.keys() | after.keys())
        if before.get((name, where), "") != after.get((name, where), "")
    )


def arch_moves(repository: Repository, old: str, new: str) -> tuple[ArchMove, ...]:
    """Return the lists of GPU architectures that differ between the trees *old* and *new*.

    A variable may be set several times, as for each CUDA version. Lists that both trees have are left out of
    the comparison; of one that is left on either side, single entries are compared, else whole lists.
    """
    before, after = (_archs(_texts(repository, tree)) for tree in (old, new))
    moves = []
    for name, where in sorted(before.keys() & after.keys()):
        gone = list((before[name, where] - after[name, where]).elements())
        come = list((after[name, where] - before[name, where]).elements())
        if len(gone) == len(come) == 1:
            old_list, new_list = (set(one[0].split(";")) for one in (gone, come))
            gone, come = sorted(old_list - new_list), sorted(new_list - old_list)
        if gone or come:
            moves.append(ArchMove(name=name, declared_in=where, added=tuple(come), removed=tuple(gone)))
    return tuple(moves)


def _texts(repository: Repository, tree: str) -> dict[str, str]:
    """Return the requirements and CMake files of *tree*, by path."""
    wanted = {
        path: entry
        for path, entry in repository.files(tree).items()
        if path in _REQUIREMENTS or is_cmake_file(path)
    }
    return {path: repository.blob(entry.blob).decode(errors="replace") for path, entry in wanted.items()}


def _pins(texts: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return the pin of each dependency, by its name and the file that states it."""
    from packaging.requirements import InvalidRequirement, Requirement

    found: dict[tuple[str, str], str] = {}
    for path in _REQUIREMENTS:
        for line in texts.get(path, "").splitlines():
            try:
                requirement = Requirement(line.split(" #")[0].strip())
            except InvalidRequirement:
                continue
            if _WATCHED.fullmatch(requirement.name):
                found[requirement.name, path] = str(requirement.specifier)
    for pin in read_pins(texts)[0]:
        found[pin.name, pin.declared_in] = pin.ref
    return found


def _archs(texts: Mapping[str, str]) -> dict[tuple[str, str], Counter[str]]:
    """Return the lists that each variable is given, by its name and file; those for AMD's cards left out."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for path in filter(is_cmake_file, texts):
        for listed in _ARCHS.finditer(_COMMENT.sub("", texts[path])):
            name = listed["set"] or listed["use"]
            if not name.upper().startswith(("HIP", "_")):
                values = re.split(r"[;\s]+", (listed["values"] or listed["wanted"]).strip())
                found[name, path][";".join(values)] += 1
    return found
