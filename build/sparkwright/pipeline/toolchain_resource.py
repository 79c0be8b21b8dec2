"""The toolchain and sources for probes of carries that change how kernels are compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError
from sparkwright.lock.model import Lock
from sparkwright.lock.native import NativePin
from sparkwright.upstream.releases import Access

# Part of the key: raised when the meaning of a described value changes.
_RULES = 1


@dataclass(frozen=True)
class ToolchainResource:
    """The toolchain that kernels are compiled with, ready for CMake; see `sparkwright.probe.setup`.

    Attributes:
        lock: the pin with its ``[native]`` tables.
        access: the store and network settings for packages and sources.
    """

    lock: Lock
    platform: str
    access: Access
    _versions: dict[str, str] = field(default_factory=dict)

    @property
    def _native(self) -> NativePin:
        if self.lock.native is None:
            raise ConfigError(
                "there is no toolchain",
                because="the lock has no [native] table, which names it",
                next_step="take upstream's kernels: --kernels upstream",
            )
        return self.lock.native

    @property
    def key(self) -> str:
        """Digest of CMake's inputs besides the trees: CUDA's version, torch's, the sources."""
        native = self._native
        return digest_of(
            {
                "rules": _RULES,
                "cuda": native.toolkit.cuda,
                "torch": self.lock.release.torch,
                "sources": {name: pin.ref for name, pin in native.sources.items()},
            }
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """Files and folders of upstream's CMake project."""
        from sparkwright.native.workspace import CMAKE_INPUTS

        return CMAKE_INPUTS

    def describe(self) -> Mapping[str, Any]:
        """Return how CMake is run; fetch and lay out the toolchain if the store lacks it.

        Raises:
            SparkwrightError: a compiler is missing, or a package cannot be fetched.
        """
        from sparkwright.native.configure import TOOLCHAIN_FILE, configure_command
        from sparkwright.native.model import WORK, Target
        from sparkwright.native.toolchain import configure_environment, prepare_toolchain, toolchain_file

        target = Target(self.platform, self._native.arch)
        chain = prepare_toolchain(self.lock, target, self.access)
        work = Path(WORK)
        self._versions.update(cuda=self._native.toolkit.cuda, **_named(chain.parts, "cmake", "torch"))
        return {
            "arch": target.arch,
            "argv": configure_command(chain, WORK),
            "environment": configure_environment(chain, target, work, self.lock),
            "files": {f"build/{TOOLCHAIN_FILE}": toolchain_file(chain, target, work)},
            "links": {
                "cuda": str(chain.cuda),
                "torch": str(chain.torch),
                "python": str(chain.python_include),
                **self._sources(),
            },
        }

    def _sources(self) -> dict[str, str]:
        """Return dependencies' sources by their place in a build, as the store holds them.

        A placeholder is enough for configuring, so the network is not used. A source that is mounted in
        another is left out: configuring reads none of its headers.
        """
        from sparkwright.native.sources import gather_sources
        from sparkwright.probe.environment import tree_folder

        store, repository = self.access.store, self.access.repository
        without_network = replace(self.access, settings=replace(self.access.settings, offline=True))
        own = [name for name, pin in self._native.sources.items() if not pin.mount]
        found = gather_sources(self.lock, without_network, wanted=own)
        return {
            f"deps/{name}": str(tree_folder(store, repository, source.tree, under=""))
            for name, source in found.items()
        }

    def versions(self) -> Mapping[str, str]:
        """Return versions for a proof's record."""
        return self._versions


def _named(parts: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: parts[name] for name in names if name in parts}
