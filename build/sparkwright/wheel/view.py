"""One Python file, seen as it runs while modules are missing."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from sparkwright.wheel.code import read_code
from sparkwright.wheel.mentions import Kind, Use, absolute, uses_of
from sparkwright.wheel.presence import Presence, Value, catches_import_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Judgement", "View", "World", "module_of"]


def module_of(member: str) -> str:
    """The dotted name of the module in the wheel's *member*: ``vllm._C`` for ``vllm/_C.abi3.so``."""
    folder, _, name = member.rpartition("/")
    stem = name.partition(".")[0]
    parts = [part for part in folder.split("/") if part]
    return ".".join(parts if stem == "__init__" else [*parts, stem])


@dataclass(frozen=True)
class World:
    """What is there and what is not.

    Attributes:
        missing: modules that cannot be imported, the extension first.
        ops: op namespaces that are missing with it.
        present: extensions that are there and can be imported.
        flags: by module, names whose values say what could be imported, with these values.
    """

    missing: tuple[str, ...]
    ops: frozenset[str]
    present: frozenset[str] = frozenset()
    flags: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    def ops_of(self, module: str) -> frozenset[str]:
        """The op namespaces that are gone with *module*: all are the extension's, the first's."""
        return self.ops if module == self.missing[0] else frozenset()


@dataclass(frozen=True)
class Judgement:
    """What one file does without a module.

    Attributes:
        evidence: what was found, one line for each place.
        because: the first thing that speaks against it, or the empty string.
        fatal: whether the file itself cannot be imported then.
    """

    evidence: tuple[str, ...] = ()
    because: str = ""
    fatal: bool = False


class View:
    """The file at *path* with the code *source*, in *world*.

    Attributes:
        flags: names of its module that say what could be imported, with their values.
        guarded: whether it expects that an import of a missing module fails.

    Raises:
        SyntaxError: the code is not Python.
        ValueError: it holds null bytes.
    """

    def __init__(self, path: str, source: bytes, world: World) -> None:
        self._code = code = read_code(source)
        self._path, self._world = path, world
        uses = [use for name in world.missing for use in uses_of(code, name, path, world.ops_of(name))]
        self._guarded = [use for use in uses if use.kind.startswith("import") and self._caught(use)]
        self._knows = bool(self._guarded) or any(use.kind == "check" for use in uses)
        dead = [statement for use in self._guarded for statement in self._dead_after(use)]
        sure = self._never_fails(source)
        dead += [statement for catcher in sure for handler in catcher.handlers for statement in handler.body]
        known = {local: world.flags[origin].get(name) for local, origin, name in self._from_flagged()}
        known = {name: value for name, value in known.items() if value is not None}
        self._dead, self._known = dead, known
        self.guarded = bool(self._guarded)
        self.flags: Mapping[str, Value] = known
        if self.guarded:
            stored = _stored_in([*sure, *(self._caught(use) for use in self._guarded)])
            self.flags = {**known, **{name: self._presence.flags.get(name) for name in stored}}

    @cached_property
    def _presence(self) -> Presence:
        return Presence(self._code, self._dead, self._world.ops, self._known)

    @cached_property
    def _skipped(self) -> frozenset[int]:
        return frozenset(id(node) for statement in self._dead for node in ast.walk(statement))

    def judge(self, module: str) -> Judgement:
        """What the file does when *module*, one of the missing, is not there."""
        evidence: list[str] = []
        fatal = False
        for use in uses_of(self._code, module, self._path, self._world.ops_of(module)):
            where = f"{self._path}:{use.line}"
            if any(use.node is guarded.node for guarded in self._guarded):
                evidence.append(f"{where}: the import may fail")
                if name := self._used_at_import(use):
                    return Judgement(tuple(evidence), f"{where} brings {name}, which is used unguarded")
            elif use.kind == "check":
                evidence.append(f"{where}: asks whether it is there")
            elif self._never_runs(use.node):
                evidence.append(f"{where}: runs only when it is there")
            elif use.kind == "text":
                return Judgement(tuple(evidence), f"{where} names {module} in a text: what for is not known")
            elif self._code.runs_at_import(use.node):
                fatal = True
                evidence.append(f"{where}: {module_of(self._path)} cannot be imported without it")
            elif use.kind == "op" and self._knows:
                evidence.append(f"{where}: called in a module that finds out whether it is there")
            else:
                return Judgement(tuple(evidence), f"{where} uses {module} in a function, unguarded")
        return Judgement(tuple(evidence), fatal=fatal)

    def refusal(self) -> str:
        """Where the module refuses to be imported by what it knows to be missing; empty if it does not.

        In a module that expects imports to fail, every ``raise`` and ``assert`` counts that runs when
        it is imported; in others, those under a condition with a name from such a module.
        """
        heard = {local for local, _, _ in self._from_flagged()}
        heard |= {name for flags in self._world.flags.values() for name in flags}
        for node in self._code.at_import:
            if (
                not isinstance(node, ast.Raise | ast.Assert)
                or self._never_runs(node)
                or self._is_caught(node)
            ):
                continue
            if isinstance(node, ast.Assert) and self._presence.truth(node.test) is True:
                continue
            if self.guarded or heard & self._conditions(node):
                return f"{self._path}:{node.lineno}"
        return ""

    def _from_flagged(self) -> Iterator[tuple[str, str, str]]:
        """What is imported from modules with flags: the name here, the module, the name there."""
        for node in self._code.at_import:
            if isinstance(node, ast.ImportFrom):
                origin = absolute(node.module or "", node.level, self._path)
                if origin in self._world.flags:
                    yield from ((alias.asname or alias.name, origin, alias.name) for alias in node.names)

    def _never_fails(self, source: bytes) -> list[ast.Try]:
        """The statements that would catch failures of imports that do not fail: what they bring is there."""
        # A module that is imported is named by a whole word; `_C` is in many others.
        words = {name: re.escape(name.rpartition(".")[2]) for name in self._world.present}
        names = [name for name, word in words.items() if re.search(rf"\b{word}\b".encode(), source)]
        uses = [use for name in names for use in uses_of(self._code, name, self._path, frozenset())]
        catchers = [self._caught(use) for use in uses if use.kind.startswith("import")]
        failing = [self._caught(use) for use in self._guarded]
        return [
            catcher
            for catcher in catchers
            if isinstance(catcher, ast.Try) and not any(catcher is other for other in failing)
        ]

    def _conditions(self, node: ast.AST) -> set[str]:
        """Names in the conditions that *node* is under, its own included."""
        tests = [parent.test for _, parent in self._ancestors(node) if isinstance(parent, ast.If)]
        tests += [node.test] if isinstance(node, ast.Assert) else []
        inner = [part for test in tests for part in ast.walk(test)]
        names = {part.id for part in inner if isinstance(part, ast.Name)}
        return names | {part.attr for part in inner if isinstance(part, ast.Attribute)}

    def _is_caught(self, node: ast.AST) -> bool:
        """Whether *node* ends in the file itself, or only passes on what something else raised."""
        return any(
            isinstance(parent, ast.ExceptHandler)
            or (
                isinstance(parent, ast.Try)
                and child in parent.body
                and catches_import_error(parent, submodule=False) is not None
            )
            for child, parent in self._ancestors(node)
        )

    def _used_at_import(self, use: Use) -> str:
        """A name that the guarded import *use* would have brought, and that is read although it failed."""
        catcher = self._caught(use)
        if not self._code.runs_at_import(use.node) or not isinstance(use.node, ast.Import | ast.ImportFrom):
            return ""
        brought = {alias.asname or alias.name for alias in use.node.names} - _stored(catcher)
        for node in self._code.at_import:
            if (
                isinstance(node, ast.Name)
                and node.id in brought
                and isinstance(node.ctx, ast.Load)
                and id(node) not in self._skipped
                and not self._never_runs(node)
            ):
                return node.id
        return ""

    def _ancestors(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each pair of a node and its parent from *node* upwards."""
        while (parent := self._code.parent(node)) is not None:
            yield node, parent
            node = parent

    def _caught(self, use: Use) -> ast.AST | None:
        """The statement that catches a failure of the import *use*, or `None`."""
        for child, parent in self._ancestors(use.node):
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return None  # what surrounds a function is over when it is called
            if isinstance(parent, ast.Try) and child in parent.body:
                if catches_import_error(parent, submodule=use.kind == "import") is not None:
                    return parent
                return None
            if isinstance(parent, ast.With) and child in parent.body and _suppresses(parent, use.kind):
                return parent
        return None

    def _dead_after(self, use: Use) -> list[ast.stmt]:
        """The statements that are skipped when the guarded import *use* fails."""
        catcher = self._caught(use)
        if not isinstance(catcher, ast.Try | ast.With):
            return []
        inside = next(child for child, parent in self._ancestors(use.node) if parent is catcher)
        body = list(catcher.body)
        after = body[body.index(inside) + 1 :] if isinstance(inside, ast.stmt) else []
        return after + (list(catcher.orelse) if isinstance(catcher, ast.Try) else [])

    def _never_runs(self, node: ast.AST) -> bool:
        """Whether a condition around *node*, or a return before it, keeps it from running."""
        if id(node) in self._skipped:
            return True
        presence = self._presence
        for child, parent in self._ancestors(node):
            if isinstance(parent, ast.If | ast.IfExp):
                if _type_checking(parent.test) and _within(child, parent.body):
                    return True
                truth = presence.truth(parent.test)
                if (truth is False and _within(child, parent.body)) or (
                    truth is True and _within(child, parent.orelse)
                ):
                    return True
            for block in _blocks(parent):
                if child in block and _left_before(block[: block.index(child)], presence):
                    return True
        return False


def _stored(catcher: ast.AST | None) -> set[str]:
    """Names that the handlers of *catcher* set."""
    return _stored_in(catcher.handlers if isinstance(catcher, ast.Try) else [])


def _stored_in(nodes: Sequence[ast.AST | None]) -> set[str]:
    return {
        node.id
        for outer in nodes
        if outer is not None
        for node in ast.walk(outer)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _within(node: ast.AST, branch: ast.expr | list[ast.stmt]) -> bool:
    return node in branch if isinstance(branch, list) else node is branch


def _blocks(node: ast.AST) -> Iterator[list[ast.AST]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _left_before(statements: list[ast.AST], presence: Presence) -> bool:
    """Whether one of *statements* returns or raises when the module is missing."""
    return any(
        isinstance(statement, ast.If)
        and presence.truth(statement.test) is True
        and isinstance(statement.body[-1], ast.Return | ast.Raise)
        for statement in statements
    )


def _type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _suppresses(node: ast.With, kind: Kind) -> bool:
    """Whether *node* is ``contextlib.suppress`` of what a failing import raises."""
    accepted = {"ImportError", "Exception"} | ({"ModuleNotFoundError"} if kind == "import" else set())
    for item in node.items:
        match item.context_expr:
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=args):
                if accepted & {argument.id for argument in args if isinstance(argument, ast.Name)}:
                    return True
            case _:
                pass
    return False
