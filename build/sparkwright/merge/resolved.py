"""Calls and attributes that the text names beyond doubt, followed to their definition in either tree.

`across` compares calls with every definition of their name. Where that name is common, only the callee itself
tells: an imported name, an attribute of an imported module, a method of ``self`` or of a class that is called
on the spot. A call that is not one of these is left to `across`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from sparkwright.merge.modules import Call, Signature, Thing, call_of
from sparkwright.merge.report import Hazard
from sparkwright.merge.sides import Side

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_MADE = "()"  # follows the name of a class where an instance is meant
_DEEPEST = 6  # imports from imports, and bases of bases
_GONE = "removed"


class Callee(NamedTuple):
    """A call, and the dotted name of what it calls: ``vllm.a.f``, ``vllm.a.Box().get``."""

    name: str
    call: Call


@dataclass
class _Scope:
    """The names of one module, class or function; *imported* and *defined* are bound once, in that way.

    Attributes:
        kind: ``module``, ``class`` or ``function``.
        bound: how often each name is bound in it.
        imported: dotted names of what imports bind.
        first: the first parameter of a method, and what it stands for.
    """

    kind: str
    name: str
    bound: Counter[str] = field(default_factory=Counter)
    imported: dict[str, str] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    first: tuple[str, str] = ("", "")

    def find(self, name: str) -> str:
        """Return the dotted name that *name* stands for here; empty where that is not known."""
        if self.bound[name] != 1:
            return ""
        if name == self.first[0]:
            return self.first[1]
        return self.imported.get(name) or (f"{self.name}.{name}" if name in self.defined else "")


@dataclass
class _File:
    """The calls, imports and bases in one file.

    Attributes:
        calls: its calls, of those that it names beyond doubt.
        reads: dotted names of the attributes that it reads, of those too.
        names: dotted names of what its top level imports.
        bases: of each class, the dotted names of its bases; `None` where one is not known, or where it may
            have attributes that the text does not show.
        attributes: names that are assigned as attributes of anything.
    """

    calls: Counter[Callee] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    names: dict[str, str] = field(default_factory=dict)
    bases: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)


def misfits(
    base: Side, caller: Side, merged: Side, paths: Iterable[str], changed: Iterable[str]
) -> Iterator[Hazard]:
    """Give a hazard for each new call of *caller* that fits its callee there, and not in *merged*.

    So it does for each attribute of a module or class that *caller* newly reads, and *merged* has no longer.

    *base* is what both sides come from; *changed* are files that the other side changed: without any, every
    call still fits.
    """
    for path in paths if changed else ():
        if merged.entry(path) is None:
            continue
        after, before = _file(caller, path), _file(base, path)
        called = {callee.name for callee in after.calls}
        for dotted in sorted({*(after.reads - before.reads)} - called):
            if _has(caller, dotted, _DEEPEST) and _has(merged, dotted, _DEEPEST) is False:
                yield Hazard(kind="removed", path=path, name=".".join(_split(caller, dotted)[1]))
        for callee in after.calls - before.calls:
            took = _taken(caller, callee.name)
            if not isinstance(took, Signature) or not took.fits(callee.call):
                continue
            left = _taken(merged, callee.name)
            if left == _GONE or (isinstance(left, Signature) and not left.fits(callee.call)):
                dotted = callee.name.replace(_MADE, "")
                module, rest = _split(caller, dotted)
                name = ".".join(rest) if module else dotted
                yield Hazard(kind="removed" if left == _GONE else "signature", path=path, name=name)


def _taken(side: Side, dotted: str) -> Signature | str | None:
    """Return what the callee *dotted* takes in *side*: `_GONE`, or `None` where it is not known."""
    owner, made, method = dotted.partition(_MADE + ".")
    if not made:
        return None if _MADE in dotted else _function(side, dotted, _DEEPEST)
    if _MADE in method or "." in method:
        return None
    found = _method(side, owner, method, _DEEPEST)
    return found.bound() if isinstance(found, Signature) else found


def _function(side: Side, dotted: str, depth: int) -> Signature | str | None:
    path, rest = _split(side, dotted)
    module = side.module(path) if path else None
    if module is None or not rest or depth == 0:
        return None
    if further := _file(side, path).names.get(rest[0]):
        return _function(side, ".".join([further, *rest[1:]]), depth - 1)
    name = ".".join(rest)
    if module.counts[Thing("definition", name)] == 1:
        return module.signatures.get(name)
    if len(rest) > 1 or module.open or rest[0] in module.bound:
        return None
    return _GONE


def _method(side: Side, owner: str, method: str, depth: int) -> Signature | str | None:
    """Return what *method* takes of an instance of the class *owner*, whose bases are looked at too."""
    path, rest = _split(side, owner)
    module = side.module(path) if path else None
    if module is None or not rest or depth == 0:
        return None
    file, name = _file(side, path), ".".join(rest)
    if further := file.names.get(rest[0]):
        return _method(side, ".".join([further, *rest[1:]]), method, depth - 1)
    whole = f"{name}.{method}"
    definitions = module.counts[Thing("definition", whole)]
    if definitions == 1 and method not in file.attributes:
        return module.signatures.get(whole)
    bases = file.bases.get(name)
    hidden = definitions or method in file.attributes or module.counts[Thing("assignment", whole)]
    if bases is None or hidden:
        return None
    inherited = (_method(side, base, method, depth - 1) for base in bases)
    return next((found for found in inherited if found != _GONE), _GONE)


def _has(side: Side, dotted: str, depth: int) -> bool | None:
    """Tell if there is such an attribute of a module or class in *side*; `None` where it is not known.

    Bases that are not in *side*, such as those of enumerations, count as classes without it.
    """
    path, rest = _split(side, dotted)
    module = side.module(path) if path else None
    if module is None or len(rest) not in {1, 2} or depth == 0:
        return None
    file, owner, name = _file(side, path), rest[0], rest[-1]
    if further := file.names.get(owner):
        return _has(side, ".".join([further, *rest[1:]]), depth - 1)
    if len(rest) == 1:
        return None if module.open else name in module.bound
    if module.counts[Thing("definition", owner)] != 1:
        return None
    whole = f"{owner}.{name}"
    own = module.counts[Thing("definition", whole)] or module.counts[Thing("assignment", whole)]
    bases = file.bases.get(owner) or ()
    found = bool(own) or name in file.attributes
    return found or any(_has(side, f"{base}.{name}", depth - 1) for base in bases)


def _split(side: Side, dotted: str) -> tuple[str, list[str]]:
    """Return the file of the module that *dotted* begins with, and the names that follow."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        stem = "/".join(parts[:count])
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if side.entry(path) is not None:
                return path, parts[count:]
    return "", []


def _file(side: Side, path: str) -> _File:
    entry = side.entry(path)
    return _File() if entry is None else _read(path, side.text(path))


@lru_cache(maxsize=256)
def _read(path: str, text: bytes) -> _File:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _File()
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = path.rpartition("/")[0].replace("/", ".")
    reader = _Reader(package)
    scope = _Scope("module", module)
    reader.bind(scope, tree.body)
    reader.found.names = {name: dotted for name, dotted in scope.imported.items() if scope.bound[name] == 1}
    try:
        reader.visit(tree.body, (scope,))
    except RecursionError:
        return _File()
    return reader.found


@dataclass
class _Reader:
    """Follows scopes down a file."""

    package: str
    found: _File = field(default_factory=_File)

    def bind(self, scope: _Scope, body: list[ast.stmt]) -> None:
        """Note what the statements of *body* bind in *scope*, without what is in scopes of their own."""
        stack: list[ast.AST] = list(body)
        while stack:
            node = stack.pop()
            if isinstance(node, _Function | ast.ClassDef):
                scope.bound[node.name] += 1
                scope.defined.add(node.name)
                stack += node.decorator_list
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    self._bind_import(scope, node, alias)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                scope.bound[node.id] += 1
            elif isinstance(node, ast.Global | ast.Nonlocal):
                scope.bound.update(dict.fromkeys(node.names, 2))  # as good as unknown
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
                scope.bound[node.name] += 1
            elif isinstance(node, ast.Lambda):
                continue
            stack += ast.iter_child_nodes(node)

    def _bind_import(self, scope: _Scope, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> None:
        name = alias.asname or alias.name
        if isinstance(node, ast.Import):
            bound = name if alias.asname else name.partition(".")[0]
            dotted = alias.name if alias.asname else bound
            if scope.imported.get(bound) == dotted:
                return  # import a.b and import a.c bind one name to one module
        else:
            folders = self.package.split(".")
            above = folders[: len(folders) - node.level + 1] if node.level else []
            bound, dotted = name, ".".join([*above, *filter(None, [node.module]), alias.name])
        scope.bound[bound] += 1
        scope.imported[bound] = dotted

    def visit(self, body: Sequence[ast.AST], scopes: tuple[_Scope, ...]) -> None:
        """Take down the calls of *body*, innermost scope last."""
        for node in body:
            self._node(node, scopes)

    def _node(self, node: ast.AST, scopes: tuple[_Scope, ...]) -> None:
        if isinstance(node, ast.ClassDef):
            scope = _Scope("class", f"{scopes[-1].name}.{node.name}")
            self.bind(scope, node.body)
            self._note_class(node, scopes)
            self.visit([*node.decorator_list, *node.bases, *node.keywords], scopes)
            self.visit(node.body, (*scopes, scope))
            return
        if isinstance(node, _Function | ast.Lambda):
            self.visit([*node.args.defaults, *filter(None, node.args.kw_defaults)], scopes)
            scope = self._function_scope(node, scopes)
            if isinstance(node, ast.Lambda):
                self._node(node.body, (*scopes, scope))
                return
            self.visit(node.decorator_list, scopes)
            self.visit(node.body, (*scopes, scope))
            return
        if isinstance(node, ast.Call) and (call := call_of(node)) is not None:
            called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            if name := self._named(called, scopes):
                self.found.calls[Callee(name, call)] += 1
        elif isinstance(node, ast.Attribute):
            if not isinstance(node.ctx, ast.Load):
                self.found.attributes.add(node.attr)
            elif name := self._named(node, scopes):
                self.found.reads[name] += 1
        self.visit(list(ast.iter_child_nodes(node)), scopes)

    def _function_scope(self, node: _Function | ast.Lambda, scopes: tuple[_Scope, ...]) -> _Scope:
        scope = _Scope("function", "")
        taken = node.args
        parameters = [argument.arg for argument in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]
        parameters += [argument.arg for argument in (taken.vararg, taken.kwarg) if argument is not None]
        scope.bound.update(parameters)
        if isinstance(node, ast.Lambda):
            return scope
        self.bind(scope, node.body)
        positional = [argument.arg for argument in (*taken.posonlyargs, *taken.args)]
        decorators = {getattr(one, "id", getattr(one, "attr", "")) for one in node.decorator_list}
        if scopes[-1].kind == "class" and positional and "staticmethod" not in decorators:
            made = "" if decorators & {"classmethod"} else _MADE
            scope.first = (positional[0], f"{scopes[-1].name}{made}")
        return scope

    def _note_class(self, node: ast.ClassDef, scopes: tuple[_Scope, ...]) -> None:
        module = scopes[0].name
        name = f"{scopes[-1].name}.{node.name}".removeprefix(f"{module}.")
        bases = [self._named(base, scopes) for base in node.bases if ast.unparse(base) != "object"]
        dynamic = any(isinstance(one, _Function) and one.name.startswith("__getattr") for one in node.body)
        known = all(bases) and not (node.keywords or node.decorator_list or dynamic)
        self.found.bases[name] = tuple(bases) if known else None

    def _named(self, node: ast.expr, scopes: tuple[_Scope, ...]) -> str:
        """Return the dotted name of what *node* stands for; empty where the text does not say."""
        if isinstance(node, ast.Name):
            for depth, scope in enumerate(reversed(scopes)):
                if scope.kind == "class" and depth:
                    continue  # functions do not see the names of the class around them
                if scope.bound[node.id]:
                    return scope.find(node.id)
            return ""
        if isinstance(node, ast.Attribute):
            owner = self._named(node.value, scopes)
            return owner and f"{owner}.{node.attr}"
        if isinstance(node, ast.Call):
            made = self._named(node.func, scopes)
            return (made and not made.endswith(_MADE) and f"{made}{_MADE}") or ""
        return ""
