"""Shared by the two processes of a pair: read an engine's parts, send requests, print results, end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def name_of(thing: object) -> str:
    """Return module and name of the class of *thing*; nothing for None."""
    return "" if thing is None else f"{type(thing).__module__}.{type(thing).__qualname__}"


def drafter_of(runner: Any) -> Any:
    """Return the drafter of a model runner; None without one."""
    return getattr(runner, "drafter", None) or getattr(runner, "speculator", None)


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
