"""The tiny target and drafter that are served: those of `sparkwright.verify.tiny`, for short requests.

vLLM makes the weights up (``load_format="dummy"``) and is given token ids.
"""

from __future__ import annotations

import sys
from pathlib import Path

# From a copy of the sources: where this runs, nothing of this project is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "build"))
from sparkwright.verify.tiny.models import VOCABULARY, write_tiny_models

__all__ = ["MAX_MODEL_LEN", "VOCABULARY", "write_models"]

MAX_MODEL_LEN = 2048


def write_models(folder: Path) -> tuple[Path, Path]:
    """Write the models under *folder*; return the two folders."""
    return write_tiny_models(folder, max_model_len=2 * MAX_MODEL_LEN)
