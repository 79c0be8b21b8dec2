"""From a build spec to a published wheel: `plan` shows the steps, `apply` runs those without a result.

Open `steps` first: it lists every step in order. `job` holds the inputs, `state` the results so far.
A step whose key the store holds is not run again.
"""

from sparkwright.pipeline.checkout import Checkout, open_checkout
from sparkwright.pipeline.job import Job, make_job, open_job
from sparkwright.pipeline.options import BuildOptions, CompileOptions, TargetOptions
from sparkwright.pipeline.run import PlannedStep, apply, plan
from sparkwright.pipeline.state import BuildState

__all__ = [
    "BuildOptions",
    "BuildState",
    "Checkout",
    "CompileOptions",
    "Job",
    "PlannedStep",
    "TargetOptions",
    "apply",
    "make_job",
    "open_checkout",
    "open_job",
    "plan",
]
