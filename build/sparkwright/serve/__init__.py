"""Serving: from a wheel and a recipe to a server that answers, in the foreground.

Open `run` first: start, warm-up, states and the end. `environment` and `runtime` install a wheel with its
locked runtime, `rehearsed` the merged Python for the CPU; `warmup`, `status`, `caches` and `explain` are what
their names say, and `plan` is a start without starting.
"""
