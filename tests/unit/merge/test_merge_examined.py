"""What an examined merge leaves in the store, and what is read again."""

import gc
from importlib import import_module
from pathlib import Path

import pytest
from kit import Scene

from sparkwright.merge import hazards, sides
from sparkwright.merge.modules import read_module
from sparkwright.merge.report import MergeReport, OutcomeKind
from sparkwright.store.paths import Store

FILE = "vllm/cache.py"
GROW = "def grow(size):\n    first = size\n\n    second = size\n\n    third = size\n\n\n"
BASE = GROW + "def last():\n    return 0\n"


@pytest.fixture
def remembering(scene: Scene, store: Store) -> Scene:
    """Carries of which one merges into a hazard and another into a flaw."""
    scene.base, scene.store = {FILE: BASE}, store
    scene.target = {FILE: "LIMIT = 1\n\n\n" + BASE.replace("first = size", "first = size + 1")}
    scene.add("hazardous", {FILE: BASE.replace("third = size", "third = size + 1")})
    scene.add("flawed", {FILE: BASE + "LIMIT = 2\n"})
    return scene


def records(store: Store) -> list[Path]:
    return sorted((store.records / "examined").rglob("*.json"))


def merge_in_new_process(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> tuple[MergeReport, list[str]]:
    """Merge without what this process has read before; returns the texts that were parsed."""
    parsed: list[str] = []

    def reading(text: bytes) -> object:
        parsed.append(text.decode())
        return read_module(text)

    for kept in (sides._module, sides._fault, sides._words):
        kept.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(sides, "read_module", reading)
        return scene.merge(), parsed


def test_a_merge_that_was_examined_before_parses_nothing(remembering, store, monkeypatch):
    first, parsed = merge_in_new_process(remembering, monkeypatch)
    assert parsed
    assert [outcome.kind for outcome in first.outcomes] == [OutcomeKind.APPLIED, OutcomeKind.REFUSED]
    assert [hazard.name for hazard in first.outcomes[0].hazards] == ["grow"]
    assert len(records(store)) == 2
    again, parsed = merge_in_new_process(remembering, monkeypatch)
    assert parsed == []
    assert again == first


def test_other_detectors_examine_again(remembering, store, monkeypatch):
    merge_in_new_process(remembering, monkeypatch)
    monkeypatch.setattr(hazards, "_rules", lambda: "of another release")
    _, parsed = merge_in_new_process(remembering, monkeypatch)
    assert parsed
    assert len(records(store)) == 4


def test_the_rules_digest_covers_every_module_of_the_detectors() -> None:
    pending, modules = [hazards], {"hazards"}
    while pending:
        for value in vars(pending.pop()).values():
            parent, _, name = str(getattr(value, "__module__", "")).rpartition(".")
            if parent == "sparkwright.merge" and name not in {*modules, "report"}:
                modules.add(name)
                pending.append(import_module(f"{parent}.{name}"))
    assert {f"{name}.py" for name in modules} == set(hazards._RULES)


@pytest.mark.parametrize("text", [b"A = 1\n", b"def broken(:\n", b"\0"])
def test_reading_a_file_leaves_the_garbage_collector_as_it_was(text: bytes) -> None:
    assert gc.isenabled()
    read_module(text)
    assert gc.isenabled()
    gc.disable()
    try:
        read_module(text)
        assert not gc.isenabled()
    finally:
        gc.enable()
