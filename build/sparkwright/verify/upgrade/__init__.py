"""Compare two finished runs: of the server before an upgrade, and after it.

Read `report` first: `compare_runs`. `pairs` matches the cells of both, `speed` and `quality` judge them.
"""

from sparkwright.verify.upgrade.pairs import MatchedCells, match_runs
from sparkwright.verify.upgrade.report import compare_runs, write_comparison
from sparkwright.verify.upgrade.speed import Limits

__all__ = ["Limits", "MatchedCells", "compare_runs", "match_runs", "write_comparison"]
