"""Assemble a wheel from upstream's wheel and the merged tree, and audit it."""
