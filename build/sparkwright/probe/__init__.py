"""Probes: differential tests that show a carry to be needed and to work.

A probe must fail on the pristine tree and pass on the merged one. `judge` runs one on both trees, `proof` is
what is recorded of it, `runner` starts the child, `environment` is the Python and the trees that it runs in,
``child/`` is what runs inside, and `pool` makes many runs cheap. `upstream_tests` runs upstream's own tests
on both trees.
"""
