"""What a module's own flags say when another module is missing: a small, strict evaluator.

Upstream guards its optional extensions by flags: ``try: import X`` sets ``X_AVAILABLE`` to true, the
handler sets it to false, and functions return what the flags say. `Presence` computes such values for
the case that the import fails. What it does not understand has no value, which proves nothing.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from sparkwright.wheel.code import own

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sparkwright.wheel.code import Code

__all__ = ["Presence", "Value", "catches_import_error"]

_CATCHING = frozenset({"ImportError", "Exception", "BaseException"})
_CATCHING_SUBMODULE = _CATCHING | {"ModuleNotFoundError"}


class _Unknown:
    """No value: the expression depends on what is not known here."""


UNKNOWN = _Unknown()
Value = object


def catches_import_error(node: ast.Try, *, submodule: bool) -> ast.ExceptHandler | None:
    """The handler of *node* that a failing import ends in, if it ends there for good.

    Args:
        node: the statement.
        submodule: whether the import fails with ``ModuleNotFoundError``, as ``import a.b`` does;
            ``from a import b`` fails with plain ``ImportError``.
    """
    accepted = _CATCHING_SUBMODULE if submodule else _CATCHING
    for handler in node.handlers:
        names = _names(handler.type)
        if handler.type is None or names & accepted:
            raises = any(isinstance(inner, ast.Raise) for inner in own(handler.body))
            return None if raises else handler
    return None


def _names(node: ast.expr | None) -> set[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node] if node is not None else []
    return {part.id for part in parts if isinstance(part, ast.Name)}


class Presence:
    """Values in one module while the statements in *dead* never run, as `flags` and by `value`.

    Args:
        code: the module.
        dead: statements that a failing import skips.
        missing: op namespaces that nobody registers, so that ``hasattr`` on them is false.
        known: values of names that it imports, where they are known.
    """

    def __init__(
        self,
        code: Code,
        dead: Sequence[ast.stmt],
        missing: frozenset[str],
        known: Mapping[str, Value] | None = None,
    ) -> None:
        self._missing = missing
        self._functions: dict[str, ast.FunctionDef] = {}
        skipped = {id(node) for statement in dead for node in ast.walk(statement)}
        assigned: dict[str, list[Value]] = {}
        for name, value in _bindings(node for node in code.at_import if id(node) not in skipped):
            assigned.setdefault(name, []).append(value)
        for name, value in (known or {}).items():
            if assigned.get(name) == [UNKNOWN]:  # bound once, by that import
                assigned[name] = [value]
        for node in code.at_import:
            if isinstance(node, ast.FunctionDef):
                if node.name in self._functions or node.decorator_list:
                    assigned.setdefault(node.name, []).append(UNKNOWN)
                self._functions[node.name] = node
        rebound = code.in_functions
        self.flags = {
            name: values[0]
            for name, values in assigned.items()
            if name not in rebound and all(_same(value, values[0]) for value in values)
        }
        self._spoilt = set(assigned) | rebound

    def value(self, node: ast.expr, depth: int = 0) -> Value:
        """What *node* evaluates to, or `UNKNOWN`."""
        found: Value = UNKNOWN
        match node:
            case ast.Constant(value=value):
                found = value
            case ast.Name(id=name):
                found = self.flags.get(name, UNKNOWN)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self.truth(operand, depth)
                found = UNKNOWN if truth is None else not truth
            case ast.BoolOp():
                found = self._bool(node, depth)
            case ast.Tuple(elts=elements):
                found = tuple(self.value(element, depth) for element in elements)
            case ast.Subscript(value=inner, slice=ast.Constant(value=int(index))):
                whole = self.value(inner, depth)
                if isinstance(whole, tuple) and -len(whole) <= index < len(whole):
                    found = whole[index]
            case ast.Call(func=ast.Name(id="hasattr"), args=[where, _]) if self._is_missing(where):
                found = False
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]):
                found = self._call(name, depth)
            case _:
                pass
        return found

    def truth(self, node: ast.expr, depth: int = 0) -> bool | None:
        """Whether *node* counts as true; `None` where that is not known."""
        found = self.value(node, depth)
        if isinstance(found, _Unknown):
            return None
        return bool(found)

    def _bool(self, node: ast.BoolOp, depth: int) -> Value:
        truths = [self.truth(value, depth) for value in node.values]
        decisive = isinstance(node.op, ast.Or)
        if decisive in truths:
            return decisive
        return UNKNOWN if None in truths else not decisive

    def _is_missing(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and node.attr in self._missing
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "ops"
        )

    def _call(self, name: str, depth: int) -> Value:
        """What the function *name* of this module, called without arguments, returns."""
        function = self._functions.get(name)
        if function is None or name in self._spoilt or depth > len(self._functions):
            return UNKNOWN
        for statement in function.body:
            match statement:
                case ast.Expr(value=ast.Constant()):
                    continue
                case ast.Return(value=ast.expr() as result):
                    return self.value(result, depth + 1)
                case ast.If(test=test, body=[ast.Return(value=ast.expr() as result)], orelse=[]):
                    truth = self.truth(test, depth + 1)
                    if truth is None:
                        return UNKNOWN
                    if truth:
                        return self.value(result, depth + 1)
                case _:
                    return UNKNOWN
        return UNKNOWN


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, Value]]:
    """Names that *nodes* bind, parents before their children, and the values where these are constants."""
    seen: set[int] = set()
    for node in nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name) as target], value=ast.Constant(value=value))
                | ast.AnnAssign(target=ast.Name(id=name) as target, value=ast.Constant(value=value))
            ):
                seen.add(id(target))
                yield name, value
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if id(node) not in seen:
                yield name, UNKNOWN
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name.partition(".")[0], UNKNOWN) for alias in aliases)
            case ast.ClassDef(name=name):
                yield name, UNKNOWN
            case _:
                pass


def _same(one: Value, other: Value) -> bool:
    known = not isinstance(one, _Unknown) and not isinstance(other, _Unknown)
    return known and type(one) is type(other) and one == other
