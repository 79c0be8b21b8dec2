"""The packages that a wheel is installed with: its locked runtime, and a recipe's companion for a card."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkwright.engine.companions import choose_companion, choose_of_channel, with_companion
from sparkwright.engine.flashinfer import cubin_variables
from sparkwright.serve.environment import wheel_requirements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sparkwright.engine.companions import CompanionChoice
    from sparkwright.engine.runtime import ExactRequirements
    from sparkwright.publish.offer import ChannelOffer
    from sparkwright.recipes import Recipe


@dataclass(frozen=True)
class OfferedWheel:
    """A wheel to serve with.

    Attributes:
        wheel: the file.
        offer: the channel's that it is of; `None` for another file.
        why: the reason why it was taken; empty where it was named.
    """

    wheel: Path
    offer: ChannelOffer | None = None
    why: str = ""


@dataclass(frozen=True)
class ServedRuntime:
    """The packages of an environment, and what follows from them.

    Attributes:
        requirements: exact requirements, the companion among them.
        variables: variables of the server.
        missing: kernels that FlashInfer will compile while the engine starts or serves.
        companion: the file name of the companion; empty without one.
    """

    requirements: ExactRequirements
    variables: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    companion: str = ""


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
        folders: folders with companions; a channel's are looked at where a kernel is missing in these.
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
    # Unlocked, what is installed has no digests, and no companion is added to it.
    choice = choose_companion(offered.wheel, recipe, capability, folders if locked else (), patchsets)
    if offered.offer is not None and locked and (choice.wheel is None or choice.missing):
        of_channel = choose_of_channel(offered.offer, recipe, capability, requirements)
        choice = _fuller(choice, of_channel)
    variables = cubin_variables(
        requirements,
        {**environment, **recipe.environment},
        capability=capability,
        complete=choice.wheel is not None and choice.listed and not choice.missing,
    )
    if choice.wheel is None:
        return ServedRuntime(requirements, variables, choice.missing)
    return ServedRuntime(
        with_companion(requirements, choice.wheel), variables, choice.missing, choice.wheel.name
    )


def _fuller(own: CompanionChoice, of_channel: CompanionChoice) -> CompanionChoice:
    """Return the choice with fewer missing kernels.

    A list names the missing kernels; without one, only a channel's companions say what a recipe needs.
    """
    if of_channel.wheel is None:
        return own if own.missing else of_channel
    return of_channel if own.wheel is None or len(of_channel.missing) < len(own.missing) else own
