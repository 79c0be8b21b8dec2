"""Can a wheel do without one of its extensions? A proof over all of its Python, or a reason why not.

Start reading at `prove_absence`. The proof is about importing: with the extension's file gone, every
import of it has to fail where that is expected. It covers ``import`` in all its forms,
``import_module`` and its like with a constant, the extension's op namespaces ``torch.ops.NAME``, and
names in texts. A module that cannot be imported without the extension is then missing too: somebody
has to import *that*, and everybody guarded in the same way. So is one that refuses to be imported by the
flags that others set when an import failed.

What calls the extension's ops inside a function is accepted in modules that find out themselves
whether the extension is there. None of its kernels could run on the card, so such a call fails with
the file as it fails without.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.wheel.mentions import reaches
from sparkwright.wheel.view import Judgement, View, World, module_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sparkwright.wheel.presence import Value

__all__ = ["Absence", "called_namespaces", "module_of", "namespaces_in", "prove_absence"]

_CALLED = re.compile(rb"torch\.ops\.(\w+)")


@dataclass(frozen=True)
class Absence:
    """Whether a module may be missing.

    Attributes:
        module: its dotted name.
        evidence: what was found for it, one line for each place, as ``path:line: text``.
        because: the first thing that speaks against it; empty when it may be missing.
    """

    module: str
    evidence: tuple[str, ...]
    because: str = ""

    @property
    def proved(self) -> bool:
        """Whether it may be missing."""
        return not self.because


def prove_absence(
    module: str,
    files: Mapping[str, bytes],
    *,
    namespaces: Iterable[str] = (),
    present: Iterable[str] = (),
) -> Absence:
    """Whether the code in *files* copes with *module* being missing.

    Args:
        module: dotted name of an extension.
        files: every Python file of the wheel by member name.
        namespaces: op namespaces that it registers besides the one that is called as it is; see
            `namespaces_in`.
        present: other extensions that are there for sure. Of those that are in neither, nothing is known.
    """
    ops = frozenset({module.rpartition(".")[2], *namespaces})
    proof = _Proof(files, module, ops, frozenset(present))
    return Absence(module, *proof.run())


def called_namespaces(files: Mapping[str, bytes]) -> frozenset[str]:
    """The op namespaces of all that *files* call by ``torch.ops.NAME``."""
    return frozenset(name.decode() for content in files.values() for name in _CALLED.findall(content))


def namespaces_in(binary: bytes, called: Iterable[str]) -> frozenset[str]:
    """Those of the namespaces *called* whose names *binary* holds.

    An extension registers its namespace by its name, a C string. One that holds a name and does not
    register it asks for more guards than are needed, never for fewer.
    """
    return frozenset(name for name in called if b"\0" + name.encode() + b"\0" in binary)


class _Proof:
    """A proof under way: what is missing so far, and what modules say about that."""

    def __init__(
        self, files: Mapping[str, bytes], module: str, ops: frozenset[str], present: frozenset[str]
    ) -> None:
        self._files, self._ops, self._present = files, ops, present
        self._missing = [module]
        self._flags: dict[str, Mapping[str, Value]] = {}
        self._evidence: list[str] = []

    def run(self) -> tuple[tuple[str, ...], str]:
        """The evidence, and what speaks against it or the empty string."""
        judged = heard = 0
        while judged < len(self._missing) or heard < len(self._flags):
            if judged < len(self._missing):
                because = self._do_without(self._missing[judged])
                judged += 1
            else:
                because = self._listen_to(list(self._flags)[heard])
                heard += 1
            if because:
                return tuple(self._evidence), because
        return tuple(self._evidence) or (f"no Python file mentions {self._missing[0]}",), ""

    def _do_without(self, name: str) -> str:
        """Judge every file by what it does without *name*; what speaks against it."""
        before = len(self._evidence)
        marks = {name.rpartition(".")[2], *self._world().ops_of(name)}
        for path in self._mentioning(marks):
            view = self._view(path)
            if view is None:
                return f"{path} cannot be read as Python"
            found = view.judge(name)
            self._evidence += found.evidence
            if found.because:
                return found.because
            self._note(path, view, found)
        if name != self._missing[0] and len(self._evidence) == before:
            return f"{name} cannot be imported without it, and nothing shows who expects that"
        return ""

    def _listen_to(self, name: str) -> str:
        """Look for modules that refuse to be imported by what they import from *name*."""
        for path in self._mentioning({name.rpartition(".")[2]}):
            view = self._view(path)
            if view is None:
                return f"{path} cannot be read as Python"
            self._note(path, view, Judgement())
        return ""

    def _note(self, path: str, view: View, found: Judgement) -> None:
        """Remember what follows from the file at *path*: that it is missing too, or what it tells others."""
        module = module_of(path)
        fatal = found.fatal
        if not fatal and (where := view.refusal()):
            self._evidence.append(f"{where}: {module} may refuse to be imported without it")
            fatal = True
        if fatal:
            self._missing += [] if module in self._missing else [module]
        elif view.flags and module not in self._flags:
            self._flags[module] = view.flags

    def _mentioning(self, marks: Iterable[str]) -> Iterator[str]:
        """The files that hold one of *marks* and, when their turn comes, can still be imported."""
        texts = [mark.encode() for mark in marks]
        for path in sorted(self._files):
            if any(text in self._files[path] for text in texts) and not self._is_gone(module_of(path)):
                yield path

    def _is_gone(self, module: str) -> bool:
        return any(reaches(module, gone) for gone in self._missing)

    def _view(self, path: str) -> View | None:
        try:
            return View(path, self._files[path], self._world())
        except (SyntaxError, ValueError):
            return None

    def _world(self) -> World:
        return World(tuple(self._missing), self._ops, self._present, self._flags)
