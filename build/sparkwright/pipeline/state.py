"""A step of a build, and the results of those that were taken so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from sparkwright.base.config import Model
from sparkwright.merge.report import MergeReport
from sparkwright.native.model import Extension, SourceTree, Toolchain
from sparkwright.probe.proof import Proof
from sparkwright.upstream.releases import Pristine

T = TypeVar("T")


def _nothing(_found: object) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Step(Generic[T]):
    """A step: `find` takes its result from the store, `make` makes it; both must decide alike.

    Attributes:
        name: its name in plans and logs.
        key: digest of what the result depends on; `None` while that is incomplete.
        about: further fields of a plan, by what was found.
    """

    name: str
    key: str | None
    find: Callable[[], T | None]
    make: Callable[[], T]
    about: Callable[[T | None], Mapping[str, Any]] = _nothing


class Take(Protocol):
    """Returns the result of a step: found, made, or `None` where nothing is to be made."""

    def __call__(self, step: Step[T], /) -> T | None:
        """Return it."""


def find_only(step: Step[T]) -> T | None:
    """Return the result of *step* if the store has it."""
    return None if step.key is None else step.find()


class Binaries(Model, frozen=True):
    """The origin of every binary in a wheel with native kernels.

    Attributes:
        record: ``kernels.json``, as a JSON value.
        platform: platform tag that the wheel may carry: the newest that any of its binaries needs.
        left_out: reasons for leaving binaries of upstream's wheel out, by member.
        upstream: reasons for taking the others from upstream's wheel, by member.
    """

    record: dict[str, Any]
    platform: str
    left_out: dict[str, str]
    upstream: dict[str, str]


@dataclass(frozen=True)
class FoundWheel:
    """A finished wheel in the store."""

    filename: str
    sha256: str
    size: int


@dataclass
class BuildState:
    """Results of the steps so far; see `sparkwright.pipeline.build`.

    Attributes:
        stock_extensions: why an extension is taken from upstream's wheel, for those that are.
        attested: what attests the sources of a compiled extension, for those that are not the pinned ones.
        objects: SHA-256 of the units that were compiled in this run, by output path.
    """

    pristine: Pristine | None = None
    sources: dict[str, SourceTree] | None = None
    report: MergeReport | None = None
    proofs: dict[str, Proof] = field(default_factory=dict)
    toolchain: Toolchain | None = None
    extensions: dict[str, Extension] = field(default_factory=dict)
    stock_extensions: dict[str, str] = field(default_factory=dict)
    attested: dict[str, str] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    binaries: Binaries | None = None
    wheel: FoundWheel | None = None
    audit: dict[str, Any] | None = None
    placed: Path | None = None


def require(result: T | None) -> T:
    """Return the *result* of an earlier step, which the order of the steps guarantees."""
    if result is None:
        raise RuntimeError("a step ran before the one that it depends on")
    return result
