"""The limits of a wheel's members, which merges keep and audits check."""

from __future__ import annotations

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
    if "\\" in name:
        return f"the name {name!r} holds a backslash"
    if name.startswith("/") or name[1:2] == ":":
        return f"the name {name!r} is absolute"
    if any(part in {"", ".", ".."} for part in name.removesuffix("/").split("/")):
        return f"the name {name!r} reaches outside its folder or has an empty part"
    if any("\udc80" <= character <= "\udcff" for character in name):
        return f"the name {name!r} is not UTF-8"
    if odd := next((character for character in name if not character.isprintable()), ""):
        return f"the name {name!r} holds U+{ord(odd):04X}, which is no printable character"
    return ""
