"""Every step from a build spec to a published wheel, in order."""

from __future__ import annotations

from sparkwright.pipeline.assembly import Assemble, Audit, FetchStockWheel
from sparkwright.pipeline.binaries import ChooseBinaries
from sparkwright.pipeline.job import Job
from sparkwright.pipeline.kernels import CompileExtension, GatherSources, PrepareToolchain
from sparkwright.pipeline.placing import Place, Publish
from sparkwright.pipeline.proofs import Prove
from sparkwright.pipeline.step import Step
from sparkwright.pipeline.trees import Merge, PristineTree


def steps_for(job: Job) -> list[Step]:
    """Return the steps of *job*, in order; *native* ones only if kernels are compiled."""
    native = job.native is not None
    extensions = job.native.extensions if job.native is not None else {}
    steps: list[Step | None] = [
        PristineTree(),  # put upstream's tree at the pin into the object store, verified against the lock
        GatherSources() if native else None,  # fetch the sources that upstream's CMake project would download
        Merge(),  # merge every carry onto the pristine tree, and onto those sources
        *(Prove(carry) for carry in job.spec.carries),  # show that each carry is needed and works
        PrepareToolchain() if native else None,  # lay out compilers, headers and libraries
        *(CompileExtension(name) for name in extensions),  # compile and link
        FetchStockWheel(),  # fetch upstream's wheel, the origin of unchanged files and binaries
        ChooseBinaries() if native else None,  # decide which binaries are compiled, upstream's or left out
        Assemble(),  # write the wheel into the store
        Audit(),  # compare it with upstream's wheel and with the merge
        Place(),  # copy it into the user's folder
        Publish(),  # index every wheel in that folder
    ]
    return [step for step in steps if step is not None]
