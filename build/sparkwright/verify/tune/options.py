"""Options of a search for the best configuration; the journal records them, so that it can be resumed."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from msgspec import field

from sparkwright.base.config import Model, convert
from sparkwright.base.errors import ConfigError
from sparkwright.engine.deadlines import Deadlines
from sparkwright.verify.capacity.slo import parse_slo
from sparkwright.verify.profile import PROFILES, Profile
from sparkwright.verify.simulator.settings import DIALECT

GOODPUT = "goodput"


class Drafting(Model, frozen=True):
    """One method of drafting, as a recipe has it.

    Attributes:
        drafter: the drafter's checkpoint; empty where it needs none.
        weights: of the recipe that it is taken from; for people.
    """

    drafter: str = ""
    speculative: dict[str, Any] = field(default_factory=dict)
    weights: str = ""


class TuneOptions(Model, frozen=True):
    """Options of a search. One of `wheel`, `python` and `simulator` selects the source of the servers.

    Attributes:
        recipe: name or file of the recipe to start from.
        use: the use that is applied to it; none if empty.
        wheel: path of the wheel that servers are started from.
        python: interpreter of an environment with vLLM in it, instead of a wheel.
        faults: of the simulators, as ``name``, ``name=value`` or ``name=value@setting=value``: the last form
            for configurations with that setting alone.
        vary: values by the setting that is varied; see `space`.
        methods: methods of drafting by name, beside those that the recipe knows.
        strategy: ``halving`` gives more starts to those that may be the best, ``grid`` the same to all.
        weights: weight of each level in the objective; all the same if empty.
        objective: ``throughput``, or ``goodput``: tokens of requests that kept the objective in `slo`.
        slo: limits of times that a configuration must keep, as `capacity.slo` reads them; none if empty.
        reserve_gib: memory of the machine that must stay available.
        starts: of each configuration on the grid, and the mean of halving at the most.
        most_starts: of each that may be the best; twice as many of the best one and of the recipe as it is.
        within: share by which a configuration must surely be no better, for the search to end.
        spread: assumed standard deviation between starts of one server, as long as few were repeated.
        requests: in a cell, at the least; twice its concurrency if that is more.
        categories: of prompts; the profile's if empty.
        quality: put tasks and known facts to configurations before one is recommended.
        speed: a simulator's seconds in one of the client's.
    """

    recipe: str
    use: str = ""
    wheel: str = ""
    python: str = ""
    simulator: bool = False
    faults: tuple[str, ...] = ()
    dialect: str = DIALECT
    vary: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    methods: dict[str, Drafting] = field(default_factory=dict)
    strategy: Literal["halving", "grid"] = "halving"
    levels: tuple[int, ...] = (1, 8, 32)
    weights: tuple[float, ...] = ()
    objective: Literal["throughput", "goodput"] = "throughput"
    slo: str = ""
    reserve_gib: float = 0.0
    starts: int = 3
    most_starts: int = 6
    within: float = 0.03
    spread: float = 0.025
    requests: int = 12
    max_tokens: int = 256
    categories: tuple[str, ...] = ()
    quality: bool = True
    speed: float = 1.0
    seed: int = 0

    @property
    def recorded(self) -> dict[str, Any]:
        """Options that differ from the defaults, as a manifest records them."""
        given, usual = (
            msgspec.json.decode(msgspec.json.encode(one)) for one in (self, TuneOptions(recipe=""))
        )
        return {name: value for name, value in given.items() if value != usual[name]}

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> TuneOptions:
        """Return the options that a manifest records.

        Raises:
            ConfigError: they are those of another kind of run.
        """
        try:
            return convert(options, cls)
        except msgspec.ValidationError as error:
            raise ConfigError("the search's options cannot be read", because=str(error)) from error

    @property
    def weighted(self) -> tuple[float, ...]:
        """Weights of the levels, which add up to 1."""
        given = self.weights or tuple(1.0 for _ in self.levels)
        return tuple(weight / math.fsum(given) for weight in given)

    @property
    def profile(self) -> Profile:
        """Sizes of cells, of quality's too."""
        base = PROFILES["demo" if self.simulator else "full"]
        return msgspec.structs.replace(
            base,
            categories=self.categories or base.categories,
            levels=self.levels,
            least_requests=self.requests,
            requests_per_client=2,
            max_tokens=self.max_tokens,
            seed=self.seed,
            speed=self.speed if self.simulator else 1.0,
            deadlines=base.deadlines if self.simulator else Deadlines(),
        )


def require_usable(options: TuneOptions) -> None:
    """Refuse *options* that contradict each other, before anything starts.

    Raises:
        ConfigError: they do.
    """
    sources = {"a wheel": options.wheel, "--python": options.python, "--demo": options.simulator}
    named = [name for name, given in sources.items() if given]
    if len(named) != 1:
        raise ConfigError(
            "it is not clear what to start servers from",
            because=f"{' and '.join(named)} exclude each other" if named else "nothing was named",
            next_step="give a wheel, --python or --demo",
        )
    if options.faults and not options.simulator:
        raise ConfigError("only a simulator can be broken", because="--fault was given without --demo")
    if options.weights and len(options.weights) != len(options.levels):
        raise ConfigError(
            "--weights does not fit --levels",
            because=f"there are {len(options.weights)} weights and {len(options.levels)} levels",
        )
    if any(level < 1 for level in options.levels) or not options.levels:
        raise ConfigError("--levels takes concurrencies from 1 on")
    if options.weights and (min(options.weights) < 0 or not any(options.weights)):
        raise ConfigError("--weights takes numbers of which none is negative and one is not 0")
    if options.objective == GOODPUT and not options.slo:
        raise ConfigError(
            "goodput needs an objective of times", because="--slo is missing", next_step="--slo ttft_p95=2s"
        )
    if options.slo:
        parse_slo(options.slo)
