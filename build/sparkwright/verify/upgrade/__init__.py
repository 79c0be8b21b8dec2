"""Compare two finished runs: of the server before an upgrade, and after it.

Read `report` first: `compare_runs`. `pairs` matches the cells of both, `speed` and `quality` judge them.
"""
