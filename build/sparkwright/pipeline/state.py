"""Results of the steps that ran so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sparkwright.base.config import Model
from sparkwright.merge.report import MergeReport
from sparkwright.native.model import Extension, SourceTree, Toolchain
from sparkwright.probe.proof import Proof
from sparkwright.upstream.releases import Pristine

T = TypeVar("T")


class Binaries(Model, frozen=True):
    """The origin of every binary in a wheel with native kernels.

    Attributes:
        record: ``kernels.json``, as a JSON value.
        platform: platform tag that the wheel may carry: the newest that any of its binaries needs.
        left_out: reasons for leaving binaries of upstream's wheel out, by member.
        upstream: reasons for taking the others from upstream's wheel, by member.
        kept: reasons for keeping binaries that hold no code for the card, by member.
    """

    record: dict[str, Any]
    platform: str
    left_out: dict[str, str]
    upstream: dict[str, str]
    kept: dict[str, str]


@dataclass(frozen=True)
class FoundWheel:
    """A finished wheel in the store."""

    filename: str
    sha256: str
    size: int


@dataclass
class BuildState:
    """Results of the steps so far; a step fills in its own and reads earlier ones.

    A compiled extension enters `extensions` once its step is done, and `attested` with what attests its
    sources if these are not the pinned ones; `stock_extensions` are those that are taken from upstream's
    wheel instead, with the reason. The units of those `begun` were compiled along with another's.
    """

    pristine: Pristine | None = None
    sources: dict[str, SourceTree] | None = None
    toolchain: Toolchain | None = None
    extensions: dict[str, Extension] = field(default_factory=dict)
    stock_extensions: dict[str, str] = field(default_factory=dict)
    attested: dict[str, str] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    stock_wheel: bool = False
    binaries: Binaries | None = None
    report: MergeReport | None = None
    proofs: dict[str, Proof] = field(default_factory=dict)
    wheel: FoundWheel | None = None
    audited: bool = False
    placed: Path | None = None
    published: bool = False


def require(result: T | None) -> T:
    """Return the *result* of an earlier step, which the order of the steps guarantees."""
    if result is None:
        raise RuntimeError("a step ran before the one that it depends on")
    return result
