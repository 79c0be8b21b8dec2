"""Capabilities of machines, which tasks may need: Dask's resources beside cores and memory."""

from __future__ import annotations

import contextlib
import platform
from typing import TYPE_CHECKING

from sparkwright.base.card import card_capability
from sparkwright.cluster.messages import own_code

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CUDA, GPU, GB10 = "cuda", "gpu", "gb10"
"""An installed CUDA toolkit; a card of NVIDIA's; one with the compute capability of GB10."""

CODE = "code-"
"""Begin of the capability that every task needs: the same program as that of the machine that asks."""
_GB10 = (12, 1)
_ALONE = frozenset({GPU, GB10})


def machine_need(machine: str = "") -> str:
    """Return the capability of being a *machine* such as ``aarch64``; by default one like this."""
    return f"machine-{machine or platform.machine()}"


def code_need() -> str:
    """Return the capability of having this very program."""
    return f"{CODE}{own_code()[:12]}"


def look_for_capabilities(cuda: Path | None = None) -> tuple[str, ...]:
    """Return the capabilities of this machine.

    Args:
        cuda: an installed CUDA toolkit, where the user names one.
    """
    found = [code_need(), machine_need()]
    if cuda is not None:
        found.append(CUDA)
    card: tuple[int, ...] = ()
    with contextlib.suppress(ValueError):
        card = tuple(map(int, card_capability().split(".")))
    if card:
        found.append(GPU)
    if card == _GB10:
        found.append(GB10)
    return tuple(found)


def resources_of(offers: Iterable[str], slots: int) -> dict[str, int]:
    """Return Dask's resources for *offers*: a card serves one task at a time, the rest all *slots*."""
    return {name: 1 if name in _ALONE else slots for name in offers}
