"""``upstream.lock``: the pinned vLLM release and every other input by digest.

`model` is the typed model of the file. `statements` reads what a release states about itself (with `cmake`
for the sources that its build downloads), `check` compares the lock with that and the ``[native]`` tables
with the rest, and `bump` writes the lock for another release.
"""
