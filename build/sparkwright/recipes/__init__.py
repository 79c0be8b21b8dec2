"""Recipes of servers as data: model, drafter, flags and environment, and the rules that they must obey.

Read `recipe` first: `Recipe`, `load_recipe`. `rules` refuses options that are known not to work together;
`shipped/` holds the recipes of this package.
"""
