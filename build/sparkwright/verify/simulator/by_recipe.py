"""The simulator's options for a recipe, so that servers with different recipes differ as real ones would."""

from __future__ import annotations

from typing import Final

from sparkwright.recipes import Recipe

# Steps whose verification costs something: a few requests gain by drafts, and many lose by them.
STEP_MS: Final = "105,4,0.0008,0.6"
DRAFT_MS: Final = 3.0
_KV: Final = {"auto": "bfloat16", "fp8_e4m3": "fp8"}
_FLAGS: Final = {
    "max-num-seqs": "--max-num-seqs",
    "max-num-batched-tokens": "--max-batched-tokens",
}


def simulator_arguments(recipe: Recipe) -> tuple[str, ...]:
    """Return the arguments of the simulator that imitate a server of *recipe*.

    Drafted tokens, the method of drafting, the type of the KV cache, requests at a time, tokens of a step and
    the prefix cache are imitated; other flags have no effect.
    """
    drafted = int(recipe.speculative.get("num_speculative_tokens", 0)) if recipe.speculative else 0
    kv = str(recipe.flags.get("kv-cache-dtype", "auto"))
    arguments = ["--k", str(drafted), "--kv-dtype", _KV.get(kv, kv)]
    if drafted:
        arguments += ["--method", str(recipe.speculative.get("method", ""))]
    for flag, option in _FLAGS.items():
        if flag in recipe.flags:
            arguments += [option, str(recipe.flags[flag])]
    if recipe.flags.get("enable-prefix-caching") is False:
        arguments.append("--no-prefix-caching")
    return (*arguments, "--step-ms", STEP_MS, "--draft-ms", str(DRAFT_MS))
