"""What is known of a binary is found once for a store, and again where anything that decides it differs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import elfkit
import pytest
import wheelkit

from sparkwright.native.inspection import Inspector, Surroundings, read_elf
from sparkwright.wheel.archive import Archive, open_archive
from sparkwright.wheel.insides import namespaces_held, resolution_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkwright.store import Store

MEMBER, SHA256 = "vllm/_x.abi3.so", "a" * 64


@pytest.fixture
def inspector(store: Store) -> Inspector:
    def none() -> Path:
        raise AssertionError("no device code is asked for")

    return Inspector(store, none)


class Read:
    """An archive that notes what is read."""

    def __init__(self, archive: Archive) -> None:
        self._archive, self.names = archive, list[str]()

    def read(self, name: str, most: int) -> bytes:
        self.names.append(name)
        return self._archive.read(name, most)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Read]:
    path = wheelkit.pack(tmp_path / "a-1-py3-none-any.whl", {MEMBER: b"\0secret\0open\0closed"})
    with open_archive(path) as opened:
        yield Read(opened)


def test_names_in_a_binary_are_looked_for_once(archive: Read, inspector: Inspector) -> None:
    def held(sha256: str, *called: str) -> frozenset[str]:
        return namespaces_held(archive, MEMBER, sha256, called, inspector)  # type: ignore[arg-type]

    assert held(SHA256, "open", "secret", "closed") == {"open", "secret"}
    assert held(SHA256, "secret", "closed", "open") == {"open", "secret"}
    assert archive.names == [MEMBER]
    assert held(SHA256, "open") == {"open"}, "another question"
    assert held("b" * 64, "open") == {"open"}, "another binary"
    assert len(archive.names) == 3


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
