"""The steps to native kernels: toolchain, dependencies' sources, and each extension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sparkwright.canonical import digest_of
from sparkwright.config import to_builtins
from sparkwright.errors import MissingSourceError
from sparkwright.plan.job import needed

if TYPE_CHECKING:
    from sparkwright.lock.native import ExtensionSpec, NativePin
    from sparkwright.native.model import Inputs, SourceTree
    from sparkwright.plan.job import Job, Known
    from sparkwright.plan.steps import Step

__all__ = ["kernel_steps"]


def kernel_steps(job: Job) -> list[Step]:
    """The steps between the merge and the assembly; none where upstream's kernels are taken."""
    if job.native is None:
        return []
    extensions = [CompileExtension(name, spec) for name, spec in job.native.extensions.items()]
    return [PrepareToolchain(), GatherSources(), *extensions]


@dataclass(frozen=True)
class PrepareToolchain:
    """Compilers, headers and libraries, ready to be used."""

    name: ClassVar[str] = "toolchain"

    def key(self, job: Job, known: Known) -> str | None:
        del known
        native = needed(job.native)
        target = [job.target.machine, str(job.options.system_cuda or "")]
        return digest_of([to_builtins(native.toolkit), job.point.lock.release.torch, target])

    def find(self, job: Job, known: Known) -> bool:
        from sparkwright.native.toolchain import find_toolchain

        known.toolchain = find_toolchain(job.point.lock, job.target, job.access, system=job.options.system_cuda)
        return known.toolchain is not None

    def make(self, job: Job, known: Known) -> None:
        from sparkwright.native.toolchain import prepare_toolchain

        known.toolchain = prepare_toolchain(
            job.point.lock, job.target, job.access, system=job.options.system_cuda
        )


@dataclass(frozen=True)
class GatherSources:
    """The sources that upstream's project would download, by content."""

    name: ClassVar[str] = "dependencies' sources"

    def key(self, job: Job, known: Known) -> str | None:
        del known
        pins = {name: pin.tree for name, pin in needed(job.native).sources.items()}
        return digest_of([pins, [carry.content_digest for carry in job.source_carries]])

    def find(self, job: Job, known: Known) -> bool:
        from sparkwright.native.sources import find_sources

        known.sources = find_sources(job.point.lock, job.access)
        return known.sources is not None

    def make(self, job: Job, known: Known) -> None:
        from sparkwright.native.sources import gather_sources

        known.sources = gather_sources(job.point.lock, job.access)
        if job.options.require_native:
            _refuse_missing(needed(job.native), known.sources)


def _refuse_missing(native: NativePin, sources: dict[str, SourceTree]) -> None:
    lost = {
        name: reasons
        for name, spec in native.extensions.items()
        if (reasons := why_not_compiled(spec, sources))
    }
    if lost:
        raise MissingSourceError(
            f"{', '.join(lost)} cannot be compiled",
            because="; ".join(sorted(set(lost.values()))),
            next_step="name a copy of the source in the variable that the message gives, or leave out "
            "--require-native: upstream's binary is taken then, and named so",
        )
