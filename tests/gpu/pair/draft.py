"""A view into the drafter, mixed into vLLM's worker, and the process that compares drafters.

Started by `draft_attention.py` as ``python -m pair.draft SPEC``: one engine without CUDA graphs, whose
drafter gets weights with which attention matters (those of ``load_format="dummy"`` are too small for that).
A line is written for each prompt, with what the drafter's last layer gave in its first proposal.
"""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import torch

from pair.worker import PairView

__all__ = ["DraftView"]

SECONDS = 240


class DraftView(PairView):
    """What the draft layers are, how they attend, and what the drafter computes."""

    def pair_draft_layers(self) -> list[dict[str, Any]]:
        """The draft layers in order; from here on, the causality of their metadata is noted."""
        drafter = self._pair_drafter()
        self._pair_note_causality(drafter)
        context = self.vllm_config.compilation_config.static_forward_context
        groups = self.model_runner.kv_cache_config.kv_cache_groups
        unsorted = _first_of(drafter, "_draft_attn_layer_names", "draft_attn_layer_names")
        names = sorted(unsorted, key=lambda name: int(name.split(".")[-3]))
        return [
            {
                "name": name,
                "window": list(context[name].impl.sliding_window),
                "backend": context[name].attn_backend.get_name(),
                "kv": type(context[name].get_kv_cache_spec(self.vllm_config)).__name__,
                "group": next(i for i, group in enumerate(groups) if name in group.layer_names),
            }
            for name in names
        ]

    def _pair_drafter(self) -> Any:
        """Return the drafter of model runner V1, or the speculator of V2."""
        return _first_of(self.model_runner, "drafter", "speculator")

    def _pair_note_causality(self, drafter: Any) -> None:
        v1 = hasattr(drafter, "build_per_group_and_layer_attn_metadata")
        name = "build_per_group_and_layer_attn_metadata" if v1 else "_build_attn_metadata"
        build = getattr(drafter, name)
        self._pair_causality: dict[str, set[str]] = {}

        def noting(*arguments: Any, **named: Any) -> Any:
            built = build(*arguments, **named)
            for layer, metadata in ((built[1] if v1 else built) or {}).items():
                self._pair_causality.setdefault(layer, set()).add(str(metadata.causal))
            return built

        setattr(drafter, name, noting)

    def pair_draft_causality(self) -> dict[str, list[str]]:
        """Which causality each layer's metadata had since `pair_draft_layers` was called."""
        return {name: sorted(seen) for name, seen in self._pair_causality.items()}

    def pair_draft_weights(self) -> int:
        """Give the drafter's own weights a usual size, the same for the same names; return their number."""
        model = self._pair_drafter().model
        count = 0
        with torch.inference_mode():
            for name, weight in model.named_parameters():
                if "embed_tokens" in name or "lm_head" in name:  # the target's
                    continue
                count += weight.numel()
                if weight.ndim == 1:
                    weight.fill_(1.0)
                    continue
                generator = torch.Generator(device=weight.device).manual_seed(zlib.crc32(name.encode()))
                weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=generator)
            model.model._build_fused_kv_buffers()  # copies of the weights
        return count

    def pair_draft_watch(self) -> None:
        """From here on, keep what the drafter's last layer gives in the first proposal."""
        drafter = self._pair_drafter()
        v1 = hasattr(drafter, "_sample_draft_tokens")
        name = "_sample_draft_tokens" if v1 else "sample_draft"
        if not hasattr(self, "_pair_sample"):
            self._pair_sample = getattr(drafter, name)
        self._pair_first: list[list[float]] = []

        def keeping(hidden_states: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            tokens = self._pair_sample(hidden_states, *arguments, **named)
            if not self._pair_first:
                self._pair_first.append(hidden_states.float().flatten().tolist())
                self._pair_first.append((tokens[0] if v1 else tokens).flatten().tolist())
            return tokens

        setattr(drafter, name, keeping)

    def pair_draft_first(self) -> list[list[float]]:
        """Hidden states and tokens of the first proposal since `pair_draft_watch`; empty without one."""
        return self._pair_first


def _first_of(thing: Any, *names: str) -> Any:
    """Return the attribute of *thing* that is there and not None: releases and runners name it differently.

    Raises:
        AttributeError: there is none.
    """
    found = [getattr(thing, name, None) for name in names]
    for value in found:
        if value is not None:
            return value
    raise AttributeError(f"{type(thing).__name__} has none of {', '.join(names)}")


async def compare(spec: dict[str, Any]) -> None:
    """Boot, set the weights, and write a line for each prompt."""
    from vllm.v1.engine.async_llm import AsyncLLM

    from pair.engine import ask, engine_args
    from pair.load import Request

    engine = AsyncLLM.from_engine_args(engine_args(spec))

    def write(**fields: Any) -> None:
        with Path(spec["lines"]).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": "compare", "run": spec["run"], **fields}) + "\n")

    try:
        async with asyncio.timeout(SECONDS):
            layers = (await engine.collective_rpc("pair_draft_layers"))[0]
            weights = (await engine.collective_rpc("pair_draft_weights"))[0]
            for length in spec["prompts"]:
                await engine.collective_rpc("pair_draft_watch")
                # The name seeds the prompt: the same tokens for every drafter.
                await ask(engine, Request(f"compare-{length}", length, output=4, temperature=0.0))
                states, tokens = (await engine.collective_rpc("pair_draft_first"))[0]
                write(prompt=length, layers=layers, weights=weights, states=states, tokens=tokens)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(compare(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
