"""The libraries that an audit resolves a wheel's symbols in."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from sparkwright.lock.model import read_lock
from sparkwright.native import inspection
from sparkwright.pipeline.record import native_expectation

LOCK = read_lock(Path(__file__).resolve().parents[2] / "upstream.lock")
LIBRARIES = object()


@pytest.mark.parametrize(("torch", "libraries"), [(LOCK.release.torch, LIBRARIES), ("9.9.9", None)])
def test_libraries_of_another_torch_resolve_nothing(monkeypatch, torch, libraries):
    monkeypatch.setattr(inspection, "find_surroundings", lambda *_: LIBRARIES)
    monkeypatch.setattr(inspection, "inspector_of", lambda *_: None)
    lock = replace(LOCK, release=replace(LOCK.release, torch=torch))
    job = SimpleNamespace(
        spec=SimpleNamespace(lock=lock, arch=None), options=SimpleNamespace(platform="aarch64"),
        store=None, access=None,
    )  # fmt: skip
    found = native_expectation(job)
    assert found is not None
    assert found.surroundings is libraries
