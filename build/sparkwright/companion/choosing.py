"""Choose the companion for an environment among wheels, by what each says of itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sparkwright.base.errors import SparkwrightError
from sparkwright.companion.package import architecture_name, is_companion
from sparkwright.companion.wheel import RECORD, read_companion
from sparkwright.wheel.archive import open_archive
from sparkwright.wheel.kernels import read_json
from sparkwright.wheel.names import parse_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sparkwright.companion.model import CompanionSpec
    from sparkwright.native.model import Target


def companion_for(
    wheels: Iterable[Path], spec: CompanionSpec, target: Target, needed: Iterable[str]
) -> Path | None:
    """Return the wheel among *wheels* that holds all *needed* modules, the smallest; `None` if none does.

    Args:
        wheels: any wheels; what is no companion, or damaged, is passed over.
        spec: the series' list: its version of FlashInfer has to be the wheel's.
        target: machine and card of the environment.
        needed: names in `spec`, as from `CompanionSpec.chosen`.
    """
    wanted = set(needed)
    companions = [wheel for wheel in wheels if is_companion(wheel.name)]
    fitting = [wheel for wheel in companions if wanted <= _listed(wheel, spec, target)]
    return min(fitting, key=lambda wheel: (wheel.stat().st_size, wheel.name), default=None)


def companion_of_recipe(wheels: Iterable[Path], recipe: str, flashinfer: str, target: Target) -> Path | None:
    """Return the smallest of *wheels* with all that its record says *recipe* needs; `None` if there is none.

    A recipe that a companion does not know needs what every recipe does.

    Args:
        wheels: any wheels; what is no companion, or damaged, is passed over.
        recipe: name of the recipe.
        flashinfer: version of FlashInfer in the environment.
        target: machine and card of the environment.
    """
    fitting = []
    for wheel in wheels:
        with contextlib.suppress(SparkwrightError, OSError, KeyError, TypeError, AttributeError):
            record = read_companion(wheel) if is_companion(wheel.name) else None
            if record is None or not _made_for(wheel, flashinfer, target):
                continue
            needs = record["recipes"]
            listed = {str(one["listed"]) for one in record["modules"].values()}
            if {str(name) for name in needs.get(recipe, needs["*"])} <= listed:
                fitting.append(wheel)
    return min(fitting, key=lambda wheel: (wheel.stat().st_size, wheel.name), default=None)


def _made_for(wheel: Path, flashinfer: str, target: Target) -> bool:
    name = parse_name(wheel.name)
    public, _, local = name.version.partition("+")
    same = (public, name.machine) == (flashinfer, target.machine)
    return same and architecture_name(target) in local.split(".")


def _listed(wheel: Path, spec: CompanionSpec, target: Target) -> set[str]:
    """Return the list's names of the modules in *wheel*; none if it is for another target or FlashInfer."""
    try:
        if not _made_for(wheel, spec.version, target):
            return set()
        name = parse_name(wheel.name)
        with open_archive(wheel) as archive:
            record = read_json(archive, f"{name.dist_info}/{RECORD}")
        return {str(one["listed"]) for one in record["modules"].values()}
    except (SparkwrightError, OSError, KeyError, TypeError, AttributeError):
        return set()
