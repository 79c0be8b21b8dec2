"""Cache of finished extensions by native key.

An extension's *native key* is known before anything is configured: where the store has that key, CMake
is not started. Otherwise every object may still be there.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkwright.base.config import to_builtins
from sparkwright.lock.native import ExtensionSpec, SourcePin
from sparkwright.lock.native_paths import read_by_cmake
from sparkwright.native.model import Extension, Inputs
from sparkwright.store import Store

_EXTENSION = "extension"


def extension_key(
    inputs: Inputs,
    name: str,
    spec: ExtensionSpec,
    native_blobs: Mapping[str, str],
    rules: object,
    *,
    pins: Mapping[str, SourcePin],
) -> str:
    """Return the native key: two machines with the same key make interchangeable binaries.

    Args:
        inputs: the dependencies' sources, the toolchain and the target.
        name: CMake's name for the extension.
        spec: names the sources that it is compiled from.
        native_blobs: blob ids of the merged tree's files by path; files that CMake does not read do
            not count.
        rules: everything else that decides the command lines: the rules' numbers, flags, options.
        pins: the lock's pins of the sources, with their mounts.
    """
    return Extension.key_of(
        name=name,
        rules=rules,
        files=sorted((path, blob) for path, blob in native_blobs.items() if read_by_cmake(path)),
        sources=sorted((source, inputs.sources[source].tree) for source in sources_of(spec, pins)),
        toolchain=inputs.toolchain.key,
        target=[inputs.target.machine, inputs.target.arch],
    )


def sources_of(spec: ExtensionSpec, pins: Mapping[str, SourcePin]) -> set[str]:
    """Return the sources that an extension is compiled from, with the sources mounted in them."""
    found, new = set[str](), set(spec.sources)
    while new:
        found |= new
        new = {name for name, pin in pins.items() if pin.mount.partition(":")[0] in new} - found
    return found


def find_extension(store: Store, key: str) -> Extension | None:
    """Return the extension of that native key, if the store has its file."""
    found = store.find_record_as(Extension, _EXTENSION, key)
    if found is None or found.key != key or not store.find_file(found.sha256, size=found.size):
        return None
    return found


def record_extension(store: Store, extension: Extension) -> None:
    """Record *extension*, whose file is in the store, under its native key."""
    store.put_record(_EXTENSION, extension.key, to_builtins(extension))
