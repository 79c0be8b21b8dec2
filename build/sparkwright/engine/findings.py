"""Findings and verdicts: the conclusions of checks about a server, and the capabilities that it may lack.

What a server lacks is decided once, before the first cell, and recorded with the run. Findings that need it
are then not applicable. Whatever a server had at that time and loses later is a defect, as is anything that
its recipe configures.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import field

from sparkwright.base.config import Model


class Verdict(StrEnum):
    """Result of a finding, of a check or of a run."""

    PASS = "pass"  # noqa: S105
    NOT_APPLICABLE = "not-applicable"  # the server lacks what it is about, and nothing requires that
    INCONCLUSIVE = "inconclusive"  # too little was seen to decide
    INVALID = "invalid"  # what was seen cannot be trusted, so it decides nothing
    FAIL = "fail"


class Finding(Model, frozen=True):
    """One conclusion, with what it rests on.

    Attributes:
        check: the check, such as ``sweep``.
        name: the conclusion within the check, such as ``acceptance does not depend on concurrency``.
        definition: the compared quantities, in one or two sentences.
        cause: the observed reason in one line, with the level, position or moment of a failure.
        measured: figures by name, units in the names.
        threshold: the limit and its source, in words.
        evidence: keys of the cells that it rests on.
        warnings: remarks that decide nothing.
    """

    check: str
    name: str
    definition: str
    verdict: Verdict
    cause: str
    measured: dict[str, float | str] = field(default_factory=dict)
    threshold: str = ""
    evidence: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


SPECULATION: Final = "speculation"
"""It drafts tokens, and counts them at /metrics."""
PREFIX_CACHE: Final = "prefix-cache"
"""It reuses the beginnings of prompts."""
BASELINE: Final = "baseline"
"""There is the same server without speculation, to compare answers with."""
LOG: Final = "log"
"""Its log can be read."""
GPU: Final = "gpu"
"""The log names memory of a GPU."""
TOOLS: Final = "tools"
"""Chats may offer tools, and calls come parsed (--tool-call-parser)."""
IMAGES: Final = "images"
"""Chats may hold pictures."""
