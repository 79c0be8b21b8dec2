"""The environment of a wheel: its locked runtime, the wheel and a recipe's companion, made once and shared.

`prepare` is the only way from a wheel to an interpreter. `serve`, services, `verify` and bisections take it,
so that what is verified is what is served.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.base.digests import digest_of, sha256_file
from sparkwright.base.events import task, warn
from sparkwright.base.machine import card_capability
from sparkwright.engine.flashinfer import (
    CompanionChoice,
    build_command,
    choose_companion,
    choose_of_channel,
    cubin_variables,
    environment_path,
    installed_variables,
    with_companion,
)
from sparkwright.engine.installed import read_installed
from sparkwright.engine.runtime import ExactRequirements, find_runtime, locked_requirements, make_environment
from sparkwright.lock.model import PATCHSETS, project_root
from sparkwright.lock.runtime import beside
from sparkwright.publish.index import dist_folder
from sparkwright.publish.reader import ChannelOffer
from sparkwright.recipes.recipe import Recipe
from sparkwright.store.paths import Store, open_store
from sparkwright.wheel.names import parse_name


@dataclass(frozen=True)
class OfferedWheel:
    """A wheel to serve with.

    Attributes:
        offer: the channel's that it is of; `None` for another file.
        why: the reason why it was taken; empty where it was named.
    """

    wheel: Path
    offer: ChannelOffer | None = None
    why: str = ""


@dataclass(frozen=True)
class Sources:
    """The places that the parts of an environment come from, and the one that it is kept in.

    Attributes:
        store: holds the environments that all commands share.
        patchsets: the folder of patchsets, with runtimes and lists of kernels; `None` where there is none.
        companions: folders with companions, beside the wheel's own.
        folder: holds environments instead of the store, such as those of a service; `None` for the store.
    """

    store: Store
    patchsets: Path | None = None
    companions: tuple[Path, ...] = ()
    folder: Path | None = None


def sources_here(folder: Path | None = None) -> Sources:
    """Return the store, the project's data for the current folder, and its ``dist``.

    *folder* holds environments instead of the store.
    """
    root = project_root(Path())
    patchsets = root / PATCHSETS if root is not None else None
    return Sources(open_store(), patchsets, (dist_folder(Path()),), folder)


@dataclass(frozen=True)
class Environment:
    """An environment with vLLM.

    Attributes:
        python: its interpreter, which is not there yet where the environment is only planned.
        identity: digest of the wheel, or of the installed tree.
        described: the wheel or tree in words.
        variables: variables of the server that follow from what is installed, under the recipe's.
        requirements: exact requirements, the companion among them; empty without locked runtime.
        missing: kernels that FlashInfer will compile while the engine starts or serves.
        companion: the file name of the companion; empty without one.
        remedy: how to get the missing kernels; empty where none is missing.
    """

    python: Path
    identity: str
    described: str
    variables: Mapping[str, str] = field(default_factory=dict)
    requirements: ExactRequirements = field(default_factory=ExactRequirements)
    missing: tuple[str, ...] = ()
    companion: str = ""
    remedy: str = ""

    def server_variables(self, recipe: Recipe) -> dict[str, str]:
        """Return the variables of a server of *recipe* that follow from the environment."""
        path = environment_path(self.python, {**os.environ, **recipe.environment})
        own = {name: value for name, value in self.variables.items() if name not in recipe.environment}
        return {**path, **own}


def prepare(
    wheel: Path | OfferedWheel,
    recipe: Recipe,
    sources: Sources | None = None,
    *,
    locked: bool = True,
    offline: bool = False,
) -> Environment:
    """Return the environment in which *wheel* serves *recipe* on the card of this host; made once.

    Two calls at once wait for each other, and one that was begun and not finished is made again.

    Not *locked*, packages are what the index has today, and there is no companion.

    Raises:
        ConfigError: the wheel has no locked runtime.
        LockMismatchError: the runtime does not fit the wheel.
        ServerError: it cannot be installed: it is of another machine, or a file has another digest.
        NotInStoreError: something would have to be fetched, and the network is off.
        TamperedError, FetchError: a companion of the channel cannot be had as it was signed.
        DigestError: a companion in a folder is not the file that the index there lists.
    """
    offered = wheel if isinstance(wheel, OfferedWheel) else OfferedWheel(wheel)
    sources = sources or sources_here()
    planned = plan_environment(offered, recipe, sources, locked=locked)
    if planned.missing:
        warn(
            f"FlashInfer will compile {', '.join(planned.missing)} while the engine starts or serves",
            next_step=planned.remedy,
        )
    folder, requirements = planned.python.parents[1], planned.requirements
    with task(f"the environment of {offered.wheel.name}"):
        while True:
            make_environment(
                offered.wheel.name, folder, [offered.wheel.resolve()], requirements, offline=offline
            )
            # Pruned before it was claimed, it is made again.
            if sources.folder is not None or sources.store.claim(folder):
                break
    return planned


def plan_environment(
    offered: OfferedWheel,
    recipe: Recipe,
    sources: Sources,
    *,
    locked: bool = True,
) -> Environment:
    """Return the environment that `prepare` makes, whether it is there or not; nothing is installed.

    Raises:
        ConfigError: the wheel has no locked runtime.
        LockMismatchError: the runtime does not fit the wheel.
        TamperedError, FetchError: a companion of the channel cannot be had as it was signed.
        DigestError: a companion in a folder is not the file that the index there lists.
    """
    wheel, capability = offered.wheel, card_capability()
    requirements = wheel_requirements(offered, sources.patchsets) if locked else ExactRequirements()
    choice = _choose_companion(offered, recipe, sources, requirements, capability)
    variables = cubin_variables(
        requirements,
        {**os.environ, **recipe.environment},
        capability=capability,
        complete=choice.wheel is not None and choice.listed and not choice.missing,
    )
    if choice.wheel is not None:
        requirements = with_companion(requirements, choice.wheel)
    sha256 = sha256_file(wheel)
    key = digest_of([sha256, requirements.content, sys.version, sysconfig.get_platform()])[:16]
    return Environment(
        python=(sources.folder or sources.store.environments) / key / "bin" / "python",
        identity=sha256,
        described=wheel.name,
        variables=variables,
        requirements=requirements,
        missing=choice.missing,
        companion=choice.wheel.name if choice.wheel is not None else "",
        remedy=_remedy(offered, recipe, sources, capability, locked=locked) if choice.missing else "",
    )


def runtime_beside(wheel: Path) -> tuple[Path, str]:
    """Return the file with the locked runtime of *wheel*, and its name beside the wheel on another host.

    Raises:
        ConfigError: there is none.
    """
    return find_runtime(wheel, sources_here().patchsets), beside(wheel).name


def wheel_requirements(offered: OfferedWheel, patchsets: Path | None) -> ExactRequirements:
    """Return the locked runtime of a wheel: the channel's, the one beside the wheel, or that of its series.

    Raises:
        ConfigError: it has none.
        LockMismatchError: it does not fit the wheel.
    """
    runtime = offered.offer.runtime if offered.offer else None
    return locked_requirements(offered.wheel, runtime or find_runtime(offered.wheel, patchsets))


def existing_environment(python: Path, recipe: Recipe) -> Environment:
    """Return the environment of the interpreter *python*, which the user made.

    Raises:
        ServerError: it has no vLLM.
    """
    python = python.absolute()
    installed = read_installed(python)
    return Environment(
        python=python,
        identity=digest_of([str(python), installed.version]),
        described=f"vllm {installed.version} of {python}",
        variables=installed_variables(
            installed, recipe.name, card_capability(), {**os.environ, **recipe.environment}, python
        ),
    )


def _choose_companion(
    offered: OfferedWheel,
    recipe: Recipe,
    sources: Sources,
    requirements: ExactRequirements,
    capability: str,
) -> CompanionChoice:
    """Return the companion with the fewest missing kernels, of folders here or of the wheel's channel.

    A list names the missing kernels; without one, only a channel's companions say what a recipe needs.
    """
    # Unlocked, what is installed has no digests, and no companion is added to it.
    folders = (*sources.companions, offered.wheel.parent) if requirements.text else ()
    own = choose_companion(offered.wheel, recipe, capability, folders, sources.patchsets)
    if offered.offer is None or not requirements.text or (own.wheel is not None and not own.missing):
        return own
    of_channel = choose_of_channel(offered.offer, recipe, capability, requirements)
    if of_channel.wheel is None:
        return own if own.missing else of_channel
    return of_channel if own.wheel is None or len(of_channel.missing) < len(own.missing) else own


def _remedy(offered: OfferedWheel, recipe: Recipe, sources: Sources, capability: str, *, locked: bool) -> str:
    """Return what gives the recipe all its kernels."""
    if not locked:
        return "leave out --unlocked: a companion is installed with the locked runtime alone"
    if sources.patchsets is None:
        return "ask the channel's publisher for a companion for this recipe and card"
    name = parse_name(offered.wheel.name)
    return f"{build_command(name.version, name.machine, capability, recipe.name)}, then start again"
