"""Where Python code mentions a module: imports in all their forms, op namespaces, names in texts."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkwright.wheel.code import ASKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkwright.wheel.code import Code

__all__ = ["Kind", "Use", "absolute", "reaches", "uses_of"]

Kind = Literal["import", "import from", "op", "check", "text"]
_IMPORTERS = frozenset({"import_module", "__import__"})


@dataclass(frozen=True)
class Use:
    """A place that mentions a module."""

    kind: Kind
    node: ast.AST

    @property
    def line(self) -> int:
        """Where it is."""
        return getattr(self.node, "lineno", 0)


def uses_of(code: Code, module: str, path: str, ops: frozenset[str]) -> Iterator[Use]:
    """Every place in *code* that mentions *module* or its op namespaces *ops*, outermost first."""
    covered: set[int] = set()
    for node in code.mentioning(ops | {module.rpartition(".")[2]}):
        if id(node) in covered:
            continue
        kind = _kind_of(node, module, path, ops)
        if kind is not None:
            covered |= {id(inner) for inner in ast.walk(node)}
            yield Use(kind, node)


def _kind_of(node: ast.AST, module: str, path: str, ops: frozenset[str]) -> Kind | None:
    kind: Kind | None = None
    match node:
        case ast.Import(names=aliases) if any(reaches(alias.name, module) for alias in aliases):
            kind = "import"
        case ast.ImportFrom(module=origin, names=aliases, level=level):
            kind = _from(absolute(origin or "", level, path), {alias.name for alias in aliases}, module)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
            kind = _call(name, args, module, ops)
        case ast.Attribute(value=ast.Attribute(attr="ops"), attr=attribute) if attribute in ops:
            kind = "op"
        case ast.Attribute(attr=attribute) if (
            attribute == module.rpartition(".")[2] and ast.unparse(node) == module
        ):
            kind = "op"
        case ast.Constant(value=str(text)):
            if text.partition("::")[0] in ops and "::" in text:
                kind = "op"
            elif _holds(text, _marks(module, ops)):
                kind = "text"
        case _:
            pass
    return kind


def _marks(module: str, ops: frozenset[str]) -> frozenset[str]:
    """What a text that means *module* holds: the extension's last part, or another module's whole name."""
    return frozenset({module.rpartition(".")[2]}) if ops else frozenset({module})


def reaches(imported: str, module: str) -> bool:
    """Whether importing *imported* imports *module*: itself, or as the package that it is in."""
    return imported == module or imported.startswith(module + ".")


def _from(origin: str, names: set[str], module: str) -> Kind | None:
    if reaches(origin, module):
        return "import"
    parent, _, leaf = module.rpartition(".")
    return "import from" if origin == parent and leaf in names else None


def absolute(origin: str, level: int, path: str) -> str:
    """The dotted name that a relative import of *level* dots means in the file at *path* (PEP 328)."""
    if not level:
        return origin
    package = path.split("/")[:-1]
    base = package[: len(package) - (level - 1)]
    return ".".join([*base, origin] if origin else base)


def _call(name: str, args: list[ast.expr], module: str, ops: frozenset[str]) -> Kind | None:
    """What a call of *name* with *args* is to *module*, if these mention it."""
    marks = _marks(module, ops)
    mentions = any(
        (isinstance(inner, ast.Constant) and isinstance(inner.value, str) and _holds(inner.value, marks))
        or (isinstance(inner, ast.Attribute) and inner.attr in ops)
        for argument in args
        for inner in ast.walk(argument)
    )
    kind: Kind | None = None
    if mentions and name in _IMPORTERS:
        whole = isinstance(args[0], ast.Constant) and reaches(str(args[0].value), module)
        kind = "import" if whole else "text"
    elif mentions and name in ASKING - _IMPORTERS and (name != "getattr" or len(args) > 2):  # noqa: PLR2004
        kind = "check"  # getattr only with a default
    return kind


def _holds(text: str, marks: frozenset[str]) -> bool:
    return any(mark in text for mark in marks)
