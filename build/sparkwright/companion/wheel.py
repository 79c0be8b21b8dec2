"""A companion's wheel: the same modules give the same bytes.

The package ``flashinfer_jit_cache`` has the two forms in which FlashInfer asks an installed one for kernels:
up to 0.6 it asks for a folder, later for providers with architectures and names of modules. Either looks for
``NAME/NAME.so`` there, and refuses a package whose version does not start with its own.
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

from sparkwright.base.digests import digest_of, to_json
from sparkwright.base.errors import SparkwrightError, WheelError
from sparkwright.base.events import emit
from sparkwright.companion.model import CompanionSpec
from sparkwright.native.elf import honest_platform, read_elf
from sparkwright.native.model import Target
from sparkwright.store.disk import atomic_file, storing
from sparkwright.store.paths import Store
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.kernels import read_json
from sparkwright.wheel.names import WheelName, parse_name
from sparkwright.wheel.recorded import SBOM
from sparkwright.wheel.rewrite import Packed, Stored, deflated_in, layout, write_parts
from sparkwright.wheel.source import RecordEntry, entry_from_digest, entry_of, format_record

PROJECT = "flashinfer-jit-cache"
PACKAGE = "flashinfer_jit_cache"
FOLDER = f"{PACKAGE}/kernels"
_DIGEST_DIGITS = 8

_TEXT = '''\
"""FlashInfer's kernels, compiled ahead of time for {arch}; FlashInfer finds them by this package's name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__version__ = "{version}"

_FOLDER = Path(__file__).resolve().parent / "kernels"
_MODULES = (
{modules})


@dataclass(frozen=True)
class JitCacheProvider:
    """A set of finished modules for some architectures."""

    provider_id: str
    distribution: str
    version: str
    jit_cache_dir: str
    cuda_architectures: tuple[str, ...]
    modules: tuple[str, ...]


def get_jit_cache_dir() -> str:
    """Return the folder of the modules."""
    return str(_FOLDER)


def get_jit_cache_providers() -> tuple[JitCacheProvider, ...]:
    """Return this package as the only provider."""
    return (
        JitCacheProvider(
            provider_id="{provider}",
            distribution="{project}",
            version=__version__,
            jit_cache_dir=str(_FOLDER),
            cuda_architectures=("{arch}",),
            modules=_MODULES,
        ),
    )
'''


def is_companion(filename: str) -> bool:
    """Tell if a wheel of that name is a companion."""
    return filename.startswith(f"{PACKAGE}-")


def architecture_name(target: Target) -> str:
    """Return the target's architecture as FlashInfer writes it: ``sm121a``."""
    return target.sm.replace("_", "")


def companion_version(flashinfer: str, cuda: str, target: Target, record: Mapping[str, Any]) -> str:
    """Return the version of a companion: FlashInfer's, with CUDA, architecture and content after the plus.

    Another *record* of what it holds and was made from gives another version: a published file never changes.
    """
    content = digest_of(record)
    # A letter in front: a part of digits alone would be a number to PEP 440, and lose its zeros.
    return f"{flashinfer}+cu{cuda.replace('.', '')}.{architecture_name(target)}.k{content[:_DIGEST_DIGITS]}"


def package_text(version: str, target: Target, names: Sequence[str]) -> bytes:
    """Return the package's only Python file."""
    arch = architecture_name(target)
    listed = "".join(f'    "{name}",\n' for name in sorted(names))
    return _TEXT.format(
        arch=arch, version=version, modules=listed, provider=f"sparkwright-{arch}", project=PROJECT
    ).encode()


def member_of(name: str) -> str:
    """Return the member of the wheel for the module *name*."""
    return f"{FOLDER}/{name}/{name}.so"


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

    wheel = Component(
        name=PROJECT, version=version, type=ComponentType.LIBRARY, bom_ref="wheel",
        purl=package_url(PROJECT, version),
    )  # fmt: skip
    modules = [
        Component(
            name=member_of(name), version=version, type=ComponentType.FILE, bom_ref=f"binary:{name}",
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
        for filename, sha256 in sorted(record.get("toolchain", {}).get("packages", {}).items())
    ]  # fmt: skip
    made, of = ([str(one.bom_ref.value) for one in parts] for parts in (modules, inputs))
    needed = {"wheel": made, **dict.fromkeys(made, of)}
    return bill_of(uuid5(NAMESPACE_URL, digest_of(record)), wheel, [*modules, *inputs], needed)


# Packing ---------------------------------------------------------------------------------------------


RECORD = "sparkwright/companion.json"
"""Name of the record in the wheel's metadata folder."""
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
    versions = [read_elf(store.file_path(one.sha256)).versions for one in modules]
    platform = honest_platform(f"{_OLDEST_PLATFORM}_{content.target.machine}", versions)
    name = WheelName(PACKAGE, version, "", "py3", "none", platform)
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
    info = name.dist_info
    names = [one.name for one in modules]
    stored = [
        Stored(f"{PACKAGE}/__init__.py", package_text(name.version, content.target, names)),
        Stored(f"{info}/METADATA", _metadata(content.spec, name.version)),
        Stored(
            f"{info}/WHEEL", ("\n".join([*_WHEEL, *(f"Tag: {tag}" for tag in name.tags)]) + "\n").encode()
        ),
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
        with contextlib.suppress(SparkwrightError, OSError, KeyError, TypeError, AttributeError):
            if is_companion_for(wheel.name, flashinfer, target):
                record = read_companion(wheel)
                names, listed = needed(record), {str(one["listed"]) for one in record["modules"].values()}
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
    public, _, local = name.version.partition("+")
    same = (public, name.machine) == (flashinfer, target.machine)
    return same and architecture_name(target) in local.split(".")


def needed_by(record: Mapping[str, Any], recipe: str) -> tuple[str, ...]:
    """Return the list's names of the modules that *recipe* needs, by a companion's *record*.

    One that it does not know needs what every recipe does.
    """
    needs = record["recipes"]
    return tuple(map(str, needs.get(recipe, needs["*"])))
