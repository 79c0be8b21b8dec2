"""The limits of a wheel's members, which merges keep and audits check."""

from __future__ import annotations

import unicodedata

# Upstream's largest Python file has 0.3 MB. Ruff takes up to 2.4 GB for each MiB of Python that is made to be
# hard to read.
MOST_PYTHON = 1 << 20
MOST_TEXT = 16 << 20
"""Most bytes of a member that is no binary, and is held in memory at once; upstream's largest has 2.9 MB."""


def most_bytes(name: str) -> int:
    """Return the most bytes that the member *name* may have, unless it is a binary."""
    return MOST_PYTHON if name.endswith(".py") else MOST_TEXT


def name_fault(name: str) -> str:
    """Return the reason that *name* is unsafe as a member's name, or the empty string."""
    odd = "" if name.isprintable() else next(one for one in name if not one.isprintable())
    kind = unicodedata.category(odd) if odd else ""
    faults = {
        "holds a backslash": "\\" in name,
        "is absolute": name.startswith("/") or name[1:2] == ":",
        "reaches outside its folder or has an empty part": any(
            part in {"", ".", ".."} for part in name.removesuffix("/").split("/")
        ),
        "is not UTF-8": kind == "Cs",
        "holds control characters": kind == "Cc",
        f"holds U+{ord(odd or ' '):04X}, which is no printable character": bool(odd),
    }
    because = next((fault for fault, found in faults.items() if found), "")
    return because and f"the name {name!r} {because}"
