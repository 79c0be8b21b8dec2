"""The card of this host, as ``nvidia-smi`` describes it."""

from __future__ import annotations

import contextlib
import shutil

from sparkwright.base.errors import SparkwrightError
from sparkwright.base.process.run import run

_SECONDS = 10.0


def card_capability() -> str:
    """Return the compute capability of the first card, such as ``12.1``; empty where unreadable."""
    return ask_card("compute_cap").strip()


def card_memory_gib() -> float:
    """Return the first card's memory, or the machine's if shared (GB10: ``[N/A]``); -1 without a card."""
    raw = ask_card("memory.total")
    if not raw:
        return -1
    (mib,) = numbers_of(raw, 1)
    return mib / 1024 if mib >= 0 else _memory_total_gib()


def card_fields(*names: str) -> tuple[str, ...]:
    """Return the fields of the first card by ``nvidia-smi``'s names, as it writes them; empty without a card.

    A field that the card has not, such as a GB10's ``memory.total``, is ``[N/A]`` or ``Not Supported``.
    """
    line = ask_card(",".join(names)).strip()
    cells = tuple(cell.strip() for cell in line.split(","))
    return cells if line and len(cells) == len(names) else ()


def ask_card(query: str) -> str:
    """Return the output of ``nvidia-smi`` for the first card, or empty."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    arguments = [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(SparkwrightError):
        return run(arguments, timeout=_SECONDS).text.partition("\n")[0]
    return ""


def numbers_of(line: str, count: int) -> tuple[float, ...]:
    """Return *count* numbers of a line with commas; -1 for a cell that is none, such as ``[N/A]``."""
    cells = [cell.strip() for cell in line.split(",")]
    found = []
    for cell in (cells + [""] * count)[:count]:
        try:
            found.append(float(cell))
        except ValueError:
            found.append(-1.0)
    return tuple(found)


def _memory_total_gib() -> float:
    import psutil

    return float(psutil.virtual_memory().total) / (1 << 30)
