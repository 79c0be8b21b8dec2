"""Choose what to serve where no wheel is named: one by build spec and revision, or a checkout's Python."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec
from packaging.version import Version

from sparkwright.base.errors import ConfigError, SparkwrightError
from sparkwright.companion.package import is_companion
from sparkwright.engine.environment import Environment, OfferedWheel
from sparkwright.merge import merge_patchset
from sparkwright.pipeline import Job, open_checkout
from sparkwright.pipeline.checkout import series_names
from sparkwright.pipeline.choose import choose_arch
from sparkwright.publish import wheels_in
from sparkwright.publish.series import series_of
from sparkwright.recipes import Recipe, load_recipe
from sparkwright.wheel import parse_name

_DIGEST = re.compile(r"(?=\d*[a-f])[0-9a-f]{8,}")

PresentSpecs = Mapping[str, tuple[str, ...]]
"""By series, the default one first: digests of the build specs that a checkout describes now."""


def is_present(version: str, specs: PresentSpecs) -> bool:
    """Tell if a wheel of *version* is of one of the *specs*."""
    parts = [part for part in (Version(version).local or "").split(".") if _DIGEST.fullmatch(part)]
    known = specs.get(series_of(version), ())
    return any(digest.startswith(part) for part in parts for digest in known)


def present_specs(start: Path, machine: str) -> PresentSpecs:
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
                arches.append(choose_arch(checkout.lock, machine, kernels="native"))
            found[series] = tuple(checkout.build_spec(arch=arch).digest for arch in arches)
    return found


def built_wheel(folder: Path, machine: str, series: Sequence[str], present: PresentSpecs) -> OfferedWheel:
    """Return the wheel in *folder* of the present build spec; else the one of the highest revision.

    Args:
        folder: a folder of wheels.
        machine: the machine.
        series: those that are wanted; any if empty. The default one is preferred, and then the first.
        present: the build specs of the checkout.

    Raises:
        ConfigError: there is none.
    """
    wheels = {wheel: parse_name(wheel.name) for wheel in wheels_in(folder) if not is_companion(wheel.name)}
    fitting = {
        wheel: name.version
        for wheel, name in wheels.items()
        if name.machine == machine and (not series or series_of(name.version) in series)
    }
    order = [*(one for one in present if one in series or not series), *series]
    if not fitting:
        wanted = order if series else ()
        raise _none(folder, machine, list(dict.fromkeys(wanted)), [wheel.name for wheel in wheels])
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


def _none(folder: Path, machine: str, series: Sequence[str], others: Collection[str]) -> ConfigError:
    wanted = f" --series {series[0]}" if series else ""
    of_series = f" of series {' or '.join(series)}" if series else ""
    return ConfigError(
        f"{folder} holds no wheel{of_series} for this machine, which is {machine}",
        because=f"it holds {', '.join(others)}" if others else "it holds none at all",
        next_step=f"sparkwright wheel --platform {machine}{wanted} --kernels upstream, which takes minutes, "
        "or give a wheel or --python",
    )


def install_rehearsal(job: Job, recipe: Recipe) -> tuple[Environment, Recipe]:
    """Return the merged Python of *job* installed for the CPU, and *recipe* with the model of rehearsals.

    Raises:
        RehearsalError: wheel, model or environment cannot be had.
        NotInStoreError: one of them is not in the store, and the network is off.
    """
    from sparkwright.rehearsal import serve_nearest

    version = job.spec.lock.release.version
    report = merge_patchset(job.repository, job.merge_request(job.pristine, version))
    tree = serve_nearest(job, report)
    described = f"vllm {tree.version} for the CPU with the merged Python of {job.spec.patchset}"
    model = load_recipe(tree.recipe).model
    return Environment(tree.python, tree.key, described), msgspec.structs.replace(recipe, model=model)
