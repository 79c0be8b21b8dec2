"""The folder for wheels and their index: one setting, with one default."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "SPARKWRIGHT_DIST"
_DEFAULT = "dist"


def dist_folder(root: Path, chosen: Path | None = None) -> Path:
    """Return *chosen*, or the folder named by ``SPARKWRIGHT_DIST``, or ``dist/`` in the checkout *root*."""
    if chosen is not None:
        return chosen
    named = os.environ.get(VARIABLE)
    return Path(named) if named else root / _DEFAULT
