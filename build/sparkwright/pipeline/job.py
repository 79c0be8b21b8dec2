"""What is asked for, and what is known so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sparkwright.base.errors import FetchError, NotInStoreError
from sparkwright.base.events import warn
from sparkwright.merge import History, MergeRequest
from sparkwright.native.model import Target
from sparkwright.probe import Proof, Prover
from sparkwright.upstream import Access, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkwright.carries import Revision
    from sparkwright.carries.patchset import BuildSpec
    from sparkwright.git import Repository
    from sparkwright.lock import Artifact
    from sparkwright.lock.native import NativePin
    from sparkwright.merge import MergeReport
    from sparkwright.native.model import Extension, SourceTree, Toolchain
    from sparkwright.pipeline.binaries import Binaries
    from sparkwright.pipeline.checkout import Checkout
    from sparkwright.probe import ProbeResource
    from sparkwright.store import Store
    from sparkwright.upstream import Pristine, UpstreamSource
    from sparkwright.wheel.audit import Expectation

T = TypeVar("T")


@dataclass(frozen=True)
class Compiling:
    """How kernels are compiled, where they are; nothing of it decides what comes out.

    Attributes:
        jobs: most compilers at once; by default what cores and memory allow.
        keep_going: go on with the other units when one fails.
        isolate: take the network away from every tool of the build.
        cuda: folder of an installed CUDA toolkit, taken instead of the lock's packages.
    """

    jobs: int | None = None
    keep_going: bool = False
    isolate: bool = False
    cuda: Path | None = None


@dataclass(frozen=True)
class BuildOptions:
    """Choices of the user that decide the result.

    Attributes:
        platform: which machine the wheel is for: a key of the lock's wheels.
        source: where upstream's tree comes from: ``index``, ``git``, an address or a folder.
        allow_unproved: carries that may go in without a proof.
        out: folder for the wheel and its index.
        offline: use no network.
        require_native: whether an extension that cannot be compiled is an error, where kernels are
            compiled at all; otherwise it comes from upstream's wheel.
        full: keep binaries that are of no use on the card that is compiled for.
        compiling: how they are compiled.
    """

    platform: str
    source: str
    out: Path
    allow_unproved: frozenset[str] = frozenset()
    offline: bool = False
    require_native: bool = False
    full: bool = False
    compiling: Compiling = field(default_factory=Compiling)


@dataclass(frozen=True)
class Job:
    """A point to be made into a wheel, and the rooms' tools to do it with.

    Attributes:
        checkout: the clone of the project.
        point: what is made.
        options: choices besides it.
        store: where results are kept.
        repository: the store's repository.
        source: where upstream's tree comes from.
        facilities: what probes may need from the outside, by name.
    """

    checkout: Checkout
    point: BuildSpec
    options: BuildOptions
    store: Store
    repository: Repository
    source: UpstreamSource
    facilities: Mapping[str, ProbeResource] = field(default_factory=dict)

    @property
    def kernels(self) -> Literal["upstream", "native"]:
        """Where compiled code comes from."""
        return "upstream" if self.point.arch is None else "native"

    @property
    def native(self) -> NativePin | None:
        """What kernels are compiled with and from; `None` where upstream's are taken."""
        return None if self.point.arch is None else self.point.lock.native

    @property
    def target(self) -> Target:
        """What kernels are compiled for, where they are."""
        return Target(self.options.platform, require(self.point.arch))

    @cached_property
    def access(self) -> Access:
        """Where packages and dependencies' sources come from, and go to."""
        return Access(self.store, self.repository, read_settings(offline=self.options.offline))

    @cached_property
    def pristine(self) -> Pristine:
        """Upstream's tree at the pin, fetched when it is not here."""
        return self.source.pristine(self.point.lock)

    @property
    def stock_wheel(self) -> Artifact:
        """Upstream's own wheel for the platform."""
        return self.point.lock.wheel(self.options.platform)

    @property
    def version(self) -> str:
        """The version that our wheel gets: PEP 440, with patchset, revision and point in its local part."""
        from sparkwright.wheel import local_version

        point = self.point
        return local_version(
            point.lock.release.version,
            point.patchset,
            point.digest,
            revision=point.revision,
            card=point.foreign_card,
        )

    @cached_property
    def _release_tree(self) -> str:
        """The tree of the pinned release, whatever the source made of it."""
        release, sdist = self.point.lock.release, self.point.lock.sdist
        if self.pristine.verified:
            return self.pristine.tree
        try:
            return self.source.release(release.version, sha256=sdist.sha256).tree
        except (FetchError, NotInStoreError) as error:
            warn(
                f"{self.pristine.origin} stands in for the release that carries were written against: {error}"
            )
            return self.pristine.tree

    def find_base(self, revision: Revision) -> str:
        """Return the pristine tree that *revision* was written against.

        An unpacked tree that differs from the pinned release is no carry's base: what was edited in it is
        merged with what the carry changes. It only stands in where the release itself cannot be had.
        """
        lock = self.point.lock
        if revision.sdist_sha256 != lock.sdist.sha256:
            return self.source.release(revision.release, sha256=revision.sdist_sha256).tree
        return self._release_tree

    def merge_request(self, pristine: Pristine, version: str) -> MergeRequest:
        """The merge of the point's carries onto *pristine*."""
        history = None
        if pristine.history and pristine.commit is not None:
            history = History(target=pristine.commit)
        return MergeRequest(
            pristine=pristine.tree,
            version=version,
            carries=self.point.carries,
            find_base=self.find_base,
            history=history,
            offline=self.options.offline,
            left_out=self.point.left_out,
            sources=self.sources_at_hand if version == self.point.lock.release.version else {},
            store=self.store,
        )

    @property
    def sources_at_hand(self) -> dict[str, str]:
        """Ids of the pinned trees that carries change and that are in the store, by the sources' names."""
        pins = {} if self.native is None else self.native.sources
        wanted = {carry.spec.source for carry in self.point.deciding}
        return {
            name: pin.tree
            for name, pin in pins.items()
            if name in wanted and pin.tree is not None and self.repository.has(pin.tree)
        }

    def prover(self, report: MergeReport) -> Prover:
        """What finds or makes proofs on the trees of *report*."""
        return Prover(
            self.store,
            self.repository,
            report.pristine,
            report.tree,
            report.version,
            offline=self.options.offline,
            sources=report.sources,
            facilities=self.facilities,
        )

    def changes(self, report: MergeReport) -> dict[str, bytes | None]:
        """Every path that the merge changed, with its new content, or `None` where it was deleted."""
        changed = self.repository.changed(report.pristine, report.tree)
        return {
            path: None if new is None else self.repository.blob(new.blob)
            for path, (_, new) in changed.items()
        }

    def fetch_stock_wheel(self) -> Path:
        """Upstream's own wheel, verified, under its own name."""
        self.source.wheel(self.point.lock, self.options.platform)
        return self.store.named_file(self.stock_wheel.sha256, self.stock_wheel.filename)

    def expectation(
        self,
        changes: Mapping[str, bytes | None] | None,
        version: str | None = None,
        *,
        arch: str = "",
        toolchain: Toolchain | None = None,
        record: Mapping[str, Any] | None = None,
        compiled: Mapping[str, Extension] | None = None,
    ) -> Expectation:
        """What a wheel of this point is held against.

        Args:
            changes: what the merge changed; `None` for a wheel of another point.
            version: the version that it should have; any of the release by default.
            arch: the card that kernels are judged for; by default that of the point, or of the lock.
            toolchain: what compiled it, where that is known.
            record: what the wheel should say of itself, and
            compiled: what the store has of its binaries; both as for `Expectation`.
        """
        from sparkwright.pipeline.binaries import native_expectation
        from sparkwright.wheel.audit import Expectation

        return Expectation(
            upstream_wheel=self.fetch_stock_wheel(),
            artifact=self.stock_wheel,
            lock=self.point.lock,
            changes=changes,
            version=version,
            native=native_expectation(self, arch, toolchain),
            store=self.store,
            record=record,
            compiled=compiled or {},
        )


@dataclass(frozen=True)
class FoundWheel:
    """A finished wheel in the store."""

    filename: str
    sha256: str
    size: int


@dataclass
class BuildState:
    """Results of the steps so far; a step fills in its own and reads earlier ones.

    Of the compiled `extensions` each is there once its step is done; `stock_extensions` are those that
    are taken from upstream's wheel instead, with the reason.
    """

    pristine: Pristine | None = None
    sources: dict[str, SourceTree] | None = None
    toolchain: Toolchain | None = None
    extensions: dict[str, Extension] = field(default_factory=dict)
    stock_extensions: dict[str, str] = field(default_factory=dict)
    stock_wheel: bool = False
    binaries: Binaries | None = None
    report: MergeReport | None = None
    proofs: dict[str, Proof] = field(default_factory=dict)
    wheel: FoundWheel | None = None
    audited: bool = False
    placed: Path | None = None
    published: bool = False


def require(result: T | None) -> T:
    """A result that an earlier step has made; the order of the steps sees to that."""
    if result is None:
        raise RuntimeError("a step ran before the one that it depends on")
    return result
