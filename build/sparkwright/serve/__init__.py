"""Serving: from a wheel and a recipe to a server that answers, in the foreground.

Open `run` first: start, warm-up, states and the end. `rehearsed` installs the merged Python for the CPU;
`warmup`, `status`, `caches` and `reasons` are what their names say, and `plan` is a start without starting.
"""
