"""The process behind `serve_fleet.py`: one engine, greedy requests at each level, one JSON file.

Started as ``python -m fleet.engine SPEC``. The file that ``out`` names is rewritten after each stage, so that
what was seen is kept when the process is killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pair.parts import greedy, leave, specification
from pair.scoring import TOKENS

from fleet.load import Asked, prefix, requests

METRICS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
}
# All but `TOKENS` have a logit of zero, or near it: among the best ones they would leave no place for these.
NEAREST = {"logprob_token_ids": list(TOKENS)}
"""Sampling parameters that ask for the log probabilities of other tokens; vLLM adds the chosen one's."""


def counters(engine: Any) -> dict[str, int]:
    """Return drafts, drafted and accepted tokens since the start; a counter that vLLM lacks is left out."""
    found: dict[str, int] = {}
    for metric in engine.get_metrics():
        if metric.name in METRICS:
            name = METRICS[metric.name]
            found[name] = found.get(name, 0) + int(metric.value)
    return found


def answer(engine: Any, asked: list[Asked], *, near: bool) -> list[dict[str, Any]]:
    """Return tokens of each request, sent together; with *near*, also how near others came at each place."""
    from vllm.inputs import TokensPrompt

    wanted = [greedy(one.output, **(NEAREST if near else {})) for one in asked]
    prompts = [TokensPrompt(prompt_token_ids=one.prompt) for one in asked]
    found = []
    for output in engine.generate(prompts, wanted, use_tqdm=False):
        told = output.outputs[0]
        line: dict[str, Any] = {"tokens": list(told.token_ids), "cached": output.num_cached_tokens or 0}
        if near:
            line["near"] = [nearness(place) for place in told.logprobs]
        found.append(line)
    return found


def nearness(place: dict[int, Any]) -> dict[str, float]:
    """Return how far below the best one tokens are at a place, in nats."""
    best = max(one.logprob for one in place.values())
    return {str(token): round(best - one.logprob, 4) for token, one in place.items()}


def boot(spec: dict[str, Any], **parts: Any) -> tuple[Any, dict[str, Any], Callable[[str], None]]:
    """Boot an engine; return it, the record with empty *parts*, and what writes the record after a stage."""
    seen: dict[str, Any] = {"stage": "start", **parts}
    out = Path(spec["out"])

    def write(stage: str) -> None:
        seen["stage"] = stage
        part = out.with_suffix(".part")
        part.write_text(json.dumps(seen), encoding="utf-8")
        part.replace(out)

    write("start")
    started = time.monotonic()
    import vllm

    engine = vllm.LLM(**spec["engine"])
    seen |= {"vllm": vllm.__version__, "boot_seconds": round(time.monotonic() - started, 1)}
    # The release's name is in the sources; which build of it is installed, only its distribution says.
    seen |= {"wheel": version("vllm"), "folder": str(Path(vllm.__file__).parent)}
    seen["view"] = engine.collective_rpc("fleet_view")[0]
    write("boot")
    return engine, seen, write


def main(spec: dict[str, Any]) -> None:
    """Boot, look at what booted, answer at each level, cold and warm, and come to an end."""
    engine, seen, write = boot(spec, levels={})
    for level in spec["levels"]:
        before, began = counters(engine), time.monotonic()
        answers = answer(engine, requests(level), near=spec["near"])
        after = counters(engine)
        seen["levels"][str(level)] = {
            "answers": answers,
            "seconds": round(time.monotonic() - began, 2),
            "counters": {name: value - before.get(name, 0) for name, value in after.items()},
        }
        write(f"level {level}")
    for name in ("cold", "warm"):
        seen[name] = answer(engine, [prefix()], near=spec["near"])[0]
    write("end")
    leave()


if __name__ == "__main__":
    main(specification())
