"""One Python file's text, read once: what it defines, binds, imports, lacks and calls.

Only small facts are kept, never the syntax tree, so that some hundred files cost little memory.
"""

from __future__ import annotations

import ast
import builtins
import gc
import re
import symtable
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

_LINE_END = re.compile(r"\r\n|\r|\n")  # where Python ends a line, unlike str.splitlines
_GIVEN = frozenset(dir(builtins)) | {
    "__name__", "__file__", "__doc__", "__path__", "__spec__", "__loader__", "__package__", "__builtins__",
    "__annotations__", "__class__", "__module__", "__qualname__", "__debug__",
}  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_NOTED = frozenset(
    {
        ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Call, ast.Assign, ast.AnnAssign, ast.Dict,
        ast.Import, ast.ImportFrom,
    }
)  # fmt: skip
# Values of a node's fields that have no noted node below them; two of three nodes are among them.
_LEAVES = frozenset(
    {
        str, int, type(None), ast.Name, ast.Constant, ast.alias,
        *ast.expr_context.__subclasses__(), *ast.operator.__subclasses__(), *ast.unaryop.__subclasses__(),
        *ast.boolop.__subclasses__(), *ast.cmpop.__subclasses__(),
    }
)  # fmt: skip


class Thing(NamedTuple):
    """Something that should stand once in a file.

    Attributes:
        kind: ``definition``, ``assignment`` (of a module's or class's name), ``key`` of one dictionary,
            or ``value`` of an enumeration, whose members then are one.
    """

    kind: str
    name: str


class Import(NamedTuple):
    """``from module import name``, or ``import module`` without a name; *level* counts leading dots."""

    level: int
    module: str
    name: str


@dataclass
class Module:
    """Facts of one file.

    Attributes:
        counts: how often each thing stands in it.
        plain: the same, of definitions without a decorator.
        values: of each thing that is given values, their texts.
        functions: a mark of each function's text, by qualified name.
        bound: names that the module has once it was imported.
        unbound: names that it uses as globals and never binds.
        open: whether it may have names that its text does not show.
        signatures: what functions, and classes with an ``__init__``, take; by qualified name.
    """

    counts: Counter[Thing] = field(default_factory=Counter)
    plain: Counter[Thing] = field(default_factory=Counter)
    values: dict[Thing, set[str]] = field(default_factory=lambda: defaultdict(set))
    functions: dict[str, int] = field(default_factory=dict)
    bound: frozenset[str] = frozenset()
    unbound: frozenset[str] = frozenset()
    open: bool = False
    imports: frozenset[Import] = frozenset()
    calls: Counter[Call] = field(default_factory=Counter)
    signatures: dict[str, Signature] = field(default_factory=dict)


def read_module(text: bytes) -> Module:
    """Return the facts of a file that holds *text*; none where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _without_collector():
                table = symtable.symtable(text, "module.py", "exec")  # type: ignore[arg-type]
                return _facts(text, ast.parse(text), table)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Module(open=True)


def fault_of(text: bytes) -> str:
    """Return why a file that holds *text* does not compile; nothing where it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an escape that upstream misspelt: no flaw of the merge
            compile(text, "module.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
    except (RecursionError, MemoryError) as error:  # CPython raises either where code is nested too deep
        return f"it is nested too deep ({type(error).__name__})"
    return ""


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the garbage collector, which would visit the growing tree many times and triple the duration."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _facts(text: bytes, tree: ast.Module, table: symtable.SymbolTable) -> Module:
    bound, used = _names(table)
    reader = _Reader(_LINE_END.split(text.decode(errors="replace")))
    reader.read(tree)
    found, imports = reader.found, reader.imports
    found.bound, found.unbound = frozenset(bound), frozenset(used - bound - _GIVEN)
    found.imports = frozenset(imports)
    found.open = bool(bound & {"__getattr__"} or used & {"globals", "vars", "exec"}) or any(
        entry.name == "*" for entry in imports
    )
    return found


def _names(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """Return names that the module binds, and those that it uses as globals."""
    bound: set[str] = set()
    used: set[str] = set()
    tables = [table]
    while tables:
        scope = tables.pop()
        tables += scope.get_children()
        top = scope.get_type() == "module"
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                used.add(symbol.get_name())
            if (top or symbol.is_declared_global()) and (symbol.is_assigned() or symbol.is_imported()):
                bound.add(symbol.get_name())
    return bound, used


@dataclass(frozen=True)
class _Reader:
    """Goes through a syntax tree once, with a stack of its own, as code may be nested deep."""

    lines: list[str]
    found: Module = field(default_factory=Module)
    imports: set[Import] = field(default_factory=set)

    def read(self, tree: ast.Module) -> None:
        stack: list[tuple[ast.AST, str, ast.AST]] = [(tree, "", tree)]
        while stack:
            node, prefix, scope = stack.pop()
            if type(node) in _NOTED:
                prefix, scope = self._note(node, prefix, scope)
            # The same children as ast.iter_child_nodes in a third of the time; the first is popped first.
            for name in reversed(node._fields):
                value = getattr(node, name)
                if type(value) is list:
                    for child in reversed(value):
                        if type(child) not in _LEAVES:
                            stack.append((child, prefix, scope))  # noqa: PERF401 - a generator is slower
                elif type(value) not in _LEAVES:
                    stack.append((value, prefix, scope))

    def _note(self, node: ast.AST, prefix: str, scope: ast.AST) -> tuple[str, ast.AST]:
        """Take down what *node* tells; returns the prefix and the scope of what is below it."""
        if isinstance(node, _Function | ast.ClassDef):
            self._define(node, prefix, scope)
            return f"{prefix}{node.name}.", node
        if isinstance(node, ast.Call):
            if (call := call_of(node)) is not None:
                self.found.calls[call] += 1
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            if not isinstance(scope, _Function):
                self._assign(node, prefix, scope)
        elif isinstance(node, ast.Dict):
            self._keys(node, prefix)
        elif isinstance(node, ast.Import):
            self.imports.update(Import(0, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            self.imports.update(Import(node.level, node.module or "", alias.name) for alias in node.names)
        return prefix, scope

    def _define(self, node: _Function | ast.ClassDef, prefix: str, scope: ast.AST) -> None:
        name = f"{prefix}{node.name}"
        thing = Thing("definition", name)
        self.found.counts[thing] += 1
        if not node.decorator_list:
            self.found.plain[thing] += 1
        if isinstance(node, ast.ClassDef):
            return
        self.found.functions[name] = hash("\n".join(self.lines[node.lineno - 1 : node.end_lineno]))
        signature = signature_of(node, method=isinstance(scope, ast.ClassDef))
        if not isinstance(scope, ast.ClassDef) or node.name != "__init__":
            self.found.signatures[name] = signature
        elif not scope.decorator_list:
            self.found.signatures[prefix.removesuffix(".")] = signature

    def _assign(self, node: ast.Assign | ast.AnnAssign, prefix: str, scope: ast.AST) -> None:
        if node.value is None:
            return
        value = ast.unparse(node.value)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for name in (name.id for target in targets for name in _targets(target)):
            if isinstance(scope, ast.ClassDef) and _is_enum(scope):
                self.found.counts[Thing("definition", f"{prefix}{name}")] += 1
                if isinstance(node.value, ast.Constant | ast.UnaryOp):
                    self.found.counts[Thing("value", f"{prefix.removesuffix('.')}({value})")] += 1
                continue
            thing = Thing("assignment", f"{prefix}{name}")
            self.found.counts[thing] += 1
            self.found.values[thing].add(value)

    def _keys(self, node: ast.Dict, prefix: str) -> None:
        values: dict[Thing, list[ast.expr]] = defaultdict(list)  # of one dictionary: others may have that key
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant | ast.Name | ast.Attribute):
                values[Thing("key", f"{prefix}[{ast.unparse(key)}]")].append(value)
        for thing, given in values.items():
            self.found.counts[thing] = max(self.found.counts[thing], len(given))
            if len(given) > 1:
                self.found.values[thing].update(map(ast.unparse, given))


def _targets(node: ast.expr) -> Iterator[ast.Name]:
    if isinstance(node, ast.Name):
        yield node
    elif isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from _targets(element)


def _is_enum(node: ast.ClassDef) -> bool:
    names = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases]
    return any(name.endswith(("Enum", "Flag")) for name in names)


# Calls and signatures -----------------------------------------------------------------------------

# They give back a function that takes the same arguments. Any other decorator may take or supply some.
_TRANSPARENT = frozenset(
    {
        "abstractmethod", "cache", "cached", "inference_mode", "jit", "lru_cache", "no_grad", "override",
        "staticmethod", "classmethod",
    }
)  # fmt: skip
# What `kernel[grid](...)` takes besides the kernel's own arguments.
_LAUNCH = frozenset(
    {"num_ctas", "num_stages", "num_warps", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim"}
)


@dataclass(frozen=True)
class Call:
    """A call by the last part of its name.

    Attributes:
        name: ``f`` in ``f(...)``, ``x.f(...)`` and ``f[grid](...)``.
        positional: number of plain positional arguments.
        unpacks: whether ``*`` or ``**`` passes further ones.
    """

    name: str
    positional: int
    keywords: frozenset[str]
    unpacks: bool


@dataclass(frozen=True)
class Signature:
    """The parameters of a function.

    Attributes:
        positional: names of parameters that may be given by position.
        required: names of all parameters without a default.
        keywords: names of keyword-only parameters.
        more: whether ``*args`` takes any further positional argument.
        any_keyword: whether ``**kwargs`` takes any further keyword.
        method: whether the first parameter is mostly passed by Python itself.
        opaque: whether a decorator may change what it takes.
    """

    positional: tuple[str, ...]
    required: frozenset[str]
    keywords: frozenset[str]
    more: bool
    any_keyword: bool
    method: bool
    opaque: bool

    def fits(self, call: Call) -> bool:
        """Tell if *call* passes what is needed and nothing else, as far as the text can tell."""
        if self.opaque or self._fits(call, self.positional):
            return True
        return self.method and self._fits(call, self.positional[1:])

    def bound(self) -> Signature:
        """Return what it takes as a method of an instance, which Python passes first."""
        if not self.method:
            return self
        first, rest = self.positional[:1], self.positional[1:]
        return replace(self, positional=rest, required=self.required.difference(first), method=False)

    def _fits(self, call: Call, positional: tuple[str, ...]) -> bool:
        given = frozenset(positional[: call.positional])
        known = frozenset(positional) | self.keywords
        if call.positional > len(positional) and not self.more:
            return False
        if given & call.keywords or (call.keywords - known and not self.any_keyword):
            return False
        return call.unpacks or not (self.required & known) - given - call.keywords


def call_of(node: ast.Call) -> Call | None:
    """Return the call that *node* is, or `None` where what is called has no name."""
    called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
    if not isinstance(called, ast.Name | ast.Attribute):
        return None
    name = called.id if isinstance(called, ast.Name) else called.attr
    keywords = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    if isinstance(node.func, ast.Subscript):
        keywords -= _LAUNCH
    starred = [argument for argument in node.args if isinstance(argument, ast.Starred)]
    unpacks = bool(starred) or any(keyword.arg is None for keyword in node.keywords)
    return Call(name, len(node.args) - len(starred), frozenset(keywords), unpacks)


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool) -> Signature:
    """Return what the function *node*, of a class if *method*, takes."""
    names = {_last_name(decorator) for decorator in node.decorator_list}
    taken = node.args
    positional = [argument.arg for argument in (*taken.posonlyargs, *taken.args)]
    optional = positional[len(positional) - len(taken.defaults) :]
    keywords = [argument.arg for argument in taken.kwonlyargs]
    given = [name for name, value in zip(keywords, taken.kw_defaults, strict=True) if value is not None]
    return Signature(
        tuple(positional),
        frozenset({*positional, *keywords} - {*optional, *given}),
        frozenset(keywords),
        more=taken.vararg is not None,
        any_keyword=taken.kwarg is not None,
        method=method and "staticmethod" not in names,
        opaque=not names <= _TRANSPARENT,
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
