"""Bisection: name the change between a good and a bad build spec that makes the difference."""
