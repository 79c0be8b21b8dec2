"""The engines that serve the trained drafters, in the order of what they are worth, and what each is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CELLS", "Cell", "Setting", "expected_windows", "reference", "specification"]

LONGEST = 2048
"""Tokens of the longest sequence that an engine serves."""
DRAFTS = 7
"""Tokens of a draft."""
SECONDS = 70
"""About what a cell takes beside three others."""
CACHES = {"bf16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}


@dataclass(frozen=True)
class Cell:
    """An engine.

    Attributes:
        drafter: ``none``, ``ngram``, or a trained one, ``full`` or ``window``.
        cache: format of the target's KV cache.
        own: format of the drafter's, where it is another.
        tree: ``patched``, which is what is installed if no other is named, or ``stock``.
        eager: without CUDA graphs.
    """

    drafter: str
    cache: str = "bf16"
    own: str = ""
    tree: str = "patched"
    eager: bool = True

    @property
    def name(self) -> str:
        """Return the cell's name."""
        own = f"-draft-{self.own}" if self.own else ""
        return f"{self.drafter}-{self.cache}{own}-{self.tree}{'' if self.eager else '-graphs'}"

    @property
    def trained(self) -> bool:
        """Return whether its drafter was trained."""
        return self.drafter in ("full", "window")

    @property
    def beside(self) -> bool:
        """Return whether it is also asked beside a request near the longest sequence."""
        return self.trained and self.cache == "bf16" and self.eager


CELLS = (
    Cell("none"),
    Cell("full"),
    Cell("window"),
    Cell("full", tree="stock"),
    Cell("window", tree="stock"),
    Cell("none", "nvfp4"),
    Cell("full", "nvfp4"),
    Cell("none", "fp8"),
    Cell("full", "fp8"),
    Cell("full", "nvfp4", "bf16"),
    Cell("full", "fp8", "bf16"),
    Cell("ngram"),
    Cell("window", "nvfp4"),
    Cell("full", eager=False),
)


@dataclass(frozen=True)
class Setting:
    """The settings that all cells share.

    Attributes:
        model: folder of the target.
        drafters: folder with those that were trained.
        device: ``cuda`` or ``cpu``.
        levels: requests at once, the most first.
        answer: longest answer, in tokens.
        prompts: for all levels; those with fewer requests at once take the first of them.
    """

    model: Path
    drafters: Path
    device: str
    levels: list[int]
    answer: int
    prompts: list[list[int]]


def reference(cell: Cell) -> Cell:
    """Return the cell without a drafter whose answers a cell's are compared with."""
    return Cell("none", cell.cache)


def expected_windows(cell: Cell, drafters: Path) -> list[int | None]:
    """Return the windows of the drafter's layers; nothing for a cell without a trained drafter."""
    if not cell.trained:
        return []
    told = json.loads((drafters / cell.drafter / "config.json").read_text(encoding="utf-8"))
    kinds = told.get("layer_types", ["full_attention"] * told["num_hidden_layers"])
    return [told["sliding_window"] if kind == "sliding_attention" else None for kind in kinds]


def ends(model: Path) -> list[int]:
    """Return the tokens that end an answer."""
    told = json.loads((model / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    return told if isinstance(told, list) else [told]


def speculative(cell: Cell, setting: Setting) -> dict[str, Any] | None:
    """Return vLLM's speculative configuration."""
    if cell.drafter == "none":
        return None
    found: dict[str, Any] = {"num_speculative_tokens": DRAFTS}
    if cell.drafter == "ngram":
        return found | {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    found |= {"method": "dflash", "model": str(setting.drafters / cell.drafter)}
    if setting.device == "cuda":
        found["attention_backend"] = "TRITON_ATTN"
    if cell.own:
        found["kv_cache_dtype"] = {"bf16": "bfloat16"}.get(cell.own, cell.own)
    return found


def specification(cell: Cell, setting: Setting, out: Path) -> dict[str, Any]:
    """Return what a cell's process is told."""
    engine: dict[str, Any] = {
        "model": str(setting.model),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "seed": 0,
        "max_model_len": LONGEST,
        "max_num_seqs": 1 + max(setting.levels),
        "max_num_batched_tokens": 8192,
        "enforce_eager": cell.eager,
        "kv_cache_dtype": CACHES[cell.cache],
        "kv_cache_memory_bytes": 1 << (30 if setting.device == "cpu" else 32),
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "worker_extension_cls": "trained.view.TrainedView",
    }
    if setting.device == "cuda":
        engine |= {"gpu_memory_utilization": 0.08, "enable_flashinfer_autotune": False}
        engine["attention_backend"] = "TRITON_ATTN"
    drafting = speculative(cell, setting)
    if drafting:
        engine["speculative_config"] = drafting
    return {
        "engine": engine,
        "levels": setting.levels[:1] if cell.drafter == "none" else setting.levels,
        "answer": setting.answer,
        "prompts": setting.prompts,
        "ends": ends(setting.model),
        "near": cell.drafter == "none",
        "beside": cell.beside,
        "drafts": DRAFTS,
        "longest": LONGEST,
        "out": str(out),
    }
