"""Compare the lock's ``[native]`` tables with the pinned release and with each other.

No file of the release repeats them, so they are compared with the rest of the lock, and the versions of
the CUDA packages with the requirements of torch and of CUDA's own release package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import BytesHeaderParser

from sparkwright.base.errors import ConfigError, LockMismatchError
from sparkwright.lock.check import LockFinding, same_version
from sparkwright.lock.model import Lock
from sparkwright.lock.native import NativePin, Package

CUDA_RELEASE = "cuda-toolkit"
"""The project whose releases pin the versions of CUDA's packages; torch pins one of them."""


@dataclass(frozen=True)
class CudaEvidence:
    """The metadata of the packages that pin CUDA's version.

    Attributes:
        torch: METADATA of the pinned torch.
        release: METADATA of the package that ``native.toolkit.release`` names.
    """

    torch: bytes
    release: bytes


def require_native(lock: Lock) -> NativePin:
    """Return the ``[native]`` tables, if they are for the pinned release.

    Raises:
        ConfigError: there are none.
        LockMismatchError: they are for another release.
    """
    if lock.native is None:
        raise ConfigError(
            "kernels cannot be compiled", because="the lock has no [native] tables",
            next_step="take upstream's kernels, or write those tables: see docs/formats.md",
        )  # fmt: skip
    if lock.native.release != lock.release.version:
        raise LockMismatchError(
            "the [native] tables of the lock are for another release",
            because=f"they are for {lock.native.release}, and {lock.release.version} is pinned",
            next_step="take upstream's kernels, or update the tables: sparkwright lock check lists them",
        )
    return lock.native


def check_native(lock: Lock, evidence: CudaEvidence | None = None) -> list[LockFinding]:
    """Return every contradiction of the ``[native]`` tables with the lock, themselves or *evidence*."""
    native = lock.native
    if native is None:
        return []
    findings = [
        *_release(lock, native),
        *_packages(lock, native),
        *_sources(lock, native),
        *_extensions(native),
    ]
    return findings + (list(_cuda(native, evidence)) if evidence else [])


def _release(lock: Lock, native: NativePin) -> Iterator[LockFinding]:
    if native.release != lock.release.version:
        yield LockFinding("native.release", native.release, lock.release.version, "release.version")


def _tables(native: NativePin) -> Iterator[tuple[str, str, str, Package]]:
    """Yield the key in the lock, the machine, the name and the package of each."""
    for kind, tables in (("builder", native.toolkit.builder), ("target", native.toolkit.target)):
        for machine, packages in tables.items():
            for name, package in packages.items():
                yield f"native.toolkit.{kind}.{machine}.{name}", machine, name, package


def _packages(lock: Lock, native: NativePin) -> Iterator[LockFinding]:
    for machine in [machine for machine, table in native.toolkit.target.items() if "torch" not in table]:
        yield LockFinding(f"native.toolkit.target.{machine}.torch", None, lock.release.torch, "release.torch")
    for key, machine, name, package in _tables(native):
        platform = package.filename.removesuffix(".whl").rpartition("-")[2]
        if platform != "any" and not all(tag.endswith(machine) for tag in platform.split(".")):
            yield LockFinding(f"{key}.filename", package.filename, machine, "the table that it is in")
        if name == "torch" and package.version != lock.release.torch:
            yield LockFinding(f"{key}.filename", package.version, lock.release.torch, "release.torch")


def _sources(lock: Lock, native: NativePin) -> Iterator[LockFinding]:
    for name in sorted(lock.sources.keys() - native.sources.keys()):
        yield LockFinding(f"native.sources.{name}", None, name, "[sources]: CMake would download it")
    for name, pin in native.sources.items():
        key, declared = f"native.sources.{name}", lock.sources.get(name)
        if declared is not None and pin.ref != declared.ref:
            yield LockFinding(f"{key}.ref", pin.ref, declared.ref, f"sources.{name}.ref")
        if declared is None and not (pin.repository and pin.mount):
            yield LockFinding(key, name, None, "[sources], and it names no repository and mount")
        host = pin.mount.partition(":")[0]
        if host and host not in native.sources:
            yield LockFinding(f"{key}.mount", pin.mount, None, "[native.sources]")
        elif host in lock.sources and lock.sources[host].ref != native.sources[host].ref:
            yield LockFinding(
                f"{key}.ref", pin.ref, None, f"sources.{host}",
                f"its parent source {host} moved; look up the new submodule commit",
            )  # fmt: skip


def _extensions(native: NativePin) -> Iterator[LockFinding]:
    # A source with paths and no tree could not be reached yet; `NativePin.unreached` lists those.
    compiled = {name for name, pin in native.sources.items() if pin.tree is not None or pin.paths}
    for name, spec in native.extensions.items():
        for source in sorted(set(spec.sources) - compiled):
            yield LockFinding(
                f"native.extensions.{name}.sources", source, None, "[native.sources] with a tree or paths"
            )


def _cuda(native: NativePin, evidence: CudaEvidence) -> Iterator[LockFinding]:
    pinned = exact_pins(evidence.torch).get(CUDA_RELEASE)
    toolkit = native.toolkit
    if pinned is None or not same_version(pinned, toolkit.release.version):
        yield LockFinding(
            "native.toolkit.release.filename", toolkit.release.version, pinned, "torch's METADATA"
        )
    if pinned is None or not pinned.startswith(f"{toolkit.cuda}."):
        yield LockFinding("native.toolkit.cuda", toolkit.cuda, pinned, "torch's METADATA")
    pins = exact_pins(evidence.release)
    for key, _, _, package in _tables(native):
        pin = pins.get(package.project.replace("_", "-"))
        if pin is not None and not f"{package.version}.".startswith(f"{pin.removesuffix('.*')}."):
            yield LockFinding(
                f"{key}.filename", package.version, pin, f"the METADATA of {toolkit.release.filename}"
            )


def exact_pins(metadata: bytes) -> dict[str, str]:
    """Return project to version, for each ``Requires-Dist`` with ``==`` in *metadata* (PEP 566)."""
    headers = BytesHeaderParser().parsebytes(metadata).get_all("Requires-Dist", [])
    found = (re.match(r"([\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?==\s*([^;,)\s]+)", header) for header in headers)
    return {match[1].lower(): match[2] for match in found if match}
