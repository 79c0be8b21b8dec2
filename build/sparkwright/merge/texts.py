"""Paths that never reach a wheel and decide nothing in one: tests, documents, examples."""

from __future__ import annotations

import fnmatch
import re

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
_IS_TEXT = re.compile("|".join(map(fnmatch.translate, _TEXTS)))


def is_text(path: str) -> bool:
    """Tell if *path* is a test or a document, and so neither shipped nor compiled."""
    return _IS_TEXT.match(path) is not None
