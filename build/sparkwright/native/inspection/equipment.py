"""The tools and libraries to inspect binaries with, out of the lock's packages."""

from __future__ import annotations

from pathlib import Path

from sparkwright.base.digests import digest_of
from sparkwright.lock.native import NativePin, named
from sparkwright.native.host import this_machine
from sparkwright.native.inspection.look import Inspector
from sparkwright.native.inspection.symbols import Surroundings
from sparkwright.native.model import Toolchain
from sparkwright.native.packages import find_package, program_in, unpack_package
from sparkwright.store import Store
from sparkwright.upstream import Access

_CUOBJDUMP = "cuobjdump"


def inspector_of(native: NativePin, access: Access) -> Inspector:
    """Return an inspector with the lock's cuobjdump, which is fetched when it is first needed.

    Inspecting may raise the errors of `unpack_package`, and `ToolError` where the lock has no cuobjdump
    for this machine.
    """

    def program() -> Path:
        table = named(native.toolkit.builder, this_machine(), "toolkit for machines of kind")
        return program_in(unpack_package(access, named(table, _CUOBJDUMP, "program")), _CUOBJDUMP)

    return Inspector(access.store, program)


def find_surroundings(native: NativePin, machine: str, store: Store) -> Surroundings | None:
    """Return the libraries of *machine*'s torch and CUDA runtime, if unpacked in *store*, else `None`."""
    table = named(native.toolkit.target, machine, "libraries for machines of kind")
    found = {name: find_package(store, package) for name, package in table.items()}
    if found.get("torch") is None:
        return None
    folders = [folder for folder in found.values() if folder is not None]
    libraries = [lib for folder in folders for lib in sorted(folder.glob("**/lib")) if lib.is_dir()]
    packages = [[table[name].sha256, sorted(table[name].folders)] for name, folder in found.items() if folder]
    key = digest_of([packages, sorted(native.toolkit.link_only)])
    return Surroundings.of(libraries, native.toolkit.link_only, key=key)


def surroundings_of(native: NativePin, toolchain: Toolchain) -> Surroundings:
    """Return the libraries of the torch and the CUDA toolkit of *toolchain*."""
    folders = (toolchain.torch / "lib", toolchain.cuda / "lib64")
    there = [folder for folder in folders if folder.is_dir()]
    return Surroundings.of(there, native.toolkit.link_only, key=toolchain.key)
