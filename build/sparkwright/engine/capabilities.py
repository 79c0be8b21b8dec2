"""Capabilities of a server: what a check may need, and what a server may lack without being broken.

What a server lacks is decided once, before the first cell, and recorded with the run. Findings that need it
are then not applicable. Whatever a server had at that time and loses later is a defect, as is anything that
its recipe or the user requires (`refuse_lacking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from sparkwright.base.errors import EndpointError, unknown_name

SPECULATION: Final = "speculation"
METRICS: Final = "metrics"
TOKENIZE: Final = "tokenize"
PREFIX_CACHE: Final = "prefix-cache"
BASELINE: Final = "baseline"
LOG: Final = "log"
GPU: Final = "gpu"
TOOLS: Final = "tools"
IMAGES: Final = "images"

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        SPECULATION: "drafts tokens, and counts them at /metrics",
        METRICS: "vLLM's counters at /metrics",
        TOKENIZE: "POST /tokenize, which counts a chat's tokens",
        PREFIX_CACHE: "reuses the beginnings of prompts",
        BASELINE: "the same server without speculation, to compare answers with",
        LOG: "the server's log can be read",
        GPU: "the log names memory of a GPU",
        TOOLS: "chats may offer tools, and calls come parsed (--tool-call-parser)",
        IMAGES: "chats may hold pictures",
    }
)
"""Every capability by its name, with its meaning."""


def require_known(names: Iterable[str]) -> None:
    """Refuse names that are no capabilities.

    Raises:
        UnknownNameError: one is none.
    """
    if unknown := [name for name in names if name not in CAPABILITIES]:
        raise unknown_name("capability", unknown[0], list(CAPABILITIES))


def refuse_lacking(lacks: Mapping[str, str], required: Iterable[str], where: str) -> None:
    """Refuse the server at *where* if it lacks a required capability.

    Args:
        lacks: reasons by the capability that the server lacks.
        required: names of capabilities.
        where: its address or title.

    Raises:
        EndpointError: it lacks one.
    """
    if missing := [name for name in required if name in lacks]:
        raise EndpointError(
            f"{where} lacks what is required: {', '.join(missing)}",
            because="; ".join(lacks[name] for name in missing),
            next_step="start the server so that it has this, or leave it out of --require",
        )
