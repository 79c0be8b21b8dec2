"""Pack finished modules into a wheel: the same modules give the same bytes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.base.digests import digest_of, to_json
from sparkwright.base.errors import WheelError
from sparkwright.base.events import emit
from sparkwright.companion.bill import companion_bill
from sparkwright.companion.build import CompiledKernels
from sparkwright.companion.compiling import CompiledModule
from sparkwright.companion.model import CompanionSpec
from sparkwright.companion.package import (
    PACKAGE,
    PROJECT,
    companion_version,
    member_of,
    package_text,
)
from sparkwright.native.elf import honest_platform, read_elf
from sparkwright.native.model import Target
from sparkwright.store import Store, atomic_file, storing
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.kernels import read_json
from sparkwright.wheel.names import WheelName, parse_name
from sparkwright.wheel.rewrite import Packed, Stored, deflated_in, layout, write_parts
from sparkwright.wheel.sbom import SBOM
from sparkwright.wheel.source import RecordEntry, entry_from_digest, entry_of, format_record

RECORD = "sparkwright/companion.json"
"""Name of the record in the wheel's metadata folder."""
_OLDEST_PLATFORM = "manylinux_2_28"


@dataclass(frozen=True)
class CompanionWheel:
    """A finished wheel.

    Attributes:
        size: in bytes.
        modules: names of its modules, as FlashInfer calls them.
    """

    path: Path
    version: str
    sha256: str
    size: int
    modules: tuple[str, ...]


@dataclass(frozen=True)
class CompanionContent:
    """The inputs that decide the bytes of a companion.

    Attributes:
        spec: the series' list.
        target: the machine and card.
        cuda: version of the toolkit that compiled the modules, ``major.minor``.
        modules: finished modules by name.
        record: what they were made from, JSON-ready.
        licences: licence texts of FlashInfer's wheel by file name.
    """

    spec: CompanionSpec
    target: Target
    cuda: str
    modules: Mapping[str, CompiledModule]
    record: Mapping[str, Any]
    licences: Mapping[str, bytes]


def record_of(kernels: CompiledKernels, spec: CompanionSpec, target: Target) -> dict[str, Any]:
    """Return what *kernels* were made from, and for what: sources, compilers, modules, recipes' needs."""
    units = kernels.configuration.units
    headers = spec.tvm_ffi_for(target.machine)
    return {
        "format": 1,
        "flashinfer": {
            "version": spec.version,
            "filename": spec.flashinfer.filename,
            "sha256": spec.flashinfer.sha256,
        },
        "tvm_ffi": {
            "version": headers.version,
            "filename": headers.filename,
            "sha256": headers.sha256,
        },
        # By the list's names, so that a reader without the list can tell if the companion is enough.
        "recipes": {recipe: spec.needed(target.arch, recipe) for recipe in sorted(spec.recipes)},
        "tree": kernels.tree,
        "target": {"machine": target.machine, "arch": target.arch},
        "toolchain": {
            "key": kernels.toolchain.key,
            "packages": dict(sorted(kernels.toolchain.packages.items())),
        },
        "modules": {
            name: {
                "listed": kernels.listed[name],
                "sha256": one.sha256,
                "size": one.size,
                "arches": dict(sorted(one.arches.items())),
                "units": [unit.source for unit in units if unit.target == name],
                "commands": digest_of([list(unit.argv) for unit in units if unit.target == name]),
            }
            for name, one in sorted(kernels.modules.items())
        },
    }


def read_companion(wheel: Path) -> dict[str, Any]:
    """Return the record of a companion.

    Raises:
        ArchiveError: it is damaged or an unsafe archive.
        WheelError: it is no companion, or one of an earlier form.
    """
    name = parse_name(wheel.name)
    with open_archive(wheel) as archive:
        record: Any = read_json(archive, f"{name.dist_info}/{RECORD}")
    parts = ("flashinfer", "tvm_ffi", "recipes", "tree", "target", "toolchain", "modules")
    if not isinstance(record, dict) or (lost := [part for part in parts if part not in record]):
        raise WheelError(
            f"{wheel.name} has no complete record",
            because=f"it lacks {', '.join(lost)}" if isinstance(record, dict) else "it is no table",
            next_step="build it again: sparkwright companion",
        )
    return record


def write_companion(store: Store, content: CompanionContent, out: Path) -> CompanionWheel:
    """Write the wheel of *content* into the folder *out*.

    Raises:
        WheelError: the version or the platform cannot be in its name.
        StorageError: the disk is full or cannot be written.
    """
    modules = [content.modules[name] for name in sorted(content.modules)]
    version = companion_version(content.spec.version, content.cuda, content.target, content.record)
    name = WheelName(PACKAGE, version, "", "py3", "none", _platform(store, content, modules))
    entries = _entries(store, content, name, modules)
    with storing(f"writing {name.filename}"):
        out.mkdir(parents=True, exist_ok=True)
        with atomic_file(out / name.filename) as descriptor:
            sha256 = write_parts(layout(entries), descriptor)
            size = os.fstat(descriptor).st_size
    emit("companion.written", filename=name.filename, sha256=sha256, size=size)
    return CompanionWheel(out / name.filename, version, sha256, size, tuple(one.name for one in modules))


def _platform(store: Store, content: CompanionContent, modules: Sequence[CompiledModule]) -> str:
    """Return the oldest platform tag that has the symbol versions of all modules."""
    versions = [read_elf(store.file_path(one.sha256)).versions for one in modules]
    return honest_platform(f"{_OLDEST_PLATFORM}_{content.target.machine}", versions)


def _entries(
    store: Store, content: CompanionContent, name: WheelName, modules: Sequence[CompiledModule]
) -> list[Packed | Stored]:
    """Return the members: the package, its kernels, the metadata, RECORD last."""
    info = name.dist_info
    names = [one.name for one in modules]
    stored = [
        Stored(f"{PACKAGE}/__init__.py", package_text(name.version, content.target, names)),
        Stored(f"{info}/METADATA", _metadata(content.spec, name.version)),
        Stored(f"{info}/WHEEL", _wheel(name)),
        Stored(f"{info}/top_level.txt", f"{PACKAGE}\n".encode()),
        *(Stored(f"{info}/licenses/{file}", text) for file, text in sorted(content.licences.items())),
        Stored(f"{info}/{RECORD}", to_json(content.record)),
        Stored(f"{info}/{SBOM}", companion_bill(content.record, name.version)),
    ]
    packed = [_packed(store, one) for one in modules]
    lines = [entry_of(stored[0].name, stored[0].content)]
    lines += [
        entry_from_digest(entry.name, bytes.fromhex(one.sha256), one.size)
        for entry, one in zip(packed, modules, strict=True)
    ]
    lines += [entry_of(one.name, one.content) for one in stored[1:]]
    record = f"{info}/RECORD"
    return [stored[0], *packed, *stored[1:], Stored(record, format_record([*lines, RecordEntry(record)]))]


def _packed(store: Store, module: CompiledModule) -> Packed:
    data = deflated_in(store, module.sha256).read_bytes()
    crc = zlib.crc32(store.file_path(module.sha256).read_bytes())
    return Packed(member_of(module.name), data, crc, module.size, executable=True)


def _metadata(spec: CompanionSpec, version: str) -> bytes:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {PROJECT}",
        f"Version: {version}",
        "Summary: Kernels of FlashInfer, compiled ahead of time for one card by sparkwright",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.10",
        f"Requires-Dist: flashinfer-python=={spec.version}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _wheel(name: WheelName) -> bytes:
    lines = ["Wheel-Version: 1.0", "Generator: sparkwright", "Root-Is-Purelib: false"]
    return ("\n".join([*lines, *(f"Tag: {tag}" for tag in name.tags)]) + "\n").encode()
