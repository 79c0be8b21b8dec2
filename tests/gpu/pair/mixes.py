"""Which caches `quantised_draft.py` serves with, and what must come of each: no import of vLLM here."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pair.models import write_models

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "CASES",
    "QUICK",
    "Case",
    "closeness",
    "faults",
    "write_pairs",
]

WINDOW = 64
_FULL_LAYERS = {0, 3, 6}  # of the target with windows; so many that two drafter layers stay in one group
_KEPT = {"fp8": 0.98, "nvfp4": 0.85}  # least cosine of a quantised drafter's logits to a 16-bit one's


@dataclass(frozen=True)
class Case:
    """One engine.

    Attributes:
        runner: ``v1`` or ``v2``.
        eager: without CUDA graphs.
        target: KV cache dtype of the target.
        draft: KV cache dtype of the drafter; None for the target's.
        windows: whether the target has sliding windows, which stay in 16 bits.
    """

    runner: str
    eager: bool
    target: str
    draft: str | None = None
    windows: bool = False

    @property
    def name(self) -> str:
        """For people and for ``--only``."""
        mode = "eager" if self.eager else "graphs"
        parts = [self.runner, mode, self.target, *([f"draft-{self.draft}"] if self.draft else [])]
        return "-".join([*parts, "windows"] if self.windows else parts)

    @property
    def stored(self) -> str:
        """Return the format that the drafter's layers store."""
        return self.draft or self.target

    @property
    def mixed(self) -> bool:
        """Tell if layers of different formats share memory, so that new blocks must be zeroed."""
        return self.windows and self.target != "auto"

    @property
    def judges(self) -> Case | None:
        """The case whose 16-bit drafter this one's is compared with, of the same target; None for none."""
        if self.stored in ("auto", "bfloat16") or not self.eager or self.windows:
            return None
        draft = None if self.target == "auto" else "bfloat16"
        return Case(self.runner, self.eager, self.target, draft)


def _all() -> list[Case]:
    mixes: list[dict[str, Any]] = [
        {"target": "auto"},
        {"target": "auto", "draft": "fp8"},
        {"target": "fp8"},
        {"target": "fp8", "draft": "bfloat16"},
        {"target": "nvfp4"},
        {"target": "nvfp4", "draft": "bfloat16"},
        {"target": "auto", "windows": True},
        {"target": "fp8", "windows": True},
        {"target": "nvfp4", "windows": True},
        {"target": "nvfp4", "draft": "bfloat16", "windows": True},
    ]
    return [Case(runner, eager, **mix) for eager in (True, False) for runner in ("v1", "v2") for mix in mixes]


CASES = _all()
_QUICK_MIXES = {
    (True, "fp8", None, False),
    (True, "fp8", "bfloat16", False),
    (True, "nvfp4", None, False),
    (True, "nvfp4", "bfloat16", False),
    (True, "nvfp4", None, True),
}
QUICK = [case for case in CASES if (case.eager, case.target, case.draft, case.windows) in _QUICK_MIXES]


def write_pairs(folder: Path) -> dict[bool, tuple[Path, Path]]:
    """Write the models: target and drafter, by whether the target has windows."""
    plain = write_models(folder / "plain")
    target, drafter = write_models(folder / "windows")
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    layers = range(config["num_hidden_layers"])
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "mlp_bias": False,
        "sliding_window": WINDOW,
        "layer_types": [
            "full_attention" if layer in _FULL_LAYERS else "sliding_attention" for layer in layers
        ],
    }
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return {False: plain, True: (target, drafter)}


def closeness(one: list[float], other: list[float]) -> float:
    """The cosine of two vectors; not a number if one of them has none."""
    dot = math.fsum(a * b for a, b in zip(one, other, strict=True))
    norms = math.fsum(a * a for a in one) * math.fsum(b * b for b in other)
    return dot / math.sqrt(norms) if norms else math.nan


def faults(case: Case, line: dict[str, Any], others: dict[str, dict[str, Any]]) -> list[str]:
    """Return what is wrong with a case by its last line, in words; an empty list is a pass.

    Args:
        case: the case.
        line: its ``view`` line.
        others: the ``view`` lines of all cases, by name.
    """
    found = _layer_faults(case, line) + _number_faults(case, line) + _zero_faults(case, line)
    reference = others.get(case.judges.name) if case.judges else None
    if reference is not None:
        found += _closeness_faults(case, line["drafts"], reference["drafts"])
    return found


def _layer_faults(case: Case, line: dict[str, Any]) -> list[str]:
    """Check that each layer stores what it was told to, and that a backend that can reads the drafts."""
    found = []
    for name, layer in line["layers"].items():
        wanted = case.stored if layer["draft"] else case.target
        if layer["window"] and not layer["draft"] and case.mixed:
            wanted = "auto"
        if layer["dtype"] != wanted:
            found.append(f"{name} stores {layer['dtype']} instead of {wanted}")
        if wanted in ("fp8", "nvfp4") and layer["draft"] and layer["backend"] != "TRITON_ATTN":
            found.append(f"{name} is read by {layer['backend']}")
    if sum(layer["draft"] for layer in line["layers"].values()) != 2:
        found.append("there are not two drafter layers")
    padded = [
        group for group in line["groups"] if group["mode"] == "NVFP4" and group["page"] != group["values"]
    ]
    return found + [f"NVFP4 pages of {one['values']} bytes take {one['page']}" for one in padded]


def _number_faults(case: Case, line: dict[str, Any]) -> list[str]:
    """NaN in what target or drafter computed."""
    found = [
        f"{seen['nan']} of {seen['rows']} rows of the {whose}'s logits are NaN"
        for whose, seen in line["logits"].items()
        if seen["nan"]
    ]
    silent = [whose for whose, seen in line["logits"].items() if not seen["rows"]]
    if not case.eager and case.runner == "v2":  # its drafter's logits are part of a graph
        silent = [whose for whose in silent if whose != "drafter"]
    return found + [f"the {whose} computed no logits" for whose in silent]


def _zero_faults(case: Case, line: dict[str, Any]) -> list[str]:
    """Check what was zeroed, on the card and block by block."""
    zeroed = line["zeroed"]
    if not case.mixed:
        return [f"{zeroed['blocks']} blocks were zeroed without need"] if zeroed["blocks"] else []
    found = [] if zeroed["blocks"] else ["no block was zeroed"]
    if zeroed["missed"] or zeroed["touched"]:
        found.append(f"{zeroed['missed']} new blocks stay stale, {zeroed['touched']} others were touched")
    return found


def _closeness_faults(
    case: Case, drafts: dict[str, list[float]], reference: dict[str, list[float]]
) -> list[str]:
    """Check that drafts are nearly those of a 16-bit drafter; those for another prompt are the control."""
    near = closeness(drafts["first"], reference["first"])
    control = closeness(drafts["second"], reference["first"])
    found = []
    if not near >= _KEPT[case.stored]:  # not a number is no less than anything
        found.append(
            f"drafts have a cosine of {near:.4f} to a 16-bit drafter's, {_KEPT[case.stored]} allowed"
        )
    if not 1 - control > 2 * (1 - near):
        found.append(f"drafts for another prompt are as close: {control:.4f} to {near:.4f}")
    return found
