"""From a build spec to a published wheel: `plan` shows the steps, `apply` runs those without a result.

Open `build` first: it takes every step in order. `job` holds the inputs, `state` the results so far.
A step whose key the store holds is not run again.
"""
