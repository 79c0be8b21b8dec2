"""Options of a verification; the journal records them, so that a run can be resumed."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, Literal

import msgspec

from sparkwright.base.config import Model, convert
from sparkwright.base.errors import ConfigError, UnknownNameError
from sparkwright.recipes import load_recipe
from sparkwright.verify.capacity.search import CHECK as CAPACITY
from sparkwright.verify.capacity.search import CapacityOptions
from sparkwright.verify.checks import checks_of
from sparkwright.verify.profile import PROFILES, Profile
from sparkwright.verify.simulator.settings import DIALECT

REFERENCE = "reference"
"""Name of the check that `VerifyOptions.reference` adds."""


_ARRIVALS = "arrivals"  # the check of open loops, which runs where there are rates


class VerifyOptions(Model, frozen=True):
    """Options of a verification. One of `url`, `recipe` and `simulator` selects the source of the server.

    Attributes:
        profile: sizes and checks: ``full``, ``quick``, ``smoke``, ``demo`` or ``cpu``.
        url: address of a server that runs already.
        baseline_url: address of the same server without speculation.
        model: the name that it serves its model under; the only one by default.
        require: capabilities that the server must have.
        log: file that the server at `url` writes its log to.
        recipe: a recipe's name or file: start vLLM so.
        use: the use of the recipe that is applied to it, such as ``many``; none if empty.
        wheel: path of the wheel that the recipe's server is started from.
        python: interpreter of an environment with vLLM in it, instead of a wheel.
        unlocked: install the wheels with what the package index has today, instead of their locked runtimes.
        runner: model runner to select: ``v1`` or ``v2``; the release's default if empty.
        eager: start the recipe's server without CUDA graphs.
        against: a wheel or interpreter to compare with, or ``simulator`` for a healthy one; only that
            comparison is made then.
        against_recipe: a recipe to compare with, as ``RECIPE`` or ``RECIPE:USE``, served from the same wheel;
            only that comparison is made then.
        simulator: start a simulator instead of a server.
        faults: of the simulator, as ``name`` or ``name=value``.
        dialect: vLLM release that the simulator imitates.
        speculative_tokens: tokens that it drafts a step.
        checks: those to run instead of the profile's.
        levels: concurrencies of the sweep instead of the profile's.
        categories: of prompts, instead of the profile's.
        soak_s: length of the soak instead of the profile's, in seconds of the server's clock.
        boots: starts of each arm of a comparison instead of the profile's, no more and no fewer.
        thinking: let a model that can think do so before it answers questions and tasks.
        speed: server's seconds in one of the client's; the profile's if 0.
        seed: of salts, documents and orders.
        capacity: a search for the highest rate, which is made instead of checks.
        reference: file with a reference of the checkpoint, to compare the server with.
        prompts: file with the prompts of the sweep; the corpus's own if empty.
        prompts_sha256: of that file, so that a resumed run sends the same.
        input_tokens: length of documents that the sweep sends instead; 0 for none.
        max_tokens: output of each request of the sweep; the profile's if 0.
        rates: requests a second at which the sweep's prompts are sent too, whether or not others have ended.
    """

    profile: str = "full"
    url: str = ""
    baseline_url: str = ""
    model: str = ""
    require: tuple[str, ...] = ()
    log: str = ""
    recipe: str = ""
    use: str = ""
    wheel: str = ""
    python: str = ""
    unlocked: bool = False
    runner: Literal["", "v1", "v2"] = ""
    eager: bool = False
    against: str = ""
    against_recipe: str = ""
    simulator: bool = False
    faults: tuple[str, ...] = ()
    dialect: str = DIALECT
    speculative_tokens: int = 7
    checks: tuple[str, ...] = ()
    levels: tuple[int, ...] = ()
    categories: tuple[str, ...] = ()
    soak_s: float = 0.0
    boots: int = 0
    thinking: bool = False
    speed: float = 0.0
    seed: int = 0
    capacity: CapacityOptions | None = None
    reference: str = ""
    prompts: str = ""
    prompts_sha256: str = ""
    input_tokens: int = 0
    max_tokens: int = 0
    rates: tuple[float, ...] = ()

    @property
    def title(self) -> str:
        """Short name of the verified server, as part of a folder's name."""
        if self.simulator:
            return "simulator"
        place = self.url.rpartition("@")[2].rpartition("://")[2]
        return re.sub(r"[^\w.+-]+", "-", place or PurePath(self.recipe).stem).strip("-") or "run"

    @property
    def compared(self) -> bool:
        """True if the server is compared with another one of another wheel or another recipe."""
        return bool(self.against or self.against_recipe)

    @property
    def recorded(self) -> dict[str, Any]:
        """Options that differ from the defaults, as a manifest records them."""
        given, usual = (msgspec.json.decode(msgspec.json.encode(one)) for one in (self, VerifyOptions()))
        return {name: value for name, value in given.items() if value != usual[name]}

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> VerifyOptions:
        """Return the options that a manifest records.

        Raises:
            ConfigError: they are not those of this program.
        """
        try:
            return convert(options, cls)
        except msgspec.ValidationError as error:
            raise ConfigError("the run's options cannot be read", because=str(error)) from error


def recipe_and_use(text: str) -> tuple[str, str]:
    """Return the name or path of a recipe and its use, from ``RECIPE`` or ``RECIPE:USE``."""
    recipe, colon, use = text.rpartition(":")
    return (recipe, use) if colon and "/" not in use and not use.endswith(".toml") else (text, "")


def require_one_rival(options: VerifyOptions) -> None:
    """Refuse a comparison with two servers at once, or with a recipe that is not there.

    Raises:
        ConfigError: both a wheel and a recipe are named, or a simulator has no recipe of its own.
        UnknownNameError: there is no such recipe or use.
    """
    if not options.against_recipe:
        return
    if options.against:
        raise ConfigError(
            "--against and --against-recipe exclude each other",
            because="a difference between two wheels with two recipes would have two possible causes",
            next_step="compare the wheels by one recipe, and the recipes on one wheel",
        )
    if options.simulator and not options.recipe:
        raise ConfigError(
            "--against-recipe needs --recipe beside --demo", because="a simulator has no recipe by default"
        )
    load_recipe(*recipe_and_use(options.against_recipe))


def profile_of(options: VerifyOptions, base: Profile | None = None) -> Profile:
    """Return the sizes that *options* select.

    Args:
        options: what the user requested.
        base: sizes to start from instead of those of the named profile.

    Raises:
        UnknownNameError: there is no such profile.
    """
    if base is None:
        if options.profile not in PROFILES:
            raise UnknownNameError(
                f"there is no profile {options.profile!r}", next_step=f"take one of {', '.join(PROFILES)}"
            )
        base = PROFILES[options.profile]
    changes: dict[str, Any] = {"seed": options.seed}
    for name in ("levels", "categories", "soak_s", "boots", "thinking", "max_tokens"):
        if value := getattr(options, name):
            changes[name] = value
    if options.boots:
        changes["most_boots"] = options.boots
    changes["checks"] = _selected(options, base)
    changes["speed"] = options.speed or (base.speed if options.simulator else 1.0)
    return msgspec.structs.replace(base, **changes)


def _selected(options: VerifyOptions, base: Profile) -> tuple[str, ...]:
    """Return the names of the checks that *options* select, by default those of *base*."""
    if options.capacity is not None:
        return (CAPACITY,)
    if options.compared and not options.checks:
        return ("compare",)
    names = options.checks or base.checks or checks_of(base.name)
    if options.reference and not options.compared and REFERENCE not in names:
        names = (*names, REFERENCE)
    if options.rates and not options.checks:
        names = (*names, _ARRIVALS)
    return names
