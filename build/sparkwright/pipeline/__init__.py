"""From a build spec to a published wheel: `plan` shows the steps, `apply` runs those without a result.

Open `steps` first: it lists every step in order. `job` holds the inputs, `state` the results so far.
A step whose key the store holds is not run again.
"""
