"""A companion's wheel: the same modules give the same bytes.

It has the form of FlashInfer's own wheels from 0.7 on: a *provider*, ``flashinfer-jit-cache-sm121a``, whose
metadata names it under an entry point with its architecture and modules. FlashInfer asks the package
``flashinfer_jit_cache`` for all providers that are installed. Its own is on no public index, so the wheel
brings one that answers alike; where both are installed, either finds both packages' kernels. FlashInfer up
to 0.6 asks the same package for a folder alone.

FlashInfer looks for ``NAME/NAME.so`` there, and passes over a package or provider of another version.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec

from sparkwright.base.config import convert, decode_json
from sparkwright.base.digests import digest_of, to_json
from sparkwright.base.errors import SparkwrightError, WheelError
from sparkwright.base.events import emit
from sparkwright.base.text import clean
from sparkwright.companion.model import CompanionSpec
from sparkwright.native.elf import honest_platform, read_elf
from sparkwright.native.model import Target
from sparkwright.store.disk import atomic_file, storing
from sparkwright.store.paths import Store
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.names import WheelName, parse_name
from sparkwright.wheel.recorded import SBOM
from sparkwright.wheel.rewrite import Packed, Stored, deflated_in, layout, write_parts
from sparkwright.wheel.source import RecordEntry, entry_from_digest, entry_of, format_record

PROJECT = "flashinfer-jit-cache"
"""Begins the name of every provider."""
_SHIM = "flashinfer_jit_cache"
_DIGEST_DIGITS = 8

_SHIM_TEXT = '''\
"""List the installed packages of compiled kernels for FlashInfer."""

import logging
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

__version__ = "{version}"


def get_jit_cache_providers():
    """Return what each provider states; one that is broken is passed over."""
    found = []
    for point in entry_points(group="flashinfer.jit_cache.providers"):
        try:
            stated = dict(point.load()())
            stated["cuda_architectures"] = frozenset(stated["cuda_architectures"])
            stated["modules"] = frozenset(stated["modules"])
            found.append(SimpleNamespace(**stated))
        except Exception as error:
            logging.getLogger(__name__).warning("kernels of %s are left out: %r", point.name, error)
    return tuple(found)


def get_jit_cache_dir():
    """Return the folder of kernels, for FlashInfer up to 0.6."""
    return str(Path(__file__).resolve().parent / "providers" / "{arch}" / "jit_cache")
'''
_PROVIDER_TEXT = '''\
"""FlashInfer's kernels, compiled ahead of time for {arch}."""

import json
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def get_provider():
    """Return the architecture and the modules of this package, and their folder."""
    stated = json.loads((_FOLDER / "manifest.json").read_text())
    return {{**stated, "jit_cache_dir": str(_FOLDER / "jit_cache")}}
'''


def is_companion(filename: str) -> bool:
    """Tell if a wheel of that name is a companion."""
    return filename.startswith(f"{_SHIM}_sm")


def architecture_name(target: Target) -> str:
    """Return the target's architecture as FlashInfer writes it: ``sm121a``."""
    return target.sm.replace("_", "")


def project_for(target: Target) -> str:
    """Return the project of a companion for *target*, which is FlashInfer's name for such a provider."""
    return f"{PROJECT}-{architecture_name(target)}"


def companion_version(flashinfer: str, cuda: str, record: Mapping[str, Any]) -> str:
    """Return the version of a companion: FlashInfer's, with CUDA and content after the plus.

    Another *record* of what it holds and was made from gives another version: a published file never changes.
    """
    # A letter in front: a part of digits alone would be a number to PEP 440, and lose its zeros.
    return f"{flashinfer}+cu{cuda.replace('.', '')}.k{digest_of(record)[:_DIGEST_DIGITS]}"


def package_files(version: str, target: Target, names: Iterable[str]) -> dict[str, bytes]:
    """Return the members by which FlashInfer finds the modules *names*, without the metadata.

    They state the version without its content, which is that of FlashInfer's own packages: it passes over a
    provider of another one.
    """
    arch, stated = architecture_name(target), version.rpartition(".k")[0]
    manifest = {
        "schema_version": 1,
        "provider_id": arch,
        "distribution": project_for(target),
        "version": stated,
        "cuda_architectures": [arch],
        "modules": sorted(names),
    }
    folder = _folder(target)
    return {
        f"{_SHIM}/__init__.py": _SHIM_TEXT.format(version=stated, arch=arch).encode(),
        f"{folder}/__init__.py": _PROVIDER_TEXT.format(arch=arch).encode(),
        f"{folder}/manifest.json": to_json(manifest),
    }


def entry_points_of(target: Target) -> bytes:
    """Return the metadata by which the provider is found."""
    arch = architecture_name(target)
    package = _folder(target).replace("/", ".")
    return f"[flashinfer.jit_cache.providers]\n{arch} = {package}:get_provider\n".encode()


def _folder(target: Target) -> str:
    return f"{_SHIM}/providers/{architecture_name(target)}"


def member_of(name: str, target: Target) -> str:
    """Return the member of the wheel for the module *name*."""
    return f"{_folder(target)}/jit_cache/{name}/{name}.so"


# Bill of materials -----------------------------------------------------------------------------------


_SOURCES = {"flashinfer": "flashinfer-python", "tvm_ffi": "apache-tvm-ffi"}
"""Projects whose wheels are compiled from, by their keys in a record."""


def companion_bill(record: Mapping[str, Any], version: str) -> bytes:
    """Return the bill of materials of the companion with this *record*, as canonical JSON.

    The primary component is the wheel. The others are FlashInfer's wheel, whose sources are compiled, that
    of tvm_ffi, whose headers they include, every module, and the packages of the toolchain.
    """
    from cyclonedx.model.component import Component, ComponentScope, ComponentType

    from sparkwright.wheel.sbom import bill_of, package_url, sha256_hash

    target = Target(**record["target"])
    wheel = Component(
        name=project_for(target), version=version, type=ComponentType.LIBRARY, bom_ref="wheel",
        purl=package_url(project_for(target), version),
    )  # fmt: skip
    modules = [
        Component(
            name=member_of(name, target), version=version, type=ComponentType.FILE, bom_ref=f"binary:{name}",
            hashes=sha256_hash(one["sha256"]),
        )
        for name, one in sorted(record["modules"].items())
    ]  # fmt: skip
    inputs = [
        Component(
            name=one["filename"], version=one["version"], type=ComponentType.FILE, bom_ref=ref,
            purl=package_url(project, one["version"], file_name=one["filename"]),
            hashes=sha256_hash(one["sha256"]),
        )
        for ref, project in _SOURCES.items()
        for one in [record[ref]]
    ]  # fmt: skip
    inputs += [
        Component(
            name=filename, type=ComponentType.APPLICATION, bom_ref=f"package:{filename}",
            scope=ComponentScope.EXCLUDED, hashes=sha256_hash(sha256),
        )
        for filename, sha256 in sorted(record["toolchain"]["packages"].items())
    ]  # fmt: skip
    made, of = ([str(one.bom_ref.value) for one in parts] for parts in (modules, inputs))
    needed = {"wheel": made, **dict.fromkeys(made, of)}
    return bill_of(uuid5(NAMESPACE_URL, digest_of(record)), wheel, [*modules, *inputs], needed)


# Packing ---------------------------------------------------------------------------------------------


RECORD, ENTRY_POINTS = "sparkwright/companion.json", "entry_points.txt"
"""Names in the wheel's metadata folder."""
_OLDEST_PLATFORM = "manylinux_2_28"
_WHEEL = ("Wheel-Version: 1.0", "Generator: sparkwright", "Root-Is-Purelib: false")


@dataclass(frozen=True)
class CompiledModule:
    """A finished library in the store.

    Attributes:
        sha256: digest of the file.
        arches: number of units that compile to each device code, such as ``sm_121a``.
    """

    name: str
    sha256: str
    size: int
    arches: Mapping[str, int]


@dataclass(frozen=True)
class CompanionWheel:
    """A finished wheel.

    Attributes:
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
        cuda: version of the toolkit that compiled the modules, ``major.minor``.
        record: what they were made from, JSON-ready.
        licences: licence texts of FlashInfer's wheel by file name.
    """

    spec: CompanionSpec
    target: Target
    cuda: str
    modules: Mapping[str, CompiledModule]
    record: Mapping[str, Any]
    licences: Mapping[str, bytes]


class _Source(msgspec.Struct):
    version: str
    filename: str
    sha256: str


class _Toolchain(msgspec.Struct):
    packages: dict[str, str]


class _Module(msgspec.Struct):
    listed: str
    sha256: str
    size: int
    arches: dict[str, int]


class _Record(msgspec.Struct):
    """The parts of a companion's record that are read."""

    flashinfer: _Source
    tvm_ffi: _Source
    recipes: dict[str, list[str]]
    tree: str
    target: Target
    toolchain: _Toolchain
    modules: dict[str, _Module]


def read_companion(wheel: Path) -> dict[str, Any]:
    """Return the record of a companion.

    Raises:
        ArchiveError: it is damaged or an unsafe archive.
        WheelError: it is no companion, or one of an earlier form.
    """
    name = parse_name(wheel.name)
    with open_archive(wheel) as archive:
        data = archive.read(f"{name.dist_info}/{RECORD}")
    try:
        record = decode_json(data, dict[str, Any])
        convert(record, _Record)
    except msgspec.MsgspecError as error:
        raise WheelError(
            f"{wheel.name} has no complete record", because=clean(str(error), 300),
            next_step="build it again: sparkwright companion",
        ) from error  # fmt: skip
    return record


def write_companion(store: Store, content: CompanionContent, out: Path) -> CompanionWheel:
    """Write the wheel of *content* into the folder *out*.

    Raises:
        WheelError: the version or the platform cannot be in its name.
        StorageError: the disk is full or cannot be written.
    """
    modules = [content.modules[name] for name in sorted(content.modules)]
    version = companion_version(content.spec.version, content.cuda, content.record)
    versions = [read_elf(store.file_path(one.sha256)).versions for one in modules]
    platform = honest_platform(f"{_OLDEST_PLATFORM}_{content.target.machine}", versions)
    name = WheelName(project_for(content.target).replace("-", "_"), version, "", "py3", "none", platform)
    entries = _entries(store, content, name, modules)
    with storing(f"writing {name.filename}"), atomic_file(out / name.filename) as descriptor:
        sha256 = write_parts(layout(entries), descriptor)
        size = os.fstat(descriptor).st_size
    emit("companion.written", filename=name.filename, sha256=sha256, size=size)
    return CompanionWheel(out / name.filename, version, sha256, size, tuple(one.name for one in modules))


def _entries(
    store: Store, content: CompanionContent, name: WheelName, modules: Sequence[CompiledModule]
) -> list[Packed | Stored]:
    """Return the members: the package, its kernels, the metadata, RECORD last."""
    info, target = name.dist_info, content.target
    files = package_files(name.version, target, [one.name for one in modules])
    top = [Stored(path, text) for path, text in files.items()]
    stored = [
        Stored(f"{info}/METADATA", _metadata(content.spec, target, name.version)),
        Stored(
            f"{info}/WHEEL", ("\n".join([*_WHEEL, *(f"Tag: {tag}" for tag in name.tags)]) + "\n").encode()
        ),
        Stored(f"{info}/{ENTRY_POINTS}", entry_points_of(target)),
        *(Stored(f"{info}/licenses/{file}", text) for file, text in sorted(content.licences.items())),
        Stored(f"{info}/{RECORD}", to_json(content.record)),
        Stored(f"{info}/{SBOM}", companion_bill(content.record, name.version)),
    ]
    packed = [_packed(store, target, one) for one in modules]
    lines = [entry_of(one.name, one.content) for one in top]
    lines += [
        entry_from_digest(entry.name, bytes.fromhex(one.sha256), one.size)
        for entry, one in zip(packed, modules, strict=True)
    ]
    lines += [entry_of(one.name, one.content) for one in stored]
    record = f"{info}/RECORD"
    return [*top, *packed, *stored, Stored(record, format_record([*lines, RecordEntry(record)]))]


def _packed(store: Store, target: Target, module: CompiledModule) -> Packed:
    data = deflated_in(store, module.sha256).read_bytes()
    crc = zlib.crc32(store.file_path(module.sha256).read_bytes())
    return Packed(member_of(module.name, target), data, crc, module.size, executable=True)


def _metadata(spec: CompanionSpec, target: Target, version: str) -> bytes:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project_for(target)}",
        f"Version: {version}",
        "Summary: Kernels of FlashInfer, compiled ahead of time for one card by sparkwright",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.10",
        f"Requires-Dist: flashinfer-python=={spec.version}",
    ]
    return ("\n".join(lines) + "\n").encode()


# Choosing one for an environment ---------------------------------------------------------------------


@dataclass(frozen=True)
class FoundCompanion:
    """The companion that holds most of the needed modules.

    Attributes:
        missing: the list's names of needed modules that it lacks.
    """

    wheel: Path
    missing: tuple[str, ...] = ()


def companion_for(
    wheels: Iterable[Path],
    flashinfer: str,
    target: Target,
    needed: Callable[[Mapping[str, Any]], Sequence[str]],
) -> FoundCompanion | None:
    """Return the wheel among *wheels* that holds most modules, the smallest; `None` if none has any.

    Args:
        wheels: any wheels; what is no companion, or damaged, is passed over.
        flashinfer: version of FlashInfer in the environment.
        target: machine and card of the environment.
        needed: returns the list's names of the modules that are needed, given a companion's record.
    """
    found = []
    for wheel in wheels:
        with contextlib.suppress(SparkwrightError, OSError):
            if is_companion_for(wheel.name, flashinfer, target):
                record = read_companion(wheel)
                names, listed = needed(record), {one["listed"] for one in record["modules"].values()}
                if not listed.isdisjoint(names):
                    found.append(FoundCompanion(wheel, tuple(name for name in names if name not in listed)))
    return min(
        found, key=lambda one: (len(one.missing), one.wheel.stat().st_size, one.wheel.name), default=None
    )


def is_companion_for(filename: str, flashinfer: str, target: Target) -> bool:
    """Tell if a wheel of that name is a companion of FlashInfer's version for *target*."""
    if not is_companion(filename):
        return False
    name = parse_name(filename)
    found = (name.distribution.replace("_", "-"), name.version.partition("+")[0], name.machine)
    return found == (project_for(target), flashinfer, target.machine)


def needed_by(record: Mapping[str, Any], recipe: str) -> tuple[str, ...]:
    """Return the list's names of the modules that *recipe* needs, by a companion's *record*.

    One that it does not know needs what every recipe does.
    """
    needs = record["recipes"]
    return tuple(needs.get(recipe, needs.get("*", ())))
