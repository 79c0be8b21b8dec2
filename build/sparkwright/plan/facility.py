"""What probes of how kernels are compiled get: CMake, ready to configure the tree under test."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.canonical import digest_of
from sparkwright.config import to_builtins
from sparkwright.native.model import WORK, Target
from sparkwright.plan.job import needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkwright.lock.native import NativePin
    from sparkwright.native.model import Toolchain
    from sparkwright.plan.job import Job
    from sparkwright.probe import Facility

__all__ = ["ToolchainFacility", "facilities_of"]


def facilities_of(job: Job) -> dict[str, Facility]:
    """What probes of *job*'s carries may ask for, by name; nothing where the lock has no toolchain."""
    return {} if job.point.lock.native is None else {"toolchain": ToolchainFacility(job)}


@dataclass(frozen=True)
class ToolchainFacility:
    """The toolchain of a native build, described for a probe; see `sparkwright.probe.facility`.

    Attributes:
        job: whose lock, platform and store are used.
    """

    job: Job

    @property
    def _pin(self) -> NativePin:
        return needed(self.job.point.lock.native)

    @property
    def _target(self) -> Target:
        return Target(self.job.options.platform, self.job.point.arch or self._pin.arch)

    @property
    def key(self) -> str:
        """Digest of what configuring is done with and for; sources count by what they are, had or not."""
        sources = {name: pin.tree for name, pin in self._pin.sources.items()}
        return digest_of(
            {"toolkit": to_builtins(self._pin.toolkit), "arch": self._pin.arch, "sources": sources}
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """The parts of upstream's tree that CMake reads."""
        from sparkwright.native.workspace import CMAKE_INPUTS

        return CMAKE_INPUTS

    @cached_property
    def _toolchain(self) -> Toolchain:
        from sparkwright.native.toolchain import prepare_toolchain

        job = self.job
        return prepare_toolchain(job.point.lock, self._target, job.access, system=job.options.compiling.cuda)

    def describe(self) -> Mapping[str, Any]:
        """CMake's command and all that it needs; the toolchain and the sources are brought here first."""
        from sparkwright.native.configure import TOOLCHAIN_FILE, configure_command
        from sparkwright.native.toolchain import configure_environment, toolchain_file

        chain, work = self._toolchain, Path(WORK)
        links = {"cuda": chain.cuda, "torch": chain.torch, "python": chain.python_include}
        return {
            "arch": self._pin.arch,
            "argv": configure_command(chain, WORK),
            "environment": configure_environment(chain, self._target, work, self.job.point.lock),
            "files": {f"build/{TOOLCHAIN_FILE}": toolchain_file(chain, self._target, work)},
            "links": {name: str(path) for name, path in {**links, **self._sources()}.items()},
        }

    def _sources(self) -> dict[str, Path]:
        """A folder for each dependency's source: the real one where it can be had."""
        from sparkwright.native.sources import gather_sources
        from sparkwright.probe.trees import tree_folder

        job, pins = self.job, self._pin.sources
        found = gather_sources(job.point.lock, job.access)
        return {
            f"deps/{name}": tree_folder(job.store, job.repository, source.tree, under="")
            for name, source in found.items()
            if not pins[name].mount  # inside another one, where nothing is read when configuring
        }

    def versions(self) -> Mapping[str, str]:
        """Versions that matter to a verdict."""
        parts = self._toolchain.parts
        return {name: parts[name] for name in ("cmake", "nvcc", "torch") if name in parts}
