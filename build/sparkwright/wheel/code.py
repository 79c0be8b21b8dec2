"""A Python file, parsed once, with what proofs about it ask for again and again."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["ASKING", "Code", "own", "read_code"]

ASKING = frozenset({"import_module", "__import__", "find_spec", "hasattr", "getattr"})
"""Functions that import what a text names, or ask whether it is there."""


class Code:
    """The syntax of one file. Nobody may change it: it is shared.

    Most files are asked little, and every node costs a microsecond: so nearly all is found when it is asked.

    Attributes:
        tree: the module.
        at_import: all that runs when the module is imported.
    """

    def __init__(self, source: bytes) -> None:
        self._source = source
        self.tree = ast.parse(source)
        self.at_import = tuple(own(self.tree.body))

    @cached_property
    def _nodes(self) -> list[tuple[ast.AST, ast.AST | None]]:
        """Every node with its parent, outermost first."""
        found: list[tuple[ast.AST, ast.AST | None]] = [(self.tree, None)]
        for node, _ in found:
            found += [(child, node) for child in ast.iter_child_nodes(node)]
        return found

    @cached_property
    def _parents(self) -> dict[int, ast.AST]:
        return {id(node): parent for node, parent in self._nodes if parent is not None}

    @cached_property
    def _ids_at_import(self) -> frozenset[int]:
        return frozenset(map(id, self.at_import))

    @cached_property
    def _candidates(self) -> _Candidates:
        return _Candidates.among([node for node, _ in self._nodes])

    @cached_property
    def in_functions(self) -> frozenset[str]:
        """Names that some function has of its own, or sets for the module."""
        return _names_in(node for node, _ in self._nodes if id(node) not in self._ids_at_import)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What *node* is a part of; `None` for the module."""
        return self._parents.get(id(node))

    def runs_at_import(self, node: ast.AST) -> bool:
        """Whether *node* runs when the module is imported."""
        return id(node) in self._ids_at_import

    def mentioning(self, names: frozenset[str]) -> list[ast.AST]:
        """What may mention one of *names*, outermost first.

        Where the file holds one at all, that is every import and every call of a function in `ASKING`,
        attributes of such a name, and texts without a space that hold one.
        """
        if not any(name.encode() in self._source for name in names):
            return []
        return self._candidates.of(names)


@dataclass(frozen=True)
class _Candidates:
    """Nodes that may mention something, with their places in the order.

    Attributes:
        statements: imports, and calls of functions in `ASKING`.
        attributes: attributes by their names.
        texts: constants without a space, with the text.
    """

    statements: list[tuple[int, ast.AST]] = field(default_factory=list)
    attributes: dict[str, list[tuple[int, ast.AST]]] = field(default_factory=dict)
    texts: list[tuple[int, ast.AST, str]] = field(default_factory=list)

    @classmethod
    def among(cls, nodes: Iterable[ast.AST]) -> _Candidates:
        """Those among *nodes*."""
        found = cls()
        for place, node in enumerate(nodes):
            match node:
                case ast.Import() | ast.ImportFrom():
                    found.statements.append((place, node))
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in ASKING:
                    found.statements.append((place, node))
                case ast.Attribute(attr=name):
                    found.attributes.setdefault(name, []).append((place, node))
                case ast.Constant(value=str(text)) if not any(map(str.isspace, text)):
                    found.texts.append((place, node, text))
                case _:
                    pass
        return found

    def of(self, names: frozenset[str]) -> list[ast.AST]:
        """Those that may mention one of *names*, in order."""
        found = list(self.statements)
        for name in names:
            found += self.attributes.get(name, [])
        found += [(place, node) for place, node, text in self.texts if any(name in text for name in names)]
        return [node for _, node in sorted(found, key=lambda one: one[0])]


@functools.lru_cache(maxsize=64)
def read_code(source: bytes) -> Code:
    """The code of a file with the content *source*; the latest ones are kept.

    Raises:
        SyntaxError: it is not Python.
        ValueError: it holds null bytes.
    """
    return Code(source)


def own(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """*body* and all in it, but for the bodies of functions that it defines."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from own(list(ast.iter_child_nodes(node)))


def _names_in(inside: Iterable[ast.AST]) -> frozenset[str]:
    """Names that nodes *inside* functions bind."""
    found: set[str] = set()
    for node in inside:
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Global(names=names):
                found.update(names)
            case _:
                pass
    return frozenset(found)
