"""Can a wheel do without one of its extensions? A proof over all of its Python, or a reason why not.

Start reading at `prove_absence`. The proof is about importing: with the extension's file gone, every
import of it has to fail where that is expected. It covers ``import`` in all its forms,
``import_module`` and its like with a constant, the extension's op namespaces ``torch.ops.NAME``, and
names in texts. A module that cannot be imported without the extension is then missing too: somebody
has to import *that*, and everybody guarded in the same way.

What calls the extension's ops inside a function is accepted in modules that find out themselves
whether the extension is there. None of its kernels could run on the card, so such a call fails with
the file as it fails without.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkwright.wheel.presence import Presence, catches_import_error, module_level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Absence", "module_of", "namespaces_in", "prove_absence"]

Kind = Literal["import", "import from", "op", "check", "text"]
_CALLED = re.compile(rb"torch\.ops\.(\w+)")
_IMPORTERS = frozenset({"import_module", "__import__"})
_FINDERS = frozenset({"find_spec", "hasattr", "getattr"})


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


@dataclass(frozen=True)
class _Use:
    """A place that mentions a module."""

    kind: Kind
    node: ast.AST

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0)


def module_of(member: str) -> str:
    """The dotted name of the module in the wheel's *member*: ``vllm._C`` for ``vllm/_C.abi3.so``."""
    folder, _, name = member.rpartition("/")
    stem = name.partition(".")[0]
    parts = [part for part in folder.split("/") if part]
    return ".".join(parts if stem == "__init__" else [*parts, stem])


def prove_absence(module: str, files: Mapping[str, bytes], namespaces: Iterable[str] = ()) -> Absence:
    """Whether the code in *files* copes with *module* being missing.

    Args:
        module: dotted name of an extension.
        files: every Python file of the wheel by member name.
        namespaces: op namespaces that it registers besides the one that is called as it is; see
            `namespaces_in`.
    """
    evidence: list[str] = []
    missing = [module]
    ops = frozenset({module.rpartition(".")[2], *namespaces})
    for name in missing:
        found = _judge_files(name, missing, _ops_of(name, missing, ops), ops, files)
        evidence += found.evidence
        if found.because:
            return Absence(module, tuple(evidence), found.because)
        if name != module and not found.evidence:
            because = f"{name} cannot be imported without it, and nothing shows who expects that"
            return Absence(module, tuple(evidence), because)
        missing += found.modules
    return Absence(module, tuple(evidence) or (f"no Python file mentions {module}",))


def _judge_files(
    name: str,
    missing: Sequence[str],
    its_ops: frozenset[str],
    ops: frozenset[str],
    files: Mapping[str, bytes],
) -> _Judgement:
    """What all of *files* do when *name* is missing, up to the first that does not cope."""
    marks = [mark.encode() for mark in {name.rpartition(".")[2], *its_ops}]
    evidence: list[str] = []
    modules: list[str] = []
    for path in sorted(path for path, content in files.items() if any(mark in content for mark in marks)):
        own = module_of(path)
        if any(_reaches(own, gone) for gone in (*missing, *modules)):
            continue
        try:
            tree = ast.parse(files[path])
        except (SyntaxError, ValueError) as error:
            return _Judgement(tuple(evidence), f"{path} cannot be read: {error}")
        found = _File(path, tree, missing, ops).judge(name, its_ops)
        evidence += found.evidence
        if found.because:
            return _Judgement(tuple(evidence), found.because)
        modules += found.modules
    return _Judgement(tuple(evidence), modules=tuple(modules))


def namespaces_in(binary: bytes, files: Mapping[str, bytes]) -> frozenset[str]:
    """The op namespaces of all that *files* call by ``torch.ops.NAME`` whose names *binary* holds.

    An extension registers its namespace by its name, a C string. One that holds a name and does not
    register it asks for more guards than are needed, never for fewer.
    """
    called = {name for content in files.values() for name in _CALLED.findall(content)}
    return frozenset(name.decode() for name in called if b"\0" + name + b"\0" in binary)


def _ops_of(name: str, missing: Sequence[str], ops: frozenset[str]) -> frozenset[str]:
    """The op namespaces that are gone with the module *name*: all are the extension's, the first's."""
    return ops if name == missing[0] else frozenset()


@dataclass(frozen=True)
class _Judgement:
    """What files do without a module; *modules* cannot be imported either."""

    evidence: tuple[str, ...]
    because: str = ""
    modules: tuple[str, ...] = ()


class _File:
    """One file, and where in it modules are used that are *missing*, the extension first."""

    def __init__(self, path: str, tree: ast.Module, missing: Sequence[str], ops: frozenset[str]) -> None:
        self._path, self._tree = path, tree
        self._parents = {
            id(child): parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)
        }
        self._at_import = {id(node) for node in module_level(tree)}
        uses = [use for name in missing for use in _uses(tree, name, path, _ops_of(name, missing, ops))]
        self._guarded = [use for use in uses if use.kind.startswith("import") and self._caught(use)]
        self._knows = bool(self._guarded) or any(use.kind == "check" for use in uses)
        dead = [statement for use in self._guarded for statement in self._dead_after(use)]
        self._presence = Presence(tree, dead, ops)
        self._skipped = {id(node) for statement in dead for node in ast.walk(statement)}

    def judge(self, module: str, ops: frozenset[str]) -> _Judgement:
        """What the file does when *module*, which brings the op namespaces *ops*, is missing."""
        evidence: list[str] = []
        fatal = False
        for use in _uses(self._tree, module, self._path, ops):
            where = f"{self._path}:{use.line}"
            if any(use.node is guarded.node for guarded in self._guarded):
                evidence.append(f"{where}: the import may fail")
                if name := self._used_at_import(use):
                    return _Judgement(tuple(evidence), f"{where} brings {name}, which is used unguarded")
            elif use.kind == "check":
                evidence.append(f"{where}: asks whether it is there")
            elif self._never_runs(use.node):
                evidence.append(f"{where}: runs only when it is there")
            elif use.kind == "text":
                return _Judgement(tuple(evidence), f"{where} names {module} in a text: what for is not known")
            elif id(use.node) in self._at_import:
                fatal = True
                evidence.append(f"{where}: {module_of(self._path)} cannot be imported without it")
            elif use.kind == "op" and self._knows:
                evidence.append(f"{where}: called in a module that finds out whether it is there")
            else:
                return _Judgement(tuple(evidence), f"{where} uses {module} in a function, unguarded")
        return _Judgement(tuple(evidence), modules=(module_of(self._path),) if fatal else ())

    def _used_at_import(self, use: _Use) -> str:
        """A name that the guarded import *use* would have brought, and that is read although it failed."""
        catcher = self._caught(use)
        if id(use.node) not in self._at_import or not isinstance(use.node, ast.Import | ast.ImportFrom):
            return ""
        brought = {alias.asname or alias.name for alias in use.node.names} - _stored(catcher)
        for node in module_level(self._tree):
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
        while (parent := self._parents.get(id(node))) is not None:
            yield node, parent
            node = parent

    def _caught(self, use: _Use) -> ast.AST | None:
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

    def _dead_after(self, use: _Use) -> list[ast.stmt]:
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
    handlers = catcher.handlers if isinstance(catcher, ast.Try) else []
    return {
        node.id
        for handler in handlers
        for node in ast.walk(handler)
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


def _uses(tree: ast.Module, module: str, path: str, ops: frozenset[str]) -> Iterator[_Use]:
    """Every place in *tree* that mentions *module* or its op namespaces *ops*, outermost first."""
    covered: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in covered:
            continue
        kind = _kind_of(node, module, path, ops)
        if kind is not None:
            covered |= {id(inner) for inner in ast.walk(node)}
            yield _Use(kind, node)


def _kind_of(node: ast.AST, module: str, path: str, ops: frozenset[str]) -> Kind | None:
    kind: Kind | None = None
    match node:
        case ast.Import(names=aliases) if any(_reaches(alias.name, module) for alias in aliases):
            kind = "import"
        case ast.ImportFrom(module=origin, names=aliases, level=level):
            kind = _from(_absolute(origin or "", level, path), {alias.name for alias in aliases}, module)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
            kind = _call(name, args, module, ops)
        case ast.Attribute(value=ast.Attribute(attr="ops"), attr=attribute) if attribute in ops:
            kind = "op"
        case ast.Attribute() if ast.unparse(node) == module:
            kind = "op"
        case ast.Constant(value=str(text)) if not any(map(str.isspace, text)):
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


def _reaches(imported: str, module: str) -> bool:
    """Whether importing *imported* imports *module*: itself, or as the package that it is in."""
    return imported == module or imported.startswith(module + ".")


def _from(origin: str, names: set[str], module: str) -> Kind | None:
    if _reaches(origin, module):
        return "import"
    parent, _, leaf = module.rpartition(".")
    return "import from" if origin == parent and names & {leaf, "*"} else None


def _absolute(origin: str, level: int, path: str) -> str:
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
        whole = isinstance(args[0], ast.Constant) and _reaches(str(args[0].value), module)
        kind = "import" if whole else "text"
    elif mentions and name in _FINDERS and (name != "getattr" or len(args) > 2):  # noqa: PLR2004
        kind = "check"  # getattr only with a default
    return kind


def _holds(text: str, marks: frozenset[str]) -> bool:
    return any(mark in text for mark in marks)
