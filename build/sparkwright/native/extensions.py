"""Cache of finished extensions by native key, and of links by their objects.

An extension's *native key* is known before anything is configured: where the store has that key, CMake
is not started. Otherwise every object may still be there, and a link of the same objects.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from sparkwright.base.config import Model, to_builtins
from sparkwright.base.digests import digest_of
from sparkwright.lock.native_paths import read_by_cmake
from sparkwright.native.model import WORK, Extension

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkwright.lock.native import ExtensionSpec, SourcePin
    from sparkwright.native.model import Inputs, Link
    from sparkwright.native.units import UnitFiles
    from sparkwright.store import Store

_EXTENSION = "extension"
_LINK = "link"
# Part of a link's key: raised when the meaning of its record changes.
_LINK_RULES = 1
_HASHED = re.compile(re.escape(WORK) + r"/((?:source|deps)\b[^,:;\s\"']*)")
_LINKABLE = (".a", ".o", ".so")


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


class _Linked(Model, frozen=True):
    """The shared object of a link."""

    sha256: str
    size: int


def link_key(link: Link, toolchain_key: str, objects: Sequence[str], files: UnitFiles) -> str | None:
    """Return the key of *link*'s result from its objects; `None` if its command reads other outputs.

    Args:
        link: the command.
        toolchain_key: key of the linker, and of the libraries that it links against.
        objects: SHA-256 of its objects, in the order of ``link.objects``.
        files: the files of the trees, of which a command may name some, such as a version script.

    Raises:
        ValueError: there are more or fewer digests than objects.
    """
    if len(objects) != len(link.objects):
        raise ValueError(f"{link.target} has {len(link.objects)} objects, not {len(objects)}")
    if set(_made_here(link)) - {link.output, *link.objects}:
        return None
    named = sorted({place.rstrip("/") for word in link.argv for place in _HASHED.findall(word)})
    read = [
        [path, blob]
        for path, blob in sorted(files.blobs.items())
        if any(path == place or path.startswith(f"{place}/") for place in named)
    ]
    return digest_of([_LINK_RULES, link.argv, toolchain_key, list(objects), read])


def _made_here(link: Link) -> Iterator[str]:
    """Yield the files below ``build/`` that *link*'s command names, relative to the work folder."""
    for word in link.argv:
        place = word.removeprefix(f"{WORK}/build/")
        if place.endswith(_LINKABLE) and not place.startswith(("/", "-", WORK)):
            yield posixpath.normpath(f"build/{place}")


def find_link(store: Store, key: str) -> str | None:
    """Return the SHA-256 of the shared object that was linked under *key*, if the store has it."""
    found = store.find_record_as(_Linked, _LINK, key)
    return found.sha256 if found is not None and store.find_file(found.sha256, size=found.size) else None


def record_link(store: Store, key: str, sha256: str, size: int) -> None:
    """Record the shared object with that digest, which is in the store, under *key*."""
    store.put_record(_LINK, key, to_builtins(_Linked(sha256=sha256, size=size)))
