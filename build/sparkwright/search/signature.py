"""Failures without what differs from run to run, so that two of them can be compared."""

from __future__ import annotations

import re

# Each rule sees the text as the one before it left it.
_RULES = (
    (re.compile(r"\x1b\[[0-9;]*[A-Za-z]"), ""),  # colours of a terminal
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    (re.compile(r"(?:/private)?/(?:tmp|var/tmp|var/folders|dev/shm)(?:/[^\s'\":,;)\]]*)?"), "<temporary>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{12,64}\b(?<![a-z]{12})", re.IGNORECASE), "<id>"),
    (re.compile(r"(?<![\w.])[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?(?=(?:[smuµn]?s|[KMGT]i?B|%)?\b|%)"), "#"),
    (re.compile(r"\s+"), " "),
)


def normalise(text: str) -> str:
    """Return *text* without addresses, numbers, times, temporary paths and process ids, on one line.

    A number that is part of a name stays: ``sm_121a`` and ``fp8`` tell failures apart.
    """
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.strip()
