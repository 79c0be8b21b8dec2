"""Applying a patchset to a pristine tree: one named outcome for every carry.

`engine` is the whole of it read top to bottom; `prepare` finds each carry's base and change, `landing`
merges one of them and looks for what no wheel can hold, `absorb` looks for it upstream, `hazards` looks
for merges that are clean and wrong, and `report` holds the outcomes.
"""
