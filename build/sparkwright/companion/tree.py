"""FlashInfer's sources as a tree in the store's repository, as `sparkwright.native` lays them out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import NativeBuildError
from sparkwright.base.events import task
from sparkwright.companion.asking import GeneratorSite
from sparkwright.companion.model import CompanionSpec
from sparkwright.git.trees import FileEntry, import_files, patch_tree
from sparkwright.upstream.archive import REGULAR
from sparkwright.upstream.releases import Access

DATA = "flashinfer/data"
"""Folder of the sources in FlashInfer's wheel."""
TVM_FFI = "tvm_ffi"
"""Folder of the headers' package in the wheel of ``apache-tvm-ffi``."""
SOURCES, GENERATED, HEADERS = "source/data", "source/generated", "deps/tvm-ffi"
"""Places of FlashInfer's files, of those that generators write, and of the headers, in a work folder."""

_KIND = "companion-tree"
_RULES = 1
_HEADERS = frozenset({".h", ".hpp", ".cuh"})


def source_tree(access: Access, spec: CompanionSpec, site: GeneratorSite) -> str:
    """Return the git id of the tree to compile: FlashInfer's sources, headers of tvm_ffi, generated files.

    Args:
        access: the store and its repository.
        spec: the series' list: it names the folders.
        site: the unpacked wheels, and the workspace that generators have written to.

    Raises:
        NativeBuildError: a generated file holds a path of this machine.
    """
    base = _base_tree(access, spec, site)
    generated = {f"{GENERATED}/{name}": entry for name, entry in _generated(site)}
    return patch_tree(access.repository, base, generated)


def generated_folder(workspace: Path) -> Path | None:
    """Return the folder that generators wrote sources to, or `None` where they wrote none."""
    return next(iter(sorted(workspace.glob(".cache/flashinfer/*/*/generated"))), None)


def _base_tree(access: Access, spec: CompanionSpec, site: GeneratorSite) -> str:
    """Return the tree without generated files; it is imported once for each list and version."""
    headers = sorted(_headers(site.tvm_ffi / TVM_FFI))
    digests = [[name, digest_of(entry.data.decode(errors="replace"))] for name, entry in headers]
    key = digest_of([_RULES, spec.flashinfer.sha256, spec.paths, spec.leave_out, digests])
    record = access.store.find_record(_KIND, key) or {}
    if isinstance(known := record.get("tree"), str) and access.repository.has(_ref(key)):
        return known
    with task(f"import the sources of FlashInfer {spec.version}"):
        files = {f"{SOURCES}/{name}": entry for name, entry in _sources(spec, site.flashinfer / DATA)}
        files |= {f"{HEADERS}/{name}": entry for name, entry in headers}
        tree = import_files(access.repository, files.items())
    access.repository.keep(_ref(key), access.repository.commit(tree, message="FlashInfer's sources"))
    access.store.put_record(_KIND, key, {"tree": tree})
    return tree


def _ref(key: str) -> str:
    return f"refs/sparkwright/companions/{key[:40]}"


def _sources(spec: CompanionSpec, data: Path) -> Iterator[tuple[str, FileEntry]]:
    left_out = tuple(f"{name}/" for name in spec.leave_out)
    for folder in spec.paths:
        for name, entry in _files(data / folder):
            if not (place := f"{folder}/{name}").startswith(left_out):
                yield place, entry


def _headers(package: Path) -> Iterator[tuple[str, FileEntry]]:
    for name, entry in _files(package):
        if os.path.splitext(name)[1] in _HEADERS:  # noqa: PTH122 - a name, no path
            yield name, entry


def _files(folder: Path) -> Iterator[tuple[str, FileEntry]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), FileEntry(REGULAR, path.read_bytes())


def _generated(site: GeneratorSite) -> Iterator[tuple[str, FileEntry]]:
    folder = generated_folder(site.workspace)
    if folder is None:
        return
    here = os.fsencode(site.workspace)
    for name, entry in _files(folder):
        if here in entry.data:
            raise NativeBuildError(
                f"FlashInfer's generated file {name} cannot be compiled reproducibly",
                because="it holds the path of the folder that it was generated in",
                next_step="take its module out of the list",
            )
        yield name, entry
