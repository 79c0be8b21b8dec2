"""The engines that serve the trained drafters, in the order of what they are worth, and what each is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.matrix import CACHES
from pair.models import cell_arguments

LONGEST = 2048
"""Tokens of the longest sequence that an engine serves."""
DRAFTS = 7
"""Tokens of a draft."""
SECONDS = 70
"""About what a cell takes beside three others."""


@dataclass(frozen=True)
class Cell:
    """An engine."""

    drafter: str
    cache: str = "bf16"
    own: str = ""  # format of the drafter's cache, where it is another
    tree: str = "patched"  # or stock
    eager: bool = True

    @property
    def name(self) -> str:
        own = f"-draft-{self.own}" if self.own else ""
        return f"{self.drafter}-{self.cache}{own}-{self.tree}{'' if self.eager else '-graphs'}"

    @property
    def trained(self) -> bool:
        """Return whether its drafter was trained."""
        return self.drafter in ("full", "window")


REFERENCE = Cell("none")
CELLS = (
    REFERENCE,
    Cell("full"),
    Cell("window"),
    Cell("full", tree="stock"),
    Cell("window", tree="stock"),
    Cell("full", "fp8"),
    Cell("window", "nvfp4"),
    Cell("full", "fp8", "bf16"),
    Cell("full", "nvfp4", "bf16"),
    Cell("full", eager=False),
)


def expected_windows(cell: Cell, drafters: Path) -> list[int | None]:
    """Return the windows of the drafter's layers; nothing for a cell without a trained drafter."""
    if not cell.trained:
        return []
    told = json.loads((drafters / cell.drafter / "config.json").read_text(encoding="utf-8"))
    kinds = told.get("layer_types", ["full_attention"] * told["num_hidden_layers"])
    return [told["sliding_window"] if kind == "sliding_attention" else None for kind in kinds]


def speculative(cell: Cell, drafters: Path, device: str) -> dict[str, Any]:
    """Return vLLM's speculative configuration of a trained drafter."""
    found: dict[str, Any] = {"num_speculative_tokens": DRAFTS, "method": "dflash"}
    found["model"] = str(drafters / cell.drafter)
    if device == "cuda":
        found["attention_backend"] = "TRITON_ATTN"
    if cell.own:
        found["kv_cache_dtype"] = {"bf16": "bfloat16"}.get(cell.own, cell.own)
    return found


def specification(
    cell: Cell, model: Path, drafters: Path, device: str, answer: int, prompts: list[list[int]]
) -> dict[str, Any]:
    """Return what a cell's process is told."""
    engine = cell_arguments(device, cell.eager, CACHES[cell.cache]) | {
        "model": str(model),
        "max_model_len": LONGEST,
        "max_num_seqs": 1 + len(prompts),
        "max_num_batched_tokens": 8192,
    }
    if device == "cuda":
        engine["attention_backend"] = "TRITON_ATTN"
    if cell.trained:
        engine["speculative_config"] = speculative(cell, drafters, device)
    ends = json.loads((model / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    return {
        "engine": engine,
        "answer": answer,
        "prompts": prompts,
        "ends": ends if isinstance(ends, list) else [ends],
        "near": cell == REFERENCE,
        "beside": cell.trained and cell.cache == "bf16" and cell.eager,
        "drafts": DRAFTS,
        "longest": LONGEST,
    }
