"""Choose the companion for an environment among wheels, by what each says of itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.base.errors import SparkwrightError
from sparkwright.companion.package import architecture_name, is_companion
from sparkwright.companion.wheel import read_companion
from sparkwright.native.model import Target
from sparkwright.wheel.names import parse_name


@dataclass(frozen=True)
class FoundCompanion:
    """The companion that holds most of the needed modules.

    Attributes:
        missing: the list's names of needed modules that it lacks.
    """

    wheel: Path
    missing: tuple[str, ...] = ()


def companion_for(
    wheels: Iterable[Path], flashinfer: str, target: Target, needed: Sequence[str] | str
) -> FoundCompanion | None:
    """Return the wheel among *wheels* that holds most *needed* modules, the smallest; `None` if none has any.

    Args:
        wheels: any wheels; what is no companion, or damaged, is passed over.
        flashinfer: version of FlashInfer in the environment.
        target: machine and card of the environment.
        needed: names in the series' list, as from `CompanionSpec.chosen`; or a recipe, which needs what each
            companion's record says. One that a companion does not know needs what every recipe does.
    """
    found = []
    for wheel, record in _records(wheels, flashinfer, target):
        names = _needs(record, needed) if isinstance(needed, str) else needed
        if not (listed := _listed(record)).isdisjoint(names):
            found.append(FoundCompanion(wheel, tuple(name for name in names if name not in listed)))
    return min(
        found, key=lambda one: (len(one.missing), one.wheel.stat().st_size, one.wheel.name), default=None
    )


def _records(wheels: Iterable[Path], flashinfer: str, target: Target) -> list[tuple[Path, Mapping[str, Any]]]:
    """Return each companion for *flashinfer* and *target* with its record; a damaged one is passed over."""
    found: list[tuple[Path, Mapping[str, Any]]] = []
    for wheel in wheels:
        with contextlib.suppress(SparkwrightError, OSError, KeyError, TypeError, AttributeError):
            if is_companion(wheel.name) and _made_for(wheel, flashinfer, target):
                record = read_companion(wheel)
                _needs(record, "*"), _listed(record)  # raises where the record is malformed
                found.append((wheel, record))
    return found


def _made_for(wheel: Path, flashinfer: str, target: Target) -> bool:
    name = parse_name(wheel.name)
    public, _, local = name.version.partition("+")
    same = (public, name.machine) == (flashinfer, target.machine)
    return same and architecture_name(target) in local.split(".")


def _needs(record: Mapping[str, Any], recipe: str) -> tuple[str, ...]:
    """Return the list's names of the modules that *recipe* needs, by a companion's record."""
    needs = record["recipes"]
    return tuple(map(str, needs.get(recipe, needs["*"])))


def _listed(record: Mapping[str, Any]) -> set[str]:
    """Return the list's names of the modules in a companion, by its record."""
    return {str(one["listed"]) for one in record["modules"].values()}
