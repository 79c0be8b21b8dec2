"""Make a companion: compile, pack, audit, in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright.base.events import emit
from sparkwright.companion.build import compile_kernels
from sparkwright.companion.inspection import audit_companion
from sparkwright.companion.wheel import CompanionContent, record_of, write_companion
from sparkwright.lock import require_native
from sparkwright.native.inspection import Surroundings, inspector_of, surroundings_of
from sparkwright.native.packages import unpack_package

if TYPE_CHECKING:
    from pathlib import Path

    from sparkwright.companion.build import CompanionJob
    from sparkwright.companion.inspection import CompanionAudit
    from sparkwright.companion.model import CompanionSpec
    from sparkwright.companion.wheel import CompanionWheel
    from sparkwright.upstream import Access


@dataclass(frozen=True)
class MadeCompanion:
    """A finished companion and its audit, which it passed."""

    wheel: CompanionWheel
    audit: CompanionAudit


def make_companion(job: CompanionJob, out: Path) -> MadeCompanion:
    """Return the companion of *job* in the folder *out*, audited.

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
    native = require_native(job.lock)
    base = surroundings_of(native, kernels.toolchain)
    surroundings = companion_surroundings(job.access, job.spec, job.target.machine, base)
    audit = audit_companion(wheel.path, inspector_of(native, job.access), surroundings)
    emit("companion.audited", filename=audit.filename, checks={one.name: one.verdict for one in audit.checks})
    try:
        audit.require()
    except Exception:
        wheel.path.unlink(missing_ok=True)
        raise
    return MadeCompanion(wheel, audit)


def companion_surroundings(
    access: Access, spec: CompanionSpec, machine: str, base: Surroundings
) -> Surroundings:
    """Return *base*, the CUDA runtime of *machine*, with the libraries of ``apache-tvm-ffi``."""
    folder = unpack_package(access, spec.tvm_ffi_for(machine)) / "tvm_ffi" / "lib"
    found = {path.name: path for path in sorted(folder.glob("*.so*"))}
    return Surroundings({**base.libraries, **found}, base.link_only)


def _licences(access: Access, spec: CompanionSpec) -> dict[str, bytes]:
    """Return the licence texts of FlashInfer's wheel, which the compiled sources are under."""
    folder = unpack_package(access, spec.flashinfer)
    found = sorted(folder.glob("flashinfer_python-*.dist-info/licenses/**/*"))
    return {path.name: path.read_bytes() for path in found if path.is_file()}
