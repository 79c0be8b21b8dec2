"""Scripts for a card import from one another only what is there: few can be imported without one."""

import ast
from pathlib import Path

import pytest

GPU = Path(__file__).parents[2] / "gpu"


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a module's top level binds."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def lacking(folder: Path) -> list[str]:
    """Return each import of a name that the module, a file under *folder*, does not bind."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.py"))}
    found = []
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module is None or node.level:
                continue
            base = folder.joinpath(*node.module.split("."))
            source = trees.get(base.with_suffix(".py"), trees.get(base / "__init__.py"))
            if source is None:
                continue
            names = {one.name for one in node.names} - defined(source)
            found += [
                f"{file.relative_to(folder)} imports {name} from {node.module}"
                for name in sorted(names)
                if base / f"{name}.py" not in trees
            ]
    return found


def test_every_name_that_one_script_imports_from_another_is_there() -> None:
    assert lacking(GPU) == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("from parts.one import GONE", ["script.py imports GONE from parts.one"]),
        ("from parts.one import HERE, there", []),
        ("from parts import one", []),
        ("from parts import two", ["script.py imports two from parts"]),
        ("from elsewhere import anything", []),
    ],
)
def test_a_name_that_is_not_there_is_found(tmp_path: Path, line: str, wrong: list[str]) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "one.py").write_text("HERE = 1\ndef there(): ...\n")
    (tmp_path / "script.py").write_text(line + "\n")
    assert lacking(tmp_path) == wrong
