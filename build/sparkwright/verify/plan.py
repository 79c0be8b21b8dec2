"""The plan of a run: the one object from the command line to the suite, with servers, checks and sizes.

`plan_of` makes it of the user's options alone and refuses what cannot be; `setup.prepare` adds the servers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from sparkwright.base.config import convert, to_builtins
from sparkwright.base.errors import ConfigError, unknown_name
from sparkwright.engine.client.endpoint import check_address
from sparkwright.engine.findings import PREFIX_CACHE, SPECULATION, TOOLS
from sparkwright.engine.observations import BootFacts
from sparkwright.recipes.recipe import Recipe, load_recipe
from sparkwright.verify.check import Context
from sparkwright.verify.checks import ALL, capacity, compare, settings
from sparkwright.verify.checks.common import Check
from sparkwright.verify.checks.reference import NAME as REFERENCE
from sparkwright.verify.checks.reference import load_reference, reference_check
from sparkwright.verify.corpus import CATEGORIES, load_corpus
from sparkwright.verify.datasets import read_same
from sparkwright.verify.estimate import Estimate, Rates, estimate, rates_of
from sparkwright.verify.options import VerifyOptions, recipe_and_use
from sparkwright.verify.profiles import PROFILES, Profile
from sparkwright.verify.rate_search import parse_slo
from sparkwright.verify.servers import Arms

TOOL_PARSER = "tool-call-parser"


@dataclass(frozen=True)
class Plan:
    """The plan of a run.

    Attributes:
        checks: to run, in order.
        context: sizes, prompts and what is known of the server before it runs.
        options: those of the user, which the journal records.
        arms: the servers, which are started by arm and boot number; none before they are prepared.
        rates: typical ones of such a server, for the run's expected duration.
    """

    checks: Sequence[Check]
    context: Context
    options: VerifyOptions = field(default_factory=VerifyOptions)
    arms: Arms = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)

    @property
    def profile(self) -> Profile:
        """Sizes of the run."""
        return self.context.profile

    @property
    def recipe(self) -> Recipe | None:
        """The recipe that is served, as it stands; `None` without one."""
        return load_recipe(self.options.recipe, self.options.use) if self.options.recipe else None

    def lacking(self, lacks: Mapping[str, str]) -> Plan:
        """Return *self* for a server that lacks these capabilities."""
        context = replace(self.context, lacks=lacks)
        return replace(self, context=context, rates=rates_of(self.options, lacks, made_up=context.made_up))

    def estimate(self) -> Estimate:
        """Return size and expected duration of the run, without facts of its server."""
        context = replace(self.context, facts={("main", 0): BootFacts()})
        cells = {
            check.name: [cell for cell in check.cells(context) if cell.arm == "main" or not self.options.url]
            for check in self.checks
        }
        return estimate(cells, self.rates, speed=self.profile.speed)


def plan_of(options: VerifyOptions, sizes: Profile | None = None) -> Plan:
    """Return the plan that *options* select, without contacting or starting any server.

    Args:
        options: of the user.
        sizes: used instead of those of the profile that *options* name.

    Raises:
        ConfigError: options contradict each other, or name files that are missing or have changed.
        UnknownNameError: there is no such recipe, profile, check or category.
        EndpointError: an address is invalid.
    """
    profile = profile_of(options, sizes)
    _refuse(options, profile)
    recipe = load_recipe(options.recipe, options.use) if options.recipe else None
    lacks: dict[str, str] = {}
    if recipe is not None and not (options.url or options.simulator):
        hints = {name: value for name, value in recipe.profile.items() if not getattr(options, name, None)}
        profile = convert({**to_builtins(profile), **hints}, Profile) if hints else profile
        lacks = _lacks_by_recipe(recipe)
    elif options.simulator and not options.speculative_tokens:
        lacks = {SPECULATION: "this server does not speculate"}
    own = read_same(Path(options.prompts), options.prompts_sha256) if options.prompts else ()
    context = Context(
        profile,
        load_corpus(),
        {},
        band=recipe.band if recipe else "",
        made_up=recipe is not None and recipe.made_up,
        own=own,
    )
    return Plan(_checks(options, profile), context, options).lacking(lacks)


def profile_of(options: VerifyOptions, base: Profile | None = None) -> Profile:
    """Return the sizes that *options* select, starting from *base* instead of the named profile, if given.

    Raises:
        UnknownNameError: there is no such profile.
    """
    if base is None:
        if options.profile not in PROFILES:
            raise unknown_name("profile", options.profile, list(PROFILES))
        base = PROFILES[options.profile]
    changes: dict[str, Any] = {"seed": options.seed}
    for name in ("levels", "categories", "boots", "thinking", "max_tokens"):
        if value := getattr(options, name):
            changes[name] = value
    if options.boots:
        changes["most_boots"] = options.boots
    changes["speed"] = options.speed or (base.speed if options.simulator else 1.0)
    if options.compared and not options.checks:
        names: tuple[str, ...] = (compare.NAME,)
    elif options.slo and not options.checks:
        names = (capacity.NAME,)
    else:
        names = options.checks or base.checks
    for given, needed in (
        (options.reference and not options.compared, REFERENCE),
        (options.slo and not options.compared, capacity.NAME),
    ):
        if given and needed not in names:
            names = (*names, needed)
    return msgspec.structs.replace(base, checks=names, **changes)


def _checks(options: VerifyOptions, profile: Profile) -> list[Check]:
    """Return the checks to run."""
    known, slo = dict(ALL), parse_slo(options.slo) if options.slo else None
    if slo is not None:
        known[capacity.NAME] = capacity.capacity_check(slo, options.max_tokens or capacity.TOKENS)
    if options.vary:
        known[compare.NAME] = settings.settings_check(
            options.configurations, options.levels, slo, simulated=options.simulator
        )
    elif options.compared:
        known[compare.NAME] = compare.pair_check(options.levels or compare.LEVELS)
    if options.reference:
        known[REFERENCE] = reference_check(load_reference(Path(options.reference)))
    return [known[name] for name in profile.checks]


def _lacks_by_recipe(recipe: Recipe) -> dict[str, str]:
    """Return what the server of *recipe* need not have; all else is required of it."""
    lacks = {} if recipe.speculative else {SPECULATION: "the recipe has no speculation"}
    if recipe.flags.get("enable-prefix-caching") is False:
        lacks[PREFIX_CACHE] = "the recipe turns the prefix cache off"
    if TOOL_PARSER not in recipe.flags:
        lacks[TOOLS] = f"the recipe names no tool parser ({TOOL_PARSER})"
    return lacks


def _refuse(options: VerifyOptions, profile: Profile) -> None:
    """Do nothing if *options* can be planned; `plan_of` says what is raised."""
    for what, names, known in (
        ("check", profile.checks, (*ALL, capacity.NAME)),
        ("category", profile.categories, CATEGORIES),
    ):
        if unknown := [name for name in names if name not in known]:
            raise unknown_name(what, unknown[0], list(known))
    if options.url:
        check_address(options.url)
    if not (math.isfinite(options.speed) and options.speed >= 0):
        raise ConfigError("--speed takes a positive number", because=f"{options.speed:g} is not one")
    simulated, compared = options.simulator, options.compared
    refusals: tuple[tuple[object, str, str, str], ...] = (
        (
            options.url and (compared or "compare" in profile.checks),
            "servers at addresses are not compared in speed",
            "speed differs from start to start, and a server at an address is one, however often measured",
            "compare wheels: sparkwright verify compare OLD.whl NEW.whl",
        ),
        (
            options.faults and not simulated,
            "only a simulator can be broken",
            "--fault was given without --demo",
            "",
        ),
        (
            capacity.NAME in profile.checks and not options.slo,
            "the check 'capacity' needs an objective",
            "",
            "give --slo, such as --slo ttft_p95=2s,tpot_p95=200ms",
        ),
        (
            "compare" in profile.checks and not compared,
            "the check 'compare' needs two servers",
            "",
            "compare wheels, recipes or settings: sparkwright verify compare BEFORE AFTER",
        ),
    )
    for refused, what, because, next_step in refusals:
        if refused:
            raise ConfigError(what, because=because, next_step=next_step)
    if options.against_recipe:
        load_recipe(*recipe_and_use(options.against_recipe))
    named = (
        options.python,
        "" if simulated else options.against,
        options.wheel,
        options.log,
    )
    if missing := [path for path in filter(None, named) if not Path(path).is_file()]:
        raise ConfigError(
            f"{missing[0]} cannot be used", because="there is no such file", next_step="name an existing file"
        )
