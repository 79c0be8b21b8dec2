"""The tiny target and drafter that are served: those of `sparkwright.engine.tiny`, for short requests.

vLLM makes the weights up (``load_format="dummy"``) and is given token ids.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

# From a copy of the sources: where this runs, nothing of this project is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "build"))
from sparkwright.engine.tiny.models import VOCABULARY, write_tiny_models

__all__ = ["MAX_MODEL_LEN", "VOCABULARY", "write_models", "write_window_drafter"]

MAX_MODEL_LEN = 2048
# Engines that boot side by side on one card measure each other's memory: this many GiB are taken instead.
CACHE_BYTES = int(float(os.environ.get("PAIR_CACHE_GIB", "0")) * 2**30) or None
WINDOW_LAYERS = ["sliding_attention"] * 4 + ["full_attention"]


def write_models(folder: Path) -> tuple[Path, Path]:
    """Write the models under *folder*; return the two folders."""
    return write_tiny_models(folder, max_model_len=2 * MAX_MODEL_LEN)


def write_window_drafter(drafter: Path, name: str, window: int | None) -> Path:
    """Write a copy of *drafter* beside it, with five layers; returns its folder."""
    folder = drafter.with_name(name)
    shutil.copytree(drafter, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = len(WINDOW_LAYERS)
    if window is not None:
        config |= {"layer_types": WINDOW_LAYERS, "sliding_window": window, "use_sliding_window": True}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder
