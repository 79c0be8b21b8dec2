"""Plan, then apply: the steps from a point to a published wheel, each keyed by its inputs.

`job` is what is asked for and what is known so far, `steps` are the steps one after another, `run`
plans them or carries them out. A step whose key the store knows is not done again.
"""

from sparkwright.pipeline.checkout import Checkout, open_checkout
from sparkwright.pipeline.job import BuildOptions, Job
from sparkwright.pipeline.run import PlannedStep, apply, plan

__all__ = ["BuildOptions", "Checkout", "Job", "PlannedStep", "apply", "open_checkout", "plan"]
