"""The choice of upstream's tests that touch what a patchset changes.

A test file is chosen if it names a changed module: by an import, in a string such as a patch's target,
through a helper module beside the tests, or by its own name, ``test_`` and the module's. What it reaches
through other modules of vLLM does not count: almost every test reaches almost every module that way. For the
same reason the helpers at the top of ``tests/``, which hundreds of files import, count for none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

_TESTS = "tests"


def choose_tests(tree: Path, changed: Collection[str]) -> list[str]:
    """Return the test files in *tree* that touch *changed*, paths of Python files, in order.

    Args:
        tree: folder of the tree whose tests are run.
        changed: paths that the patchset changes or adds.
    """
    texts = {
        path.relative_to(tree).as_posix(): path.read_text(encoding="utf-8", errors="replace")
        for path in sorted((tree / _TESTS).rglob("*.py"))
    }
    found: set[str] = set()
    wanted = {_module(path) for path in changed if path.endswith(".py")}

    @cache
    def named(path: str) -> frozenset[str]:
        return frozenset(_named(path, texts[path]))

    namesakes = {(f"test_{_last(module)}", _last(module.rpartition(".")[0])) for module in wanted}
    while wanted:
        word = re.compile(rf"\b({'|'.join(sorted({re.escape(_last(module)) for module in wanted}))})\b")
        fresh = {
            path
            for path, text in texts.items()
            if path not in found and word.search(text) and not wanted.isdisjoint(named(path))
        }
        found |= fresh
        wanted = {_module(path) for path in fresh if path.count("/") > 1}
    found |= {
        path
        for path in texts
        if any(PurePosixPath(path).stem == name and folder in path.split("/") for name, folder in namesakes)
    }
    return sorted(path for path in found if PurePosixPath(path).name.startswith("test_"))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _named(path: str, text: str) -> Iterator[str]:
    """Yield every module that *text* may name; of ``from a import b`` both ``a`` and ``a.b``."""
    try:
        parsed = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    package = path.split("/")[:-1]
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isascii():
            parts = node.value.split(".")
            if len(parts) > 1 and all(part.isidentifier() for part in parts):
                yield from (".".join(parts[:end]) for end in range(2, len(parts) + 1))
