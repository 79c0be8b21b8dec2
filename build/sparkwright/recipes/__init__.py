"""Recipes of servers as data: model, drafter, flags and environment, and the rules that they must obey.

Read `recipe` first: `Recipe`, `load_recipe`. `rules` refuses options that are known not to work together;
`shipped/` holds the recipes of this package.
"""

from sparkwright.recipes.evidence import GRADES, Evidence, Grade
from sparkwright.recipes.recipe import (
    PORT,
    REHEARSAL,
    SERVED_NAMES,
    TINY,
    About,
    Recipe,
    Runner,
    Use,
    apply_use,
    command_lines,
    load_recipe,
    node_arguments,
    recipes,
    serve_arguments,
    served_recipe,
    shipped_path,
)
from sparkwright.recipes.rules import RULES, Rule, check_compatible, incompatibilities

__all__ = [
    "GRADES",
    "PORT",
    "REHEARSAL",
    "RULES",
    "SERVED_NAMES",
    "TINY",
    "About",
    "Evidence",
    "Grade",
    "Recipe",
    "Rule",
    "Runner",
    "Use",
    "apply_use",
    "check_compatible",
    "command_lines",
    "incompatibilities",
    "load_recipe",
    "node_arguments",
    "recipes",
    "serve_arguments",
    "served_recipe",
    "shipped_path",
]
