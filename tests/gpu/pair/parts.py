"""Shared by the two processes of a pair: read an engine's parts, send requests, print results, end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def name_of(thing: object) -> str:
    """Return module and name of the class of *thing*; nothing for None."""
    return "" if thing is None else f"{type(thing).__module__}.{type(thing).__qualname__}"


def drafter_of(runner: Any) -> Any:
    """Return the drafter of a model runner; None without one."""
    return getattr(runner, "drafter", None) or getattr(runner, "speculator", None)


def models_of(runner: Any) -> dict[str, Any]:
    """Return the target and, where there is one, the drafter."""
    found = {"target": runner.get_model() if hasattr(runner, "get_model") else runner.model}
    if (drafter := drafter_of(runner)) is not None:
        found["drafter"] = drafter.model.unwrap() if hasattr(drafter.model, "unwrap") else drafter.model
    return found


def weights_of(models: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names and tensors of all weights; those that models share come once."""
    seen: set[int] = set()
    for whose, model in models.items():
        for name, weight in sorted(model.named_parameters()):
            if weight.data_ptr() not in seen and weight.is_floating_point():
                seen.add(weight.data_ptr())
                yield f"{whose}.{name}", weight.data


def greedy(tokens: int, **more: Any) -> Any:
    """Return vLLM's parameters of a request for exactly so many *tokens*, each the most probable one."""
    from vllm import SamplingParams

    return SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False, **more)


def specification() -> dict[str, Any]:
    """Return what the script tells this process."""
    told: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    return told


def writer(spec: dict[str, Any]) -> Callable[..., None]:
    """Return what appends a line of a kind to the script's file."""

    def write(kind: str, **fields: Any) -> None:
        with Path(spec["lines"]).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, "run": spec["run"], **fields}) + "\n")

    return write


def leave() -> None:
    """End this process at once: what an engine in it does on its way out is not in question."""
    sys.stdout.flush()
    os._exit(0)
