"""The companion of a served wheel: FlashInfer's kernels, compiled ahead of time, installed beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sparkwright.base.digests import sha256_file
from sparkwright.companion.choosing import companion_for
from sparkwright.companion.model import CompanionSpec, load_companion
from sparkwright.companion.wheel import read_companion
from sparkwright.engine.runtime import ExactRequirements
from sparkwright.native.model import Target
from sparkwright.publish import wheels_in
from sparkwright.publish.offer import ChannelOffer
from sparkwright.publish.series import series_of
from sparkwright.recipes.recipe import Recipe
from sparkwright.wheel.names import parse_name

LISTS = "companions"
"""Folder of the series' lists, in the folder of the patchsets."""
_SPECIFIC = frozenset({"9.0", "10.0", "10.3", "11.0", "12.1"})
"""Capabilities whose kernels are compiled for the card alone, such as ``12.1a``."""
_FLASHINFER = re.compile(r"^flashinfer-python==(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class CompanionChoice:
    """A companion for a wheel, and the modules that it lacks.

    Attributes:
        wheel: the companion; `None` if none has a needed kernel, or none is needed.
        missing: names of modules that FlashInfer will compile while the engine starts or serves.
        listed: the recipe is listed by its name, so that all modules that it needs are known.
    """

    wheel: Path | None = None
    missing: tuple[str, ...] = ()
    listed: bool = False


def choose_companion(
    wheel: Path, recipe: Recipe, capability: str, folders: Iterable[Path], patchsets: Path | None
) -> CompanionChoice:
    """Return the companion in *folders* with most kernels that *recipe* needs on a card of *capability*.

    Args:
        wheel: the wheel of vLLM that is served.
        recipe: the recipe.
        capability: of the card, such as ``12.1``; without a card, nothing is needed.
        folders: folders of wheels, such as ``dist``.
        patchsets: the folder of patchsets of a checkout, which has the lists of kernels; `None` without one.
    """
    spec = _spec(wheel, patchsets)
    if spec is None or not capability:
        return CompanionChoice()
    target = Target(parse_name(wheel.name).machine, arch_of(capability))
    needed = spec.needed(target.arch, recipe.name)
    if not needed:
        return CompanionChoice()
    offered = [one for folder in dict.fromkeys(folders) if folder.is_dir() for one in wheels_in(folder)]
    listed = recipe.name in spec.recipes
    found = companion_for(offered, spec.version, target, needed)
    if found is None:
        return CompanionChoice(missing=tuple(needed), listed=listed)
    return CompanionChoice(found.wheel, found.missing, listed)


def choose_of_channel(
    offer: ChannelOffer, recipe: Recipe, capability: str, requirements: ExactRequirements
) -> CompanionChoice:
    """Return the companion of a channel with most kernels that *recipe* needs, by the companions' records.

    Args:
        offer: the channel's.
        recipe: the recipe.
        capability: of the card, such as ``12.1``; without a card, nothing is needed.
        requirements: the locked runtime, which has the version of FlashInfer.
    """
    version = _FLASHINFER.search(requirements.text)
    if not capability or version is None:
        return CompanionChoice()
    target = Target(parse_name(offer.wheel.name).machine, arch_of(capability))
    found = offer.companion(recipe.name, version[1], target)
    if found is None:
        return CompanionChoice(missing=("the recipe's kernels",))
    listed = recipe.name in read_companion(found.wheel)["recipes"]
    return CompanionChoice(found.wheel, found.missing, listed)


def arch_of(capability: str) -> str:
    """Return the architecture that kernels for a card of *capability* are compiled for: ``12.1a``."""
    return f"{capability}a" if capability in _SPECIFIC else capability


def build_command(version: str, machine: str, capability: str, recipe: str) -> str:
    """Return the command that compiles the kernels of *recipe* for a card of *capability*.

    Args:
        version: vLLM's, whose series has the list of kernels; empty where it is not known.
        machine: of the card, such as ``aarch64``.
        capability: of the card, such as ``12.1``.
        recipe: the recipe's name.
    """
    series = f"--series {series_of(version)} " if version else ""
    target = f"--platform {machine} --arch {arch_of(capability)}"
    return f"sparkwright companion {series}{target} --recipe {recipe}"


def _spec(wheel: Path, patchsets: Path | None) -> CompanionSpec | None:
    """Return the list of kernels of the wheel's series; `None` where there is none."""
    if patchsets is None:
        return None
    path = patchsets / LISTS / f"{series_of(parse_name(wheel.name).version)}.toml"
    return load_companion(path) if path.is_file() else None


def with_companion(requirements: ExactRequirements, companion: Path) -> ExactRequirements:
    """Return *requirements* with the wheel *companion*, by its digest."""
    line = f"flashinfer-jit-cache @ {companion.absolute().as_uri()} --hash=sha256:{sha256_file(companion)}\n"
    return replace(requirements, text=requirements.text + line)
