"""Plan, then apply: the steps from a point to a published wheel, each keyed by its inputs.

`job` is what is asked for and what is known so far, `steps` are the steps one after another, `run`
plans them or carries them out. A step whose key the store knows is not done again.
"""

from sparkwright.plan.checkout import Checkout, open_checkout
from sparkwright.plan.job import Job, Options
from sparkwright.plan.run import PlannedStep, apply, plan

__all__ = ["Checkout", "Job", "Options", "PlannedStep", "apply", "open_checkout", "plan"]
