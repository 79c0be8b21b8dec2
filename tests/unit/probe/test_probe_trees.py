"""Folders that probes see of a tree, and the environment that they run in."""

from pathlib import Path

import pytest
from kit import Content, make_tree

from sparkwright.base.errors import NotInStoreError
from sparkwright.probe import environment as environment_module
from sparkwright.probe.environment import prepare_environment, tree_folder
from sparkwright.store.paths import Store

CACHE = "vllm/cache.py"
PACKAGE: dict[str, Content] = {
    "vllm/__init__.py": "",
    CACHE: "def size(n):\n    return n\n",
    "setup.py": "raise SystemExit\n",
}


def test_a_tree_is_made_once_read_only_and_remade_when_it_was_touched(store, repository, heard):
    tree = make_tree(repository, {**PACKAGE, "vllm/d/e.py": "", "vllm/caf\udce9.txt": "not UTF-8"})

    def folder() -> Path:
        return tree_folder(store, repository, tree, under="vllm")

    first = folder()
    assert not [path for path in first.rglob("*") if path.stat().st_mode & 0o222]
    assert not (first / "setup.py").exists()
    assert folder() == first
    assert len(heard.of("task.finished")) == 1
    assert heard.warnings == []
    tampers = (tamper_text, tamper_mode, tamper_new_file, tamper_new_folder, tamper_removed)
    for number, tamper in enumerate(tampers, start=1):
        tamper(first)
        assert folder() == first
        assert len(heard.warnings) == number, tamper.__name__
        assert (first / CACHE).read_text() == PACKAGE[CACHE]
        assert not [path for path in first.rglob("*") if "extra" in path.name]
        assert folder() == first
        assert len(heard.of("task.finished")) == 1 + number


def writable(path: Path) -> Path:
    path.parent.chmod(0o755)
    if path.exists():
        path.chmod(0o644)
    return path


def tamper_text(tree: Path) -> None:
    writable(tree / CACHE).write_text("def size(n):\n    return 9\n")


def tamper_mode(tree: Path) -> None:
    (tree / CACHE).chmod(0o755)


def tamper_new_file(tree: Path) -> None:
    writable(tree / "vllm" / "extra.py").touch()


def tamper_new_folder(tree: Path) -> None:
    writable(tree / "vllm" / "extra").mkdir()


def tamper_removed(tree: Path) -> None:
    writable(tree / CACHE).unlink()


def test_the_environment_is_not_made_offline(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_module, "requirements", lambda: "something else\n")
    with pytest.raises(NotInStoreError) as caught:
        prepare_environment(store, offline=True)
    assert "--offline" in caught.value.next_step


def test_the_requirements_are_pinned_whole() -> None:
    from importlib import resources

    text = resources.files("sparkwright.probe").joinpath("requirements.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    assert all(line.count("==") == 1 and "://" not in line for line in lines)
