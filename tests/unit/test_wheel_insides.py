"""What is known of a binary is found once for a store, and again where anything that decides it differs."""

from dataclasses import replace
from pathlib import Path

import elfkit
import pytest

from sparkwright.native.elf import read_elf
from sparkwright.native.inspection import Inspector, Surroundings
from sparkwright.store import Store
from sparkwright.wheel.binaries import resolution_of

SHA256 = "a" * 64


@pytest.fixture
def inspector(store: Store) -> Inspector:
    def none() -> Path:
        raise AssertionError("no device code is asked for")

    return Inspector(store, none)


def test_symbols_are_resolved_once_among_the_same_libraries(tmp_path: Path, inspector: Inspector) -> None:
    lib = elfkit.shared(
        tmp_path / "lib" / "libtorch.so", "int add(void) { return 1; }", "-Wl,-soname,libtorch.so"
    )
    code = "int add(void); int f(void) { return add(); }"
    elf = read_elf(elfkit.shared(tmp_path / "x.so", code, "-Wl,--no-as-needed", lib))
    there = Surroundings.of([lib.parent], key="there")
    gone = Surroundings.of([])

    def unresolved(surroundings: Surroundings, sha256: str = SHA256) -> tuple[str, ...]:
        return resolution_of(elf, sha256, surroundings, "none", inspector).unresolved

    assert unresolved(there) == ()
    assert unresolved(replace(gone, key="there")) == (), "remembered"
    assert unresolved(replace(gone, key="gone")) == ("add",), "other libraries"
    assert unresolved(replace(gone, key="there"), "b" * 64) == ("add",), "another binary"
    assert unresolved(gone) == ("add",)
    assert unresolved(replace(there, key="")) == (), "without a key nothing is remembered"
