"""The record that a wheel carries about itself, as typed values; `docs/formats.md` describes its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sparkwright.base.config import convert
from sparkwright.base.errors import WheelError
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.kernels import KERNELS, KernelsRecord, read_json, read_kernels_record
from sparkwright.wheel.names import parse_name

RECORD_FOLDER = "sparkwright"
SBOM = "sboms/sparkwright.cdx.json"
"""The bill of materials in the wheel's metadata folder."""
COMPILED = "compiled"
"""The provider of binaries that were compiled."""
POINT = "point.json"
CARRIES = "carries.json"
PROVIDERS = "providers.json"
_APPLIED = frozenset({"applied", "conflict-in-tests-or-docs"})
T = TypeVar("T")


class _Entry(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Base of the values below; keys of other versions of sparkwright are ignored."""


class RecordedPatch(_Entry, frozen=True):
    """A carry's own patch."""

    file: str
    sha256: str


class RecordedPull(_Entry, frozen=True):
    """A pull request that is the content of a carry."""

    repository: str
    number: int
    head: str


class RecordedCarry(_Entry, frozen=True):
    """One carry of the build spec.

    Attributes:
        source: the dependency whose tree it changes; empty for vLLM's own.
    """

    name: str
    title: str
    outcome: str
    upstream: tuple[int, ...] = ()
    source: str = ""
    patch: RecordedPatch | None = None
    pull: RecordedPull | None = None

    @property
    def applied(self) -> bool:
        """Tell if its change is in the merged tree."""
        return self.outcome in _APPLIED


class RecordedPoint(_Entry, frozen=True):
    """The build spec and the merge.

    Attributes:
        digest: the build spec's, 64 hex digits.
        platform: the lock's platform, such as ``aarch64``.
        kernels: ``upstream`` or ``native``.
        series: the series that the lock pins a release of; empty for a wheel of before series.
        point: the values that `digest` covers.
        merge: git ids of the pristine and the merged tree and of the commit, by name.
    """

    digest: str
    version: str
    platform: str
    kernels: str
    made_by: str
    point: dict[str, Any]
    merge: dict[str, str]
    series: str = ""


class RecordedBinary(_Entry, frozen=True):
    """One binary of the wheel.

    Attributes:
        provider: ``upstream-wheel``, or the kind of another origin.
        origin: the file name of that wheel, or the key of the other origin.
    """

    member: str
    sha256: str
    size: int
    provider: str
    origin: str = msgspec.field(name="from")


class _Carries(_Entry, frozen=True):
    carries: tuple[RecordedCarry, ...]


@dataclass(frozen=True)
class WheelRecord:
    """All of a wheel's record.

    Attributes:
        carries: the entries of ``carries.json``, in the order in which they were merged.
        binaries: the entries of ``providers.json``, by member.
        kernels: ``kernels.json``; `None` for a wheel with upstream's kernels only.
    """

    point: RecordedPoint
    carries: tuple[RecordedCarry, ...]
    binaries: tuple[RecordedBinary, ...]
    kernels: KernelsRecord | None = None

    @classmethod
    def of(cls, files: Mapping[str, Any]) -> WheelRecord:
        """Return the record whose *files*, JSON values by name, these are."""
        kernels = files.get(KERNELS)
        return cls(
            _converted(files, POINT, RecordedPoint),
            _converted(files, CARRIES, _Carries).carries,
            _converted(files, PROVIDERS, tuple[RecordedBinary, ...]),
            None if kernels is None else read_kernels_record(kernels),
        )


def _converted(files: Mapping[str, Any], name: str, model: type[T]) -> T:
    try:
        return convert(files.get(name), model)
    except msgspec.ValidationError as error:
        raise WheelError(
            f"the wheel's {name} cannot be read",
            because=str(error) if name in files else "it has none",
            next_step="build the wheel with this version of sparkwright",
        ) from error


def read_record(wheel: Path) -> WheelRecord:
    """Return the record of the wheel at that path."""
    folder = f"{parse_name(wheel.name).dist_info}/{RECORD_FOLDER}/"
    with open_archive(wheel) as archive:
        names = [name for name in archive.members if name.startswith(folder)]
        if not names:
            raise WheelError(
                f"{wheel.name} has no sparkwright record", because="sparkwright did not build it"
            )
        return WheelRecord.of({name.removeprefix(folder): read_json(archive, name) for name in names})
