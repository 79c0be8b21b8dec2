"""The sources that upstream's CMake project downloads, read out of its files without running it.

Only what decides a pin is understood: comments, quoting, ``set``, ``include``, ``if`` over the
target device, and the commands that take ``GIT_REPOSITORY`` (cmake-language(7), FetchContent).
Whatever would be a pin but cannot be resolved to one value is reported as a `Problem`.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Pin", "Problem", "is_cmake_file", "read_pins"]

# What we build for: conditions over these are decided, all others are left open.
_TARGET = {"VLLM_TARGET_DEVICE": "cuda", "VLLM_GPU_LANG": "CUDA"}
_ROOT = "CMakeLists.txt"
_FETCHING = frozenset({"fetchcontent_declare", "fetchcontent_populate", "externalproject_add"})

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | \#\[(?P<hash>=*)\[.*?\](?P=hash)\]
      | (?P<comment>\#[^\n]*)
      | \[(?P<bracket>=*)\[(?P<raw>.*?)\](?P=bracket)\]
      | "(?P<quoted>(?:[^"\\]|\\.)*)"
      | (?P<paren>[()])
      | (?P<plain>(?:[^\s()#"\\]|\\.)+)""",
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = re.compile(r"\$\{([^{}$]+)\}")
_OVERRIDE = re.compile(r"ENV\{(\w+_SRC_DIR)\}")


class Pin(NamedTuple):
    """A git source that the project downloads.

    Attributes:
        name: its FetchContent name.
        repository: its address, as stated.
        ref: tag or commit, as stated.
        declared_in: the file that states it.
        override: environment variable that names a local copy instead.
    """

    name: str
    repository: str
    ref: str
    declared_in: str
    override: str


class Problem(NamedTuple):
    """A place that may hold a pin and could not be read: file, line and reason."""

    path: str
    line: int
    why: str


class _Command(NamedTuple):
    name: str
    line: int
    arguments: tuple[str, ...]


def is_cmake_file(path: str) -> bool:
    """Whether *path*, inside upstream's tree, is a file that `read_pins` may want."""
    return path == _ROOT or (path.startswith("cmake/") and path.endswith(".cmake"))


def read_pins(files: Mapping[str, str]) -> tuple[list[Pin], list[Problem]]:
    """The pins of a CUDA build, by name, and what could not be read.

    Args:
        files: text by path in upstream's tree; see `is_cmake_file`.
    """
    reader = _Reader(files)
    reader.read(_ROOT)
    pins: dict[str, set[Pin]] = {}
    for pin in reader.pins:
        pins.setdefault(pin.name, set()).add(pin)
    for name, several in pins.items():
        if len(several) > 1:
            refs = ", ".join(sorted(f"{pin.repository}@{pin.ref}" for pin in several))
            reader.problems.append(Problem(min(several).declared_in, 0, f"{name} has several pins: {refs}"))
    single = [next(iter(several)) for _, several in sorted(pins.items()) if len(several) == 1]
    return single, reader.problems


def _commands(text: str) -> Iterator[_Command]:
    """The command invocations of a file, in order.

    Raises:
        ValueError: it is not CMake; the message holds the line.
    """
    name, start, depth, arguments = "", 0, 0, list[str]()
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"line {line}: {text[position : position + 20]!r} is no CMake")
        here, line, position = line, line + match[0].count("\n"), match.end()
        if match.lastgroup in {"space", "comment", "hash"}:
            continue
        if depth == 0:
            if match["paren"] == "(" and name:
                depth, arguments = 1, []
            elif match["plain"] and not name:
                name, start = match["plain"], here
            else:
                raise ValueError(f"line {here}: a command was expected")
        elif match["paren"] == ")" and depth == 1:
            yield _Command(name.lower(), start, tuple(arguments))
            name, depth = "", 0
        else:
            depth += {"(": 1, ")": -1}.get(match["paren"] or "", 0)
            arguments.append(next(filter(None, match.group("raw", "quoted", "paren", "plain")), ""))
    if name:
        raise ValueError(f"line {start}: {name}( is not closed")


@dataclass
class _Branch:
    """An ``if`` that we are in: whether its present branch runs, and whether an earlier one did."""

    runs: bool | None
    ran: bool | None


@dataclass
class _Reader:
    """Walks the project from its top file on, following ``include``."""

    files: Mapping[str, str]
    pins: list[Pin] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    variables: dict[str, frozenset[str]] = field(default_factory=dict)
    branches: list[_Branch] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def read(self, path: str) -> None:
        if path in self.seen:
            return
        self.seen.add(path)
        text = self.files.get(path)
        if text is None:
            self.problems.append(Problem(path, 0, "it is included, and is not there"))
            return
        outer, self.branches = self.branches, [_Branch(None if self._unsure() else True, None)]
        try:
            for command in _commands(text):
                self._meet(path, command)
        except ValueError as error:
            self.problems.append(Problem(path, 0, str(error)))
        self.branches = outer

    def _unsure(self) -> bool:
        return any(branch.runs is None for branch in self.branches)

    def _meet(self, path: str, command: _Command) -> None:
        name, _, arguments = command
        if name in {"if", "elseif", "else", "endif", "function", "endfunction", "macro", "endmacro"}:
            self._branch(name, arguments)
        elif any(branch.runs is False for branch in self.branches):
            return
        elif name == "set" and arguments:
            self._set(arguments)
        elif name == "include" and arguments:
            self._include(path, command)
        elif name in _FETCHING:
            self._fetch(path, command)
        elif "GIT_REPOSITORY" in arguments or (name == "file" and arguments[:1] == ("DOWNLOAD",)):
            self.problems.append(Problem(path, command.line, f"{name} downloads, and is not understood"))

    def _branch(self, name: str, arguments: Sequence[str]) -> None:
        if name in {"function", "macro"}:
            self.branches.append(_Branch(None, None))  # it may be called, or not
        elif name == "if":
            truth = _truth(arguments)
            self.branches.append(_Branch(truth, truth))
        elif name in {"elseif", "else"}:
            branch = self.branches[-1]
            truth = _truth(arguments) if name == "elseif" else True
            branch.runs = _all([_negated(branch.ran), truth])
            branch.ran = _negated(_all([_negated(branch.ran), _negated(truth)]))
        elif len(self.branches) > 1:
            self.branches.pop()

    def _set(self, arguments: Sequence[str]) -> None:
        """Remember each value that the variable can have where this is reached."""
        values = self._expand(arguments[1]) if len(arguments) == 2 else frozenset()  # noqa: PLR2004
        before = self.variables.get(arguments[0], frozenset()) if self._unsure() else frozenset()
        self.variables[arguments[0]] = before | values

    def _expand(self, text: str) -> frozenset[str]:
        """Every value that *text* can have; none where a variable in it is unknown."""
        found = _VARIABLE.search(text)
        if found is None:
            return frozenset() if "$" in text else frozenset({text})
        values: frozenset[str] = frozenset()
        for value in self.variables.get(found[1], frozenset()):
            values |= self._expand(text[: found.start()] + value + text[found.end() :])
        return values

    def _include(self, path: str, command: _Command) -> None:
        target = re.sub(r"^\$\{CMAKE_(CURRENT_LIST|CURRENT_SOURCE|SOURCE)_DIR\}/", "", command.arguments[0])
        if "CURRENT_LIST" in command.arguments[0]:
            target = posixpath.join(posixpath.dirname(path), target)
        if "$" in target:
            self.problems.append(Problem(path, command.line, f"include({target}) cannot be followed"))
        elif target.endswith(".cmake"):  # otherwise it is one of CMake's own modules
            self.read(posixpath.normpath(target))

    def _fetch(self, path: str, command: _Command) -> None:
        name, *arguments = command.arguments or ("?",)
        if {"URL", "SVN_REPOSITORY", "HG_REPOSITORY", "DOWNLOAD_COMMAND"} & set(arguments):
            self._unread(path, command, f"{name} does not come from git")
        if "GIT_REPOSITORY" not in arguments:
            return  # a local copy, or a name declared before
        repository, ref = (self._one(arguments, key) for key in ("GIT_REPOSITORY", "GIT_TAG"))
        overrides = set(_OVERRIDE.findall(self.files[path]))
        if repository is None or ref is None:
            self._unread(path, command, f"{name} has no single repository and tag")
        elif len(overrides) != 1:
            self._unread(path, command, f"{name} has no single *_SRC_DIR variable, but {sorted(overrides)}")
        else:
            self.pins.append(Pin(name, repository, ref, path, overrides.pop()))

    def _one(self, arguments: Sequence[str], key: str) -> str | None:
        """The one value that follows *key*, or `None`."""
        if arguments.count(key) != 1 or arguments[-1] == key:
            return None
        values = self._expand(arguments[arguments.index(key) + 1])
        return next(iter(values)) if len(values) == 1 else None

    def _unread(self, path: str, command: _Command, why: str) -> None:
        self.problems.append(Problem(path, command.line, why))


# Conditions are true, false, or open (None), by Kleene's three-valued logic.


def _negated(truth: bool | None) -> bool | None:  # noqa: FBT001
    return None if truth is None else not truth


def _all(truths: Sequence[bool | None]) -> bool | None:
    if any(truth is False for truth in truths):
        return False
    return None if any(truth is None for truth in truths) else True


def _truth(condition: Sequence[str]) -> bool | None:
    """Whether *condition* holds for our target; `None` where that is not decided by it."""
    if len(parts := _split(condition, "OR")) > 1:
        return _negated(_all([_negated(_truth(part)) for part in parts]))
    if len(parts := _split(condition, "AND")) > 1:
        return _all([_truth(part) for part in parts])
    if condition and condition[0] == "NOT":
        return _negated(_truth(condition[1:]))
    if len(condition) > 1 and condition[0] == "(" and condition[-1] == ")":
        return _truth(condition[1:-1])
    match condition:
        case (left, "STREQUAL", right) if (known := _TARGET.get(left.strip("${}"))) is not None:
            return known == right
    return None


def _split(condition: Sequence[str], word: str) -> list[Sequence[str]]:
    """*condition* split at *word*, outside parentheses."""
    parts, start, depth = [], 0, 0
    for number, term in enumerate(condition):
        depth += (term == "(") - (term == ")")
        if term == word and depth == 0:
            parts.append(condition[start:number])
            start = number + 1
    return [*parts, condition[start:]]
