"""The other server of a comparison in speed: of another wheel, or of another recipe on the same wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.base.errors import ConfigError
from sparkwright.recipes import load_recipe
from sparkwright.verify.options import recipe_and_use

if TYPE_CHECKING:
    from sparkwright.verify.options import VerifyOptions
    from sparkwright.verify.profile import Profile


def require_comparable(options: VerifyOptions, profile: Profile) -> None:
    """Refuse a comparison in speed that cannot be made.

    Raises:
        ConfigError: the server is at an address, or the other one is of another kind.
        UnknownNameError: there is no such recipe or use.
    """
    if options.url and (options.compared or "compare" in profile.checks):
        raise ConfigError(
            "servers at addresses are not compared in speed",
            because="the speed of a server differs from start to start, and a server at an address is one"
            " start, however often it is measured",
            next_step="give both wheels, the second one by --against",
        )
    if options.simulator and options.against not in {"", "simulator"}:
        raise ConfigError(
            f"a simulator is not compared with {options.against}", next_step="give --against simulator"
        )
    _require_one_rival(options)


def _require_one_rival(options: VerifyOptions) -> None:
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
