"""Paths that never reach a wheel and decide nothing in one: tests, documents, examples."""

from __future__ import annotations

import fnmatch

_TEXTS = (
    "tests/*",
    "*/tests/*",
    "docs/*",
    "examples/*",
    "benchmarks/*",
    ".github/*",
    ".buildkite/*",
    "*.md",
    "*.rst",
)


def is_text(path: str) -> bool:
    """Whether *path* is a test or a document, and so neither shipped nor compiled."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in _TEXTS)
