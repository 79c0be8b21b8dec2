"""The code that the default path runs, as far as a tree's text tells.

A carry may merge, and its probe pass, though nothing runs what it changes.

A carry has *lost its reach* on a target when one of three things is so there and was not at the pin:

* no file that it changes is reached from upstream's entry points any more. A module is reached when a reached
  one imports it, anywhere in its text, or names it in a string: whole, or by the last part of its name, as
  registries do. This errs on the side of reached.
* no function or class that it changes is named outside its own definition in any reached file.
* it is for model runner V1 alone, and V1 is not the default of any model: upstream's configuration chooses V2
  without a list of architectures.

No probe sees this: it calls the changed code itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from sparkwright.carries import Carry
from sparkwright.git import Repository
from sparkwright.merge.modules import read_module

_PACKAGE = "vllm"
_ENTRY = re.compile(rb"^[\w-]+\s*=\s*\"(vllm[\w.]*):", re.MULTILINE)
_FROM = re.compile(rb"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)", re.MULTILINE)
_IMPORT = re.compile(rb"^[ \t]*import[ \t]+([^\n#;]+)", re.MULTILINE)
_NAMED = re.compile(rb"[\"']([A-Za-z_][\w.]*)(?::\w+)?[\"']")
_WORD = re.compile(rb"\w+")
_CHOICE = ("vllm/config/vllm.py", b"def use_v2_model_runner", b"DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES")


@dataclass(frozen=True)
class Reach:
    """The Python files of one tree that its entry points reach."""

    repository: Repository
    tree: str

    @cached_property
    def _files(self) -> dict[str, str]:
        """Blob ids of the package's Python files, by path."""
        return {
            path: entry.blob
            for path, entry in self.repository.files(self.tree).items()
            if path.startswith(f"{_PACKAGE}/") and path.endswith(".py")
        }

    @cached_property
    def _by_module(self) -> dict[str, str]:
        return {_module(path): path for path in self._files}

    @cached_property
    def _by_last(self) -> dict[str, list[str]]:
        """Paths by the last part of their module's name."""
        found: dict[str, list[str]] = {}
        for module, path in self._by_module.items():
            found.setdefault(module.rpartition(".")[2], []).append(path)
        return found

    @cached_property
    def reached(self) -> frozenset[str]:
        """Paths of the files that are reached; all of them where no entry point was found."""
        entry = self.repository.files(self.tree, ["pyproject.toml"]).get("pyproject.toml")
        names = [] if entry is None else _ENTRY.findall(self.repository.blob(entry.blob))
        todo = [path for name in names for path in self._paths(name.decode())]
        if not todo:
            return frozenset(self._files)
        found: set[str] = set()
        while todo:
            path = todo.pop()
            if path not in found:
                found.add(path)
                todo += self._named_in(path)
        return frozenset(found)

    def _paths(self, module: str) -> Iterator[str]:
        """Yield the files that importing *module* runs: its packages' and its own."""
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            path = self._by_module.get(".".join(parts[:end]))
            if path is not None:
                yield path

    def _named_in(self, path: str) -> Iterator[str]:
        """Yield files that the one at *path* imports, or names in a string."""
        text = self.repository.blob(self._files[path])
        for dots, named, listed in _FROM.findall(text):
            module = _absolute(path, len(dots), named.decode())
            if module.split(".")[0] == _PACKAGE:
                yield from self._paths(module)
                for word in _WORD.findall(listed):
                    yield from self._paths(f"{module}.{word.decode()}")
        for listed in _IMPORT.findall(text):
            for part in listed.decode(errors="replace").split(","):
                yield from self._paths(part.split()[0] if part.split() else "")
        for name in set(_NAMED.findall(text)):
            module = name.decode()
            yield from self._paths(module)
            if "." not in module:
                yield from self._by_last.get(module, ())

    def names_any(self, wanted: Collection[str], *, first: Collection[str] = ()) -> bool:
        """Tell if a reached file has one of *wanted* besides its definition; those *first* are read first."""
        words = b"|".join(re.escape(name.encode()) for name in sorted(wanted))
        mention = re.compile(rb"(\b(?:def|class)[ \t]+)?\b(?:" + words + rb")\b")
        paths = sorted(self.reached, key=lambda path: path not in first)
        texts = (self.repository.blob(self._files[path]) for path in paths)
        return any(not found[1] for text in texts for found in mention.finditer(text))

    def defining(self, name: str) -> tuple[str, ...]:
        """Return the files that define *name* at their top level."""
        word = re.escape(name.encode())
        definition = re.compile(
            rb"^(?:(?:async +)?def|class) +" + word + rb"\b|^" + word + rb" *[:=]", re.MULTILINE
        )
        return tuple(
            path
            for path, blob in sorted(self._files.items())
            if definition.search(self.repository.blob(blob))
        )

    @cached_property
    def runners(self) -> frozenset[str]:
        """The model runners that are the default for some model; see the module's text."""
        path, choice, by_model = _CHOICE
        entry = self.repository.files(self.tree, [path]).get(path)
        text = b"" if entry is None else self.repository.blob(entry.blob)
        if choice not in text:
            return frozenset({"v1"})
        return frozenset({"v1", "v2"} if by_model in text else {"v2"})


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _absolute(path: str, dots: int, named: str) -> str:
    if not dots:
        return named
    folders = path.split("/")[:-dots]
    return ".".join([*folders, *([named] if named else [])])


def reach_lost(carry: Carry, paths: Collection[str], pin: Reach, target: Reach, merged: str) -> str:
    """Return why the default path runs nothing of *carry* on *target* any more; empty if it does.

    Args:
        carry: the carry.
        paths: files that it changes on the target.
        pin: what is reached at the pin.
        target: what is reached in the target's pristine tree.
        merged: the merged tree.
    """
    if carry.spec.runner == "v1" and "v1" in pin.runners and "v1" not in target.runners:
        return "it is for model runner V1, and V2 is the default of every model there"
    before = target.repository.files(target.tree, paths)
    code = [
        path for path in paths if path in before and path.startswith(f"{_PACKAGE}/") and path.endswith(".py")
    ]
    if not code:
        return ""
    if not target.reached.intersection(code) and pin.reached.intersection(code):
        return f"nothing that upstream's entry points reach imports {', '.join(code)} any more"
    changed = {name for path in code for name in _changed(target.repository, target.tree, merged, path)}
    plain = {name for name in changed if not name.startswith("__")}
    if (
        plain
        and plain == changed
        and not target.names_any(plain, first=code)
        and pin.names_any(plain, first=code)
    ):
        return f"nothing that upstream's entry points reach names {', '.join(sorted(plain))} any more"
    return ""


def _changed(repository: Repository, old: str, new: str, path: str) -> Iterator[str]:
    """Yield the last names of the functions at *path* whose text differs in the two trees; innermost ones."""
    before, after = (repository.files(tree, [path]).get(path) for tree in (old, new))
    if before is None or after is None:
        return
    left, right = (read_module(repository.blob(entry.blob)).functions for entry in (before, after))
    names = [name for name, text in left.items() if name in right and right[name] != text]
    for name in names:
        if not any(other.startswith(f"{name}.") for other in names):
            yield name.rpartition(".")[2]
