"""Make a companion: compile, pack, audit, in one call."""

from __future__ import annotations

from pathlib import Path

from sparkwright.base.events import emit
from sparkwright.companion.build import CompanionJob, compile_kernels
from sparkwright.companion.inspection import CompanionAudit, audit_companion
from sparkwright.companion.model import CompanionSpec
from sparkwright.companion.wheel import CompanionContent, CompanionWheel, record_of, write_companion
from sparkwright.lock.check import require_native
from sparkwright.lock.model import Lock
from sparkwright.lock.native import named
from sparkwright.native.inspection import Surroundings, inspector_of
from sparkwright.native.packages import unpack_package
from sparkwright.upstream.releases import Access
from sparkwright.wheel.names import parse_name

_RUNTIME = "cuda-runtime"
"""The lock's name of the only library of CUDA that FlashInfer's modules are linked against."""


def make_companion(job: CompanionJob, out: Path) -> tuple[CompanionWheel, CompanionAudit]:
    """Return the companion of *job* in the folder *out*, and the audit that it passed.

    Raises:
        AuditError: it failed its audit; it is removed.
        SparkwrightError: see `compile_kernels` and `write_companion`.
    """
    kernels = compile_kernels(job)
    content = CompanionContent(
        spec=job.spec,
        target=job.target,
        cuda=require_native(job.lock).toolkit.cuda,
        modules=kernels.modules,
        record=record_of(kernels, job.spec, job.target),
        licences=_licences(job.access, job.spec),
    )
    wheel = write_companion(job.access.store, content, out)
    audit = audited(job.access, job.lock, job.spec, wheel.path)
    emit("companion.audited", filename=audit.filename, checks={one.name: one.verdict for one in audit.checks})
    try:
        audit.require()
    except Exception:
        wheel.path.unlink(missing_ok=True)
        raise
    return wheel, audit


def audited(access: Access, lock: Lock, spec: CompanionSpec, wheel: Path) -> CompanionAudit:
    """Return the audit of *wheel*, against the CUDA runtime and the ``apache-tvm-ffi`` of its machine.

    Raises:
        ArchiveError: it is damaged.
        WheelError: it is no companion.
        UnknownNameError: the lock or the list lacks its machine.
        SparkwrightError: a package cannot be fetched.
    """
    native = require_native(lock)
    machine = parse_name(wheel.name).machine
    runtime = named(native.toolkit.target, machine, "libraries for the target")
    folders = [unpack_package(access, package) for name, package in runtime.items() if name == _RUNTIME]
    folders.append(unpack_package(access, spec.tvm_ffi_for(machine)))
    libraries = [lib for folder in folders for lib in sorted(folder.glob("**/lib")) if lib.is_dir()]
    surroundings = Surroundings.of(libraries, native.toolkit.link_only)
    return audit_companion(wheel, inspector_of(native, access), surroundings)


def _licences(access: Access, spec: CompanionSpec) -> dict[str, bytes]:
    """Return the licence texts of FlashInfer's wheel, which the compiled sources are under."""
    folder = unpack_package(access, spec.flashinfer)
    found = sorted(folder.glob("flashinfer_python-*.dist-info/licenses/**/*"))
    return {path.name: path.read_bytes() for path in found if path.is_file()}
