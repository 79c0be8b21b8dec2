"""The number of FlashInfer's compilers that fit beside a server."""

from typing import Any

import pytest
from preflight_kit import recipe

from sparkwright.base.machine import look
from sparkwright.engine import flashinfer
from sparkwright.engine.flashinfer import COMPILER_GIB, compilers_at_once, jobs_variable

GB10 = {"cores": 20, "available_gib": 116, "total_gib": 121.69, "shared": True}


@pytest.mark.parametrize(("share", "expected"), [(0.5, 7), (0.7, 3), (0.8, 2), (0.9, 1), (0.99, 1)])
def test_what_a_server_leaves_of_a_sparks_memory_holds_all_compilers(share: float, expected: int) -> None:
    served = recipe(flags={"gpu-memory-utilization": share})
    assert compilers_at_once(served, **GB10) == expected
    assert expected == 1 or share * GB10["total_gib"] + expected * COMPILER_GIB < GB10["available_gib"]


def test_a_card_with_its_own_memory_leaves_the_hosts() -> None:
    host = GB10 | {"shared": False}
    assert compilers_at_once(recipe(), **host) == 16
    assert compilers_at_once(recipe(), **host | {"cores": 8}) == 8


@pytest.mark.parametrize(("memory", "shared"), [("[N/A]", True), ("Not Supported", True), ("81559", False)])
def test_it_is_set_with_a_card_and_unless_the_user_did(monkeypatch, memory, shared):
    rooms: list[dict[str, Any]] = []
    monkeypatch.setattr(flashinfer, "compilers_at_once", lambda _, **room: rooms.append(room) or 3)
    monkeypatch.setattr("sparkwright.base.card.card_fields", lambda *_: (memory,))
    monkeypatch.setattr("sparkwright.base.card.card_capability", lambda: "12.1")
    assert jobs_variable(recipe(), {}) == {"MAX_JOBS": "3"}
    assert rooms[0]["shared"] == shared
    assert jobs_variable(recipe(), {"MAX_JOBS": "8"}) == {}
    monkeypatch.setattr("sparkwright.base.card.card_capability", lambda: "")
    assert jobs_variable(recipe(), {}) == {}


@pytest.mark.parametrize(("limit", "expected"), [("max", 16), (str(24 << 30), 2)])
def test_the_limit_of_a_control_group_bounds_it(monkeypatch, tmp_path, limit, expected):
    files = {
        "proc/meminfo": f"MemTotal: {128 << 20} kB\nMemAvailable: {120 << 20} kB\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": limit,
        "sys/fs/cgroup/box/memory.current": str(1 << 30),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(flashinfer, "look", lambda: look(tmp_path, affinity=20))
    monkeypatch.setattr("sparkwright.base.card.card_fields", lambda *_: ("81559",))
    monkeypatch.setattr("sparkwright.base.card.card_capability", lambda: "9.0")
    assert jobs_variable(recipe(), {}) == {"MAX_JOBS": str(expected)}
