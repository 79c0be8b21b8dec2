"""Choose the companion for an environment among wheels, by what each says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.base.errors import SparkwrightError
from sparkwright.companion.package import architecture_name, is_companion
from sparkwright.companion.wheel import RECORD
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


def _listed(wheel: Path, spec: CompanionSpec, target: Target) -> set[str]:
    """Return the list's names of the modules in *wheel*; none if it is for another target or FlashInfer."""
    try:
        name = parse_name(wheel.name)
        public, _, local = name.version.partition("+")
        if (public, name.machine) != (spec.version, target.machine):
            return set()
        if architecture_name(target) not in local.split("."):
            return set()
        with open_archive(wheel) as archive:
            record = read_json(archive, f"{name.dist_info}/{RECORD}")
        return {str(one["listed"]) for one in record["modules"].values()}
    except (SparkwrightError, OSError, KeyError, TypeError, AttributeError):
        return set()
