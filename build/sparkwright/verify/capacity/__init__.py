"""The highest rate of requests at which a service-level objective holds.

Read `search` first: steps in, the next step or the answer out. `step` reads a step from an observation, `fit`
finds the crossing, and `check` plans the cells and concludes.
"""
