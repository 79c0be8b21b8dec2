"""Compare ``upstream.lock`` with the files of the release, and its ``[native]`` tables with the rest.

Nothing in it is taken on trust. No file of the release repeats ``[native]``, so that is compared with the
rest of the lock and itself, and the versions of the CUDA packages with the requirements of torch and of
CUDA's own release package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from typing import Any, NamedTuple

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import ConfigError, LockMismatchError
from sparkwright.lock.model import Lock, NativePin, Package
from sparkwright.lock.statements import ReleaseEvidence, Statement, statements


class LockFinding(NamedTuple):
    """One disagreement between the lock and the release.

    Attributes:
        witness: the file that states it, or should.
        because: the reason, where there is no other value to show.
    """

    key: str
    locked: str | None
    released: str | None
    witness: str
    because: str = ""

    def __str__(self) -> str:
        locked = "the lock has no value" if self.locked is None else f"the lock has {self.locked}"
        if self.because:
            return f"{self.key}: {locked}, but {self.because}"
        released = "no value is stated" if self.released is None else f"{self.released} is stated"
        return f"{self.key}: {locked}, but {released} by {self.witness}"


def check(lock: Lock, evidence: ReleaseEvidence) -> list[LockFinding]:
    """Return every disagreement, in the order of the lock's keys; empty when the lock is right.

    A key that nothing in *evidence* states is a disagreement too: it was not verified.
    """
    locked = flatten(lock)
    findings: list[LockFinding] = []
    stated: set[str] = set()
    for statement in statements(evidence):
        stated.add(statement.key)
        value = locked.get(statement.key)
        if value is None or not agrees(statement, value):
            findings.append(LockFinding(statement.key, value, statement.value, statement.witness))
    findings += [
        LockFinding(key, value, None, f"{evidence.name} or the wheels that were read")
        for key, value in locked.items()
        if key not in stated
    ]
    order = {key: number for number, key in enumerate(locked)}
    return sorted(findings, key=lambda finding: order.get(finding.key, len(order)))


def unconfirmed(lock: Lock, evidence: ReleaseEvidence) -> str:
    """Return the last digits of the commit, which nothing states: a release abbreviates its own."""
    stated = [one.value for one in statements(evidence) if one.key == "release.commit" and one.value]
    commit = lock.release.commit
    return commit[max((len(value) for value in stated if commit.startswith(value)), default=0) :]


def disagreement(findings: Sequence[LockFinding]) -> LockMismatchError:
    """Return the error that lists *findings*."""
    return LockMismatchError(
        "the lock and the release disagree",
        because="; ".join(str(finding) for finding in findings),
        next_step="sparkwright lock bump VERSION writes the values of the release",
    )


def flatten(lock: Lock) -> dict[str, str]:
    """Return the lock's values by dotted key, without those that no release states anything about.

    These are ``format``, ``series``, ``[rehearsal]`` and ``[native]``, for which see `check_native`.
    """
    unstated = {"format", "series", "native", "rehearsal"}
    return dict(_walk("", {key: value for key, value in to_builtins(lock).items() if key not in unstated}))


def _walk(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(f"{prefix}.{key}" if prefix else key, inner)
    else:
        yield prefix, str(value)


def agrees(statement: Statement, locked: str) -> bool:
    """Tell if *statement* and the lock's value *locked* mean the same."""
    value = statement.value
    if value is None:
        return False
    same = _COMPARISONS.get(statement.key)
    return same(locked, value) if same else locked == value


def _plain_address(address: str) -> str:
    return address.rstrip("/").removesuffix(".git").lower()


def same_version(one: str, other: str) -> bool:
    """Tell if two versions are equal by PEP 440, as 13.0.3 and 13.0.3.0 are."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False


def _same_specifiers(one: str, other: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(one) == SpecifierSet(other)
    except InvalidSpecifier:
        return False


# Keys whose values may be equal although their text differs.
_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "release.commit": lambda one, other: one.startswith(other) or other.startswith(one),  # abbreviated
    "release.git": lambda one, other: _plain_address(one) == _plain_address(other),
    "release.requires-python": _same_specifiers,
    "release.version": same_version,
}


# The [native] tables ------------------------------------------------------------------------------

CUDA_RELEASE = "cuda-toolkit"
"""The project whose releases pin the versions of CUDA's packages; torch pins one of them."""


@dataclass(frozen=True)
class CudaEvidence:
    """The metadata of the packages that pin CUDA's version.

    Attributes:
        release: METADATA of the package that ``native.toolkit.release`` names.
    """

    torch: bytes
    release: bytes


def require_native(lock: Lock) -> NativePin:
    """Return the ``[native]`` tables, if they are for the pinned release."""
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
    findings = [*_packages(lock, native), *_sources(lock, native), *_extensions(native)]
    if native.release != lock.release.version:
        other = LockFinding("native.release", native.release, lock.release.version, "release.version")
        findings.insert(0, other)
    return findings + (list(_cuda(native, evidence)) if evidence else [])


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
