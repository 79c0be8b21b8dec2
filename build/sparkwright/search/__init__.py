"""Bisection: name the change between a good and a bad build spec that makes the difference.

Read `model` first. `strategy` is the search itself, without any effect: it stands on `posterior` (one change
in an order) and `subsets` (requirements and ddmin). `engine` runs it with a judge, and keeps the journal.
"""
