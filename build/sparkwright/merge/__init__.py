"""Applying a patchset to a pristine tree: one named outcome for every carry.

`engine` is the whole of it read top to bottom; `prepare` finds each carry's base and change,
`landing` merges one of them, `shipped` looks for what no wheel can hold, `sources` does the same to
a dependency's tree, `absorb` looks for it upstream, `hazards` looks for merges that are clean and
wrong, and `report` holds the outcomes.
"""

from sparkwright.merge.absorb import History
from sparkwright.merge.engine import MergeRequest, merge_patchset
from sparkwright.merge.prepare import BaseFinder
from sparkwright.merge.report import Hazard, MergedSource, MergeReport, Outcome, OutcomeKind
from sparkwright.merge.sources import apply_to_source

__all__ = [
    "BaseFinder",
    "Hazard",
    "History",
    "MergeReport",
    "MergeRequest",
    "MergedSource",
    "Outcome",
    "OutcomeKind",
    "apply_to_source",
    "merge_patchset",
]
