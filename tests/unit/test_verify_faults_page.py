"""The page on faults says nothing of the machine or the run that made it."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_faults", ROOT / "scripts" / "verify_faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (f"{sys.prefix}/bin/python -m x", "python -m x"),
        (f"see {tempfile.gettempdir()}/tmp1/3/servers/main-0/server.log, please", "see server.log, please"),
        (f"its log ends: …{str(ROOT)[3:]}/bin/python -m x", "its log ends: …python -m x"),
        ("--port 44703 --k 7, http://127.0.0.1:5123/v1", "--port … --k 7, http://127.0.0.1:…/v1"),
        ("(EngineCore pid=19020) ERROR 11-21 23:02:59 [core.py:1174] x", "ERROR [core.py:1174] x"),
        ("POST /v1/completions is 2 / 3 of it", "POST /v1/completions is 2 / 3 of it"),
    ],
)
def test_what_is_of_here_and_now_alone_is_left_out(script: ModuleType, said: str, left: str) -> None:
    assert script.impersonal(said) == left
