"""Capabilities of a server: what a check may need, and what a server may lack without being broken.

What a server lacks is decided once, before the first cell, and recorded with the run. Findings that need it
are then not applicable. Whatever a server had at that time and loses later is a defect, as is anything that
its recipe configures.
"""

from __future__ import annotations

from typing import Final

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
