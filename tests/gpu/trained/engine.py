"""The process behind ``trained_drafter.py serve``: one engine, the same prompts several ways, one JSON file.

Started as ``python -m trained.engine SPEC``. The engine core runs in this process, stepped here, so that
the tokens of each request's each step are known: one, and the drafts that were accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet.engine import boot, counters, nearness
from pair.parts import leave, specification

Row = dict[str, Any]
BESIDE = 8
"""Prompts that are asked beside a long request."""


class Asking:
    """An engine that is asked; each request has a row: tokens, tokens of each step, tokens from the cache."""

    def __init__(self, engine: Any, spec: dict[str, Any]) -> None:
        self.engine, self.spec, self.count = engine, spec, 0
        self.live: dict[str, Row] = {}

    def add(self, prompt: list[int], tokens: int = 0) -> Row:
        """Send a request for so many *tokens*, by default as many as an answer may have; return its row."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        self.count += 1
        name, row = f"request-{self.count}", {"tokens": [], "steps": [], "cached": 0, "near": []}
        wanted = SamplingParams(
            max_tokens=tokens or self.spec["answer"], temperature=0.0, detokenize=False,
            ignore_eos=bool(tokens), stop_token_ids=None if tokens else self.spec["ends"],
            logprobs=8 if self.spec["near"] else None,
        )  # fmt: skip
        self.engine.llm_engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), wanted)
        self.live[name] = row
        return row

    def step(self) -> None:
        """Let the engine do one step, and note what came of it."""
        for output in self.engine.llm_engine.step():
            row, told = self.live[output.request_id], output.outputs[0]
            if new := len(told.token_ids) - len(row["tokens"]):
                row["steps"].append(new)
            row["tokens"], row["cached"] = list(told.token_ids), output.num_cached_tokens or 0
            if output.finished:
                if self.spec["near"]:
                    row["near"] = [nearness(place) for place in told.logprobs]
                del self.live[output.request_id]

    def wave(self, prompts: list[list[int]]) -> list[Row]:
        """Ask all *prompts* at once; return their rows."""
        rows = [self.add(prompt) for prompt in prompts]
        while self.live:
            self.step()
        return rows

    def beside(self, prompts: list[list[int]]) -> list[Row]:
        """Ask *prompts* while a request near the longest sequence keeps the drafter from running."""
        longest, drafts = self.spec["longest"], self.spec["drafts"]
        # Without the first token no block of it is one of another prompt.
        source = [token for prompt in self.spec["prompts"] for token in prompt][1:]
        begin = longest - 4 * (drafts + 1)
        prompt = (source * (1 + begin // len(source)))[:begin]
        long = self.add(prompt, tokens=longest - begin)
        # A step needs room for the drafts that it verifies and for the queries of those that follow.
        while self.live and begin + len(long["tokens"]) < longest - 2 * drafts:
            self.step()
        return self.wave(prompts)


def main(spec: dict[str, Any]) -> None:
    """Boot, ask cold, from the prefix cache, and beside a long request; write what came after each wave."""
    engine, seen, write = boot(spec, waves={})
    asking, first = Asking(engine, spec), spec["prompts"][:BESIDE]
    waves: dict[str, Callable[[], list[Row]]] = {
        "cold": lambda: asking.wave(spec["prompts"]),
        "warm": lambda: asking.wave(spec["prompts"]),
        "beside": lambda: asking.beside(first),
        "beside warm": lambda: asking.wave(first),
    }
    for stage in [*waves][: 4 if spec["beside"] else 2]:
        if stage in ("cold", "beside"):
            engine.reset_prefix_cache()
        before = counters(engine)
        rows = waves[stage]()
        told = {name: value - before.get(name, 0) for name, value in counters(engine).items()}
        seen["waves"][stage] = {"rows": rows, "counters": told}
        write(stage)
    write("end")
    leave()


if __name__ == "__main__":
    main(specification())
