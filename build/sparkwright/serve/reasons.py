"""The command that serves a recipe, with the reason of each flag and variable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engine.flashinfer import REASONS
from sparkwright.recipes import Recipe
from sparkwright.serve.caches import reason_of
from sparkwright.serve.settings import KEY_VARIABLE

_UNSAID = "the recipe has it"
# For flags that a recipe gives no reason of its own for.
_KNOWN = {
    "model": "weights, by the recipe",
    "served-model-name": "the name that clients ask for is the recipe's",
    "host": "address to listen at",
    "port": "port to listen at",
    "attention-backend": "kernels that read this type of KV cache on this card",
    "dtype": "type of the activations",
    "enable-auto-tool-choice": "the model may decide to call a tool",
    "enable-flashinfer-autotune": "tuning takes time at each start, and its results are kept where it is on",
    "enable-prefix-caching": "prompts with the same beginning are prefilled once",
    "enforce-eager": "no CUDA graphs and no compiler",
    "generation-config": "clients' sampling parameters count, not defaults of the checkpoint",
    "gpu-memory-utilization": "share of the memory for weights and KV cache; the host has the rest",
    "kv-cache-dtype": "type of the KV cache: fewer bytes hold more tokens",
    "load-format": "source of the weights",
    "max-model-len": "tokens of the longest request, prompt and answer together",
    "max-num-batched-tokens": "tokens of one step: longer prompts are prefilled in chunks",
    "max-num-seqs": "requests that run at a time; the others wait",
    "reasoning-parser": "the model's thoughts come back in a field of their own",
    "seed": "the same request gets the same answer",
    "tensor-parallel-size": "cards that hold a part of each layer",
    "tool-call-parser": "tool calls come back in OpenAI's format",
    "trust-remote-code": "the checkpoint brings Python files of its own",
    "speculative": "tokens are drafted, and verified by the model",
    "speculative.method": "the way to draft",
    "speculative.num_speculative_tokens": "tokens drafted in a step",
    "speculative.attention_backend": "the drafter does not take over the model's",
    "HF_HUB_OFFLINE": "models are taken from this machine alone",
    "TRANSFORMERS_OFFLINE": "models are taken from this machine alone",
    "PYTHONUNBUFFERED": "the log is complete up to a crash",
    "NO_COLOR": "the log is a file",
    "VLLM_NO_USAGE_STATS": "nothing is reported to upstream",
    KEY_VARIABLE: "the key that clients must send, out of --api-key-file or this shell",
    **REASONS,
}


@dataclass(frozen=True)
class Reason:
    """A flag or variable, with its value and the reason for it.

    Attributes:
        name: the flag with its dashes, or the variable.
        value: its value as text; empty for a switch.
    """

    name: str
    value: str
    why: str


def explain_flags(recipe: Recipe, *, host: str, port: int) -> tuple[Reason, ...]:
    """Return each flag of the command that serves *recipe*, in its order, with its reason."""
    decided = {"served-model-name": recipe.name, "host": host, "port": port}
    found = [Reason("model", recipe.model, _why(recipe, "model"))]
    found += [Reason(f"--{name}", str(value), _why(recipe, name)) for name, value in decided.items()]
    for name, value in recipe.flags.items():
        switch = f"--no-{name}" if value is False else f"--{name}"
        found.append(Reason(switch, "" if isinstance(value, bool) else _text(value), _why(recipe, name)))
    if recipe.speculative:
        drafter = {"model": recipe.drafter} if recipe.drafter else {}
        for name, value in {**recipe.speculative, **drafter}.items():
            why = _why(recipe, f"speculative.{name}")
            if why == _UNSAID:
                why = _why(recipe, "speculative")
            found.append(Reason(f"--speculative-config {name}", _text(value), why))
    return tuple(found)


def explain_variables(recipe: Recipe, variables: Mapping[str, str]) -> tuple[Reason, ...]:
    """Return the variables of the server that serves *recipe*, sorted; a key's value is never shown."""
    return tuple(
        Reason(
            name,
            "***" if name.endswith(("_KEY", "_TOKEN")) else value,
            reason_of(name) or _why(recipe, name),
        )
        for name, value in sorted(variables.items())
    )


def _why(recipe: Recipe, name: str) -> str:
    return recipe.why.get(name) or _KNOWN.get(name, _UNSAID)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
