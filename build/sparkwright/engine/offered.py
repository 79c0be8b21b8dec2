"""The wheel that is served: the one that is named, a channel's, one in ``dist/``, or one made first."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from platform import machine

from packaging.version import Version

from sparkwright.base.errors import ConfigError, SparkwrightError
from sparkwright.base.events import emit
from sparkwright.companion.wheel import is_companion
from sparkwright.engine.environment import OfferedWheel
from sparkwright.lock.model import series_of
from sparkwright.pipeline.build import apply
from sparkwright.pipeline.checkout import keeping_series, open_checkout, series_names
from sparkwright.pipeline.job import open_job
from sparkwright.pipeline.options import BuildOptions, choose_arch
from sparkwright.pipeline.state import require
from sparkwright.publish.index import dist_folder, wheels_in
from sparkwright.publish.reader import open_channel
from sparkwright.publish.trust import default_trust
from sparkwright.store.paths import open_store
from sparkwright.wheel.names import parse_name

_DIGEST = re.compile(r"(?=\d*[a-f])[0-9a-f]{8,}")


class NoWheelError(ConfigError):
    """A folder holds no wheel that could be served here."""


PresentSpecs = Mapping[str, tuple[str, ...]]
"""By series, the default one first: digests of the build specs that a checkout describes now."""


def is_present(version: str, specs: PresentSpecs) -> bool:
    """Tell if a wheel of *version* is of one of the *specs*."""
    parts = [part for part in (Version(version).local or "").split(".") if _DIGEST.fullmatch(part)]
    known = specs.get(series_of(version), ())
    return any(digest.startswith(part) for part in parts for digest in known)


def present_specs(start: Path, platform: str) -> PresentSpecs:
    """Return the build specs of the checkout around *start*, with upstream's kernels and with own."""
    found: dict[str, tuple[str, ...]] = {}
    names: Sequence[str] = ()
    with contextlib.suppress(SparkwrightError):
        names = series_names(open_checkout(start).root)
    for series in names:
        with contextlib.suppress(SparkwrightError):  # one that is being edited hides no other
            checkout = open_checkout(start, series)
            arches: list[str | None] = [None]
            with contextlib.suppress(SparkwrightError):
                arches.append(choose_arch(checkout.lock, platform, kernels="native"))
            found[series] = tuple(checkout.build_spec(arch=arch).digest for arch in arches)
    return found


def built_wheel(folder: Path, platform: str, series: Sequence[str], present: PresentSpecs) -> OfferedWheel:
    """Return the wheel in *folder* of the present build spec; else the one of the highest revision.

    Of *series*, any if empty, the default one is preferred, and then the first.

    Raises:
        NoWheelError: there is none.
    """
    wheels = {wheel: parse_name(wheel.name) for wheel in wheels_in(folder) if not is_companion(wheel.name)}
    fitting = {
        wheel: name.version
        for wheel, name in wheels.items()
        if name.machine == platform and (not series or series_of(name.version) in series)
    }
    order = [*(one for one in present if one in series or not series), *series]
    if not fitting:
        wanted = list(dict.fromkeys(order if series else ()))
        raise _none(folder, platform, wanted, [wheel.name for wheel in wheels], present)
    order += sorted({series_of(version) for version in fitting.values()}, key=Version, reverse=True)
    of_spec = {wheel: version for wheel, version in fitting.items() if is_present(version, present)}
    for candidates, why in ((of_spec, "the present build spec of"), (fitting, "the highest revision of")):
        for one in dict.fromkeys(order):
            if chosen := _highest({w: v for w, v in candidates.items() if series_of(v) == one}):
                missing = one in present and candidates is fitting
                remedy = (
                    f"; 'sparkwright wheel --series {one}' builds the present build spec" if missing else ""
                )
                return OfferedWheel(chosen, why=f"{why} series {one}{remedy}")
    raise AssertionError(order)  # pragma: no cover - each wheel's series is in it


def _highest(wheels: Mapping[Path, str]) -> Path | None:
    """Return the wheel of the highest version but for digests, which have no order, or then the youngest."""
    return max(wheels, key=lambda wheel: (_ordered(wheels[wheel]), wheel.stat().st_mtime_ns), default=None)


def _ordered(version: str) -> Version:
    parsed = Version(version)
    parts = [part for part in (parsed.local or "").split(".") if not _DIGEST.fullmatch(part)]
    return Version(f"{parsed.public}+{'.'.join(filter(None, parts)) or '0'}")


def _none(
    folder: Path, platform: str, series: Sequence[str], others: Collection[str], present: PresentSpecs
) -> NoWheelError:
    wanted = f" --series {series[0]}" if series else ""
    of_series = f" of series {' or '.join(series)}" if series else ""
    make = f"sparkwright wheel --platform {platform}{wanted} --kernels upstream, which takes minutes"
    if series and present and not set(series) & set(present):
        make = f"take a series that there is: --series {' or '.join(present)}"
    return NoWheelError(
        f"{folder} holds no wheel{of_series} for this machine, which is {platform}",
        because=f"it holds {', '.join(others)}" if others else "it holds none at all",
        next_step=f"{make}; or give a wheel, --channel or --python",
    )


def offered_wheel(
    wheel: Path | None, channel: str, series: Sequence[str], *, offline: bool = False, make: bool = True
) -> OfferedWheel:
    """Return the *wheel* that is named, the newest of the *channel*, or that of `built_wheel` in ``dist/``.

    Where there is none, *make* it of the project's data for the current folder; see `project_root`.

    Raises:
        NoWheelError: there is none, and none is made.
    """
    if wheel is not None:
        return OfferedWheel(wheel)
    if channel:
        offer = open_channel(
            open_store(), channel, machine(), *series, trust=default_trust(), offline=offline
        )
        return OfferedWheel(offer.wheel, offer)
    try:
        return built_wheel(dist_folder(Path()), machine(), series, present_specs(Path(), machine()))
    except NoWheelError:
        chosen = makeable_series(series) if make else ""
        if not chosen:
            raise
        return _made_wheel(chosen, offline=offline)


def makeable_series(series: Sequence[str]) -> str:
    """Return the first of the *series* that the project's data here has, or its default one without any.

    Empty if there is none: outside of a clone of a package without that data.
    """
    return next((one for one in present_specs(Path(), machine()) if one in series or not series), "")


def _made_wheel(series: str, *, offline: bool) -> OfferedWheel:
    """Return the present build spec's wheel of *series* with upstream's kernels, which is made first."""
    options = BuildOptions(series=series, platform=machine(), offline=offline)
    with open_job(Path(), options) as job, keeping_series(job.checkout):
        emit("serve.makes", name=job.version, why=made_here(series))
        return OfferedWheel(
            require(apply(job).placed), why=f"made of the present build spec of series {series}"
        )


def made_here(series: str) -> str:
    """Return how a wheel of *series* is made where there is none, and how it would be for the card."""
    return (
        f"with upstream's kernels, of the present build spec of series {series}; 'sparkwright wheel "
        f"--series {series} --kernels native' compiles them for the card instead, which takes hours"
    )
