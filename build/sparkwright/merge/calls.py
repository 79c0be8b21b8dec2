"""Calls and signatures as they stand in the text, and whether the one fits the other."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

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
        keywords: names of keyword arguments.
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
