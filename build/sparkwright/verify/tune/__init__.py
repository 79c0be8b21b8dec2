"""Search for the configuration to serve: a recipe with other values of its settings, measured and ranked.

Read `strategy` first: which configuration is started next, and what may be said. `space` makes the
configurations, `search` starts and measures them, `result` says what was found.
"""
