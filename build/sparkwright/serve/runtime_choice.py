"""Everything that a wheel is installed with: its locked runtime and the companion for a recipe and a card."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkwright.serve.companions import choose_companion, choose_of_channel, with_companion
from sparkwright.serve.environment import wheel_requirements
from sparkwright.serve.flashinfer import companion_variables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sparkwright.recipes import Recipe
    from sparkwright.serve.channel import ChannelOffer
    from sparkwright.serve.runtime import ExactRequirements


@dataclass(frozen=True)
class OfferedWheel:
    """A wheel to serve with.

    Attributes:
        wheel: the file.
        offer: the channel's that it is of; `None` for another file.
    """

    wheel: Path
    offer: ChannelOffer | None = None


@dataclass(frozen=True)
class ServedRuntime:
    """The packages of an environment, and what follows from them.

    Attributes:
        requirements: exact requirements, the companion among them.
        variables: variables of the server.
        missing: kernels that FlashInfer will compile while the engine starts or serves.
    """

    requirements: ExactRequirements
    variables: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def choose_runtime(
    offered: OfferedWheel,
    recipe: Recipe,
    *,
    capability: str,
    folders: Sequence[Path],
    patchsets: Path | None,
    environment: Mapping[str, str],
    locked: bool = True,
) -> ServedRuntime:
    """Return what *offered* is installed with for *recipe* on a card of *capability*.

    Args:
        offered: the wheel.
        recipe: the recipe.
        capability: of the card, such as ``12.1``; empty without one.
        folders: folders with companions; a channel's are looked at where these have none that fits.
        patchsets: the folder of patchsets of a checkout; `None` outside of one.
        environment: variables of the server.
        locked: install by the locked runtime. Without it, no companion is installed.

    Raises:
        ConfigError: it has no locked runtime.
        LockMismatchError: the runtime does not fit the wheel.
        TamperedError, FetchError: a companion of the channel cannot be had as it was signed.
    """
    runtime = offered.offer.runtime if offered.offer else None
    requirements = wheel_requirements(offered.wheel, patchsets, locked=locked, runtime=runtime)
    choice = choose_companion(offered.wheel, recipe, capability, folders, patchsets)
    if choice.wheel is None and offered.offer is not None and locked:
        of_channel = choose_of_channel(offered.offer, recipe, capability, requirements)
        # A list names the missing kernels; without one, only companions say what a recipe needs.
        choice = of_channel if of_channel.wheel or not choice.missing else choice
    if choice.wheel is None or not locked:
        return ServedRuntime(requirements, missing=choice.missing)
    variables = companion_variables(
        requirements, {**environment, **recipe.environment}, complete=choice.listed
    )
    return ServedRuntime(with_companion(requirements, choice.wheel), variables)
