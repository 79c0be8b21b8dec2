"""The recipe that a server is compared with on the same wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.base.errors import ConfigError
from sparkwright.recipes import load_recipe
from sparkwright.verify.options import recipe_and_use

if TYPE_CHECKING:
    from sparkwright.verify.options import VerifyOptions


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
