"""A job: one build spec to make into a wheel, with the store, the repository and the source to use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sparkwright.base.digests import digest_of
from sparkwright.base.errors import ConfigError, UnknownNameError, unknown_name
from sparkwright.carries.model import Revision
from sparkwright.carries.patchset import BuildSpec
from sparkwright.distributed.cluster import Cluster
from sparkwright.git.repository import LINK, Repository, TreeEntry, open_repository
from sparkwright.lock.model import Artifact, Lock, NativePin
from sparkwright.merge.absorb import History
from sparkwright.merge.engine import MergeRequest
from sparkwright.merge.report import MergeReport
from sparkwright.native.host import isolated
from sparkwright.native.model import Target
from sparkwright.pipeline.checkout import Checkout, open_checkout
from sparkwright.pipeline.options import BuildOptions, choose_arch
from sparkwright.pipeline.state import require
from sparkwright.probe.judge import Prover
from sparkwright.probe.pool import ProbePool
from sparkwright.probe.runner import ProbeResource
from sparkwright.probe.upstream_tests import UpstreamGate
from sparkwright.store.paths import Store, open_store
from sparkwright.upstream.network import read_settings
from sparkwright.upstream.releases import Access, Pristine, UpstreamSource, open_source

# Part of the key: raised when the meaning of a described value changes.
_RULES = 1


@dataclass(frozen=True)
class ToolchainResource:
    """The toolchain that kernels are compiled with, ready for CMake; see `sparkwright.probe.runner`."""

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
        from sparkwright.native.configure import CMAKE_INPUTS

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
        named = {name: chain.parts[name] for name in ("cmake", "torch") if name in chain.parts}
        self._versions.update(cuda=self._native.toolkit.cuda, **named)
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


# A job --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A build spec to make into a wheel, and what that takes.

    Attributes:
        cluster: other machines that compile; this one does if there are none.
    """

    checkout: Checkout
    spec: BuildSpec
    options: BuildOptions
    store: Store
    repository: Repository
    source: UpstreamSource
    facilities: Mapping[str, ProbeResource] = field(default_factory=dict)
    pool: ProbePool | None = None
    cluster: Cluster | None = None

    @property
    def kernels(self) -> Literal["upstream", "native"]:
        """The origin of compiled code."""
        return "upstream" if self.spec.arch is None else "native"

    @property
    def native(self) -> NativePin | None:
        """The toolchain and sources that kernels are compiled from; `None` for upstream's kernels."""
        return None if self.spec.arch is None else self.spec.lock.native

    @property
    def target(self) -> Target:
        """The machine and card that native kernels are compiled for."""
        return Target(self.options.platform, require(self.spec.arch))

    @cached_property
    def access(self) -> Access:
        """The store and network settings for packages and dependencies' sources."""
        return Access(self.store, self.repository, read_settings(offline=self.options.offline))

    @cached_property
    def pristine(self) -> Pristine:
        """Upstream's tree at the pin, fetched if the store lacks it."""
        return self.source.pristine(self.spec.lock)

    @property
    def out(self) -> Path:
        """The folder for the wheel and its index, absolute."""
        from sparkwright.publish.index import dist_folder

        return dist_folder(self.checkout.folder, self.options.out).absolute()

    @property
    def stock_wheel(self) -> Artifact:
        """Upstream's wheel for the platform."""
        return self.spec.lock.wheel(self.options.platform)

    @property
    def version(self) -> str:
        """The version of a wheel with no kernels, or all of them, compiled here; see `mixed_version`."""
        return self.mixed_version(None)

    def mixed_version(self, compiled: int | None) -> str:
        """Return the wheel's version: PEP 440, with patchset, revision and digest in its local part.

        *compiled* is the number of extensions compiled here where others are upstream's.
        """
        from sparkwright.wheel.names import local_version

        spec = self.spec
        return local_version(
            spec.lock.release.version,
            spec.patchset,
            spec.digest,
            revision=spec.revision,
            arch="" if spec.foreign_card else spec.card,
            card=spec.foreign_card,
            compiled=compiled,
        )

    def find_base(self, revision: Revision) -> str:
        """Return the pristine tree that *revision* was written against."""
        sdist = self.spec.lock.sdist
        if sdist is None or revision.sdist_sha256 != sdist.sha256:
            return self.source.release(revision.release, sha256=revision.sdist_sha256).tree
        return self.pristine.tree

    def merge_request(self, pristine: Pristine, version: str) -> MergeRequest:
        """Return the request to merge the carries onto *pristine*."""
        history = None
        if pristine.history and pristine.commit is not None:
            history = History(target=pristine.commit)
        return MergeRequest(
            pristine=pristine.tree,
            version=version,
            carries=self.spec.carries,
            find_base=self.find_base,
            history=history,
            offline=self.options.offline,
            left_out=self.spec.left_out,
            sources=self.available_sources if version == self.spec.lock.release.version else {},
            store=self.store,
        )

    @property
    def available_sources(self) -> dict[str, str]:
        """Ids of the trees that carries change, by the sources' names; those that the store holds."""
        if self.native is None:
            return {}
        wanted = sorted({carry.spec.source for carry in self.spec.deciding if carry.spec.source is not None})
        found = {name: self.source_tree(name) for name in wanted}
        return {name: tree for name, tree in found.items() if tree is not None}

    def source_tree(self, name: str) -> str | None:
        """Return the id of the dependency's tree that the store holds: the pin's, or else its candidate's."""
        native = self.spec.lock.native
        pin = None if native is None else native.sources.get(name)
        return None if pin is None else next(filter(self.repository.has, pin.trees), None)

    def prover(self, report: MergeReport, *, pristine_alone: bool = False) -> Prover:
        """Return the prover for the trees of *report*, or for its pristine one alone."""
        return Prover(
            self.store,
            self.repository,
            report.pristine,
            report.pristine if pristine_alone else report.tree,
            report.version,
            offline=self.options.offline,
            sources=() if pristine_alone else report.sources,
            facilities=self.facilities,
            pool=self.pool,
        )

    def upstream_gate(self, report: MergeReport, pool: ProbePool) -> UpstreamGate:
        """Return what runs upstream's tests on the trees of *report*, off the network, by *pool*."""
        return UpstreamGate(
            self.store,
            self.repository,
            report.pristine,
            report.tree,
            report.version,
            pool,
            isolated(()),
            offline=self.options.offline,
        )

    def changes(self, report: MergeReport) -> dict[str, bytes | None]:
        """Return the new content of each path that differs from the tree of upstream's wheel.

        `None` stands for a deleted one. That is what the merge changed and, if the wheel is an earlier
        commit's, what upstream changed since.
        """
        return {
            path: None if new is None else self.repository.blob(new.blob)
            for path, (_, new) in self._changed(report).items()
        }

    def links(self, report: MergeReport) -> frozenset[str]:
        """Return those of `changes` that are symbolic links in the merged tree, which no wheel has."""
        return frozenset(path for path, (_, new) in self._changed(report).items() if new and new.mode == LINK)

    def _changed(self, report: MergeReport) -> dict[str, tuple[TreeEntry | None, TreeEntry | None]]:
        return self.repository.changed(self.tree_of_wheel(report.pristine), report.tree)

    def tree_of_wheel(self, pristine: str) -> str:
        """Return the tree that upstream's wheel is of: *pristine*, or that of an earlier commit."""
        commit = self.stock_wheel.commit
        own = commit in {None, self.spec.lock.release.commit}
        return pristine if own or commit is None else self.repository.tree_of(commit)

    def python(self, report: MergeReport) -> dict[str, str]:
        """Return git ids of the Python files of *report*'s tree that a wheel contains, by path.

        Only for a wheel whose digest no index stated; else its digest says as much.
        """
        if self.stock_wheel.trust == "index":
            return {}
        files = self.repository.files(report.tree)
        return {
            path: entry.blob
            for path, entry in files.items()
            if path.startswith("vllm/") and path.endswith(".py") and entry.mode.startswith("100")
        }

    @cached_property
    def stock_file(self) -> Path:
        """Upstream's wheel by its own name: fetched where it is not here, and verified once."""
        self.source.wheel(self.spec.lock, self.options.platform)
        return self.store.named_file(self.stock_wheel.sha256, self.stock_wheel.filename)


def require_listed(checkout: Checkout, spec: BuildSpec, names: Iterable[str]) -> None:
    """Do nothing if all of *names* are carries of the patchset of *spec*."""
    listed = [carry.name for carry in spec.carries]
    path = checkout.patchset_path(spec.file)
    for name in sorted(names):
        if name in listed:
            continue
        if (checkout.carries / name / "carry.toml").is_file():
            raise UnknownNameError(
                f"carry {name} is not in {path}",
                next_step="name its series with --series, or add it to the carries there",
            )
        raise unknown_name(f"carry in {path}", name, listed)


def make_job(checkout: Checkout, store: Store, repository: Repository, options: BuildOptions) -> Job:
    """Return the job of building what *options* select from *checkout*.

    Raises:
        UnknownNameError: the platform, the patchset, the architecture or a carry to allow does not exist.
        ConfigError: kernels are to be compiled, and the lock has no ``[native]``.
    """
    lock = checkout.lock
    _ = lock.wheel(options.platform)  # refuse an unknown platform before any work
    arch = choose_arch(lock, options.platform, kernels=options.kernels, arch=options.arch)
    spec = checkout.build_spec(options.patchset, arch=arch)
    access = Access(store, repository, read_settings(offline=options.offline))
    require_listed(checkout, spec, options.allow_unproved)
    toolchain = ToolchainResource(lock, options.platform, access)
    return Job(
        checkout=checkout,
        spec=spec,
        options=options,
        store=store,
        repository=repository,
        source=open_source(options.source, access),
        facilities={} if arch is None else {"toolchain": toolchain},
    )


@contextlib.contextmanager
def open_job(root: Path, options: BuildOptions | None = None) -> Iterator[Job]:
    """Open the checkout that *root* is in and the user's store, and return the job; see `make_job`."""
    options = options or BuildOptions()
    checkout, store = open_checkout(root, options.series, options.patchset), open_store()
    with contextlib.closing(open_repository(store.git)) as repository:
        yield make_job(checkout, store, repository, options)
