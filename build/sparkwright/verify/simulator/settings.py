"""The settings of a simulated server, and the share of the card's memory that its KV cache gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from sparkwright.verify.simulator.faults import Faults

if TYPE_CHECKING:
    from sparkwright.recipes.recipe import Recipe

BLOCK = 16  # tokens in a block of the KV cache
VERSION: Final = "0.33.0"  # of vLLM, which is imitated: that of the default series
# Acceptance of other methods of drafting over that of DFlash; those that are not listed accept as much.
ACCEPTANCE: Final[dict[str, float]] = {"mtp": 0.95, "eagle3": 0.9, "eagle": 0.85, "ngram": 0.45}


@dataclass(frozen=True)
class StepCosts:
    """The duration of a step, in simulated milliseconds.

    The defaults are close to a dense model of 27 billion parameters in four bits with a DFlash drafter on
    GB10: 124 ms a step for one request, 1.25 s for 64, prompts at 1,600 tokens a second.

    Attributes:
        request: added for each request that decodes in the step.
        context: added for each token of those requests' context.
        prefill: added for each prompt token that is prefilled in the step.
        jitter: standard deviation of a factor that is drawn for each step.
        boot_jitter: standard deviation of a factor drawn once a boot: kernels are tuned at each start.
        draft: added for each drafted token of the requests that decode in the step.
    """

    base: float = 105.0
    request: float = 18.0
    context: float = 0.0008
    prefill: float = 0.6
    jitter: float = 0.01
    boot_jitter: float = 0.015
    draft: float = 0.0


@dataclass(frozen=True)
class Settings:
    """One simulated server, with the words, and other names, of the command line's options that set it.

    Attributes:
        utilization: share of the card's memory that may be used.
    """

    host: Annotated[str, "Address to listen on."] = "127.0.0.1"
    port: Annotated[int, "0 takes a free one."] = 0
    ready: Annotated[Path | None, "Written as JSON once it listens.", "--ready-file"] = None
    log: Annotated[Path | None, "File for its log; else standard error."] = None
    truth: Annotated[Path | None, "File for a JSON line about each request."] = None
    speed: Annotated[float, "Simulated seconds in a real one."] = 1.0
    seed: Annotated[int, "Seed of every random draw."] = 0
    model: Annotated[str, "Served model name."] = "simulated/Qwen3.6-27B-NVFP4"
    api_key: Annotated[str, "Key that requests must carry."] = ""
    k: Annotated[int, "Drafted tokens a step; 0 serves without speculation."] = 7
    method: Annotated[str, "Method of drafting."] = "dflash"
    max_num_seqs: Annotated[int, "Requests that may run at a time."] = 64
    max_batched_tokens: Annotated[int, "Tokens of prompts and drafts in a step."] = 8192
    max_model_len: Annotated[int, "Tokens of the longest request."] = 40_960
    kv_tokens: Annotated[int, "KV cache size in tokens; 0 for the rest of the memory."] = 0
    kv_dtype: Annotated[Literal["bfloat16", "fp8", "nvfp4"], "KV cache type."] = "fp8"
    prefix_caching: Annotated[bool, "Reuse cached blocks."] = True
    reasoning: Annotated[bool, "Begin chat output with reasoning."] = False
    images: Annotated[bool, "Let chats hold pictures."] = True
    tool_parser: Annotated[bool, "Let chats offer tools."] = True
    tool_template: Annotated[bool, "Describe tools to the model."] = True
    boot_s: Annotated[float, "Simulated time until it is ready.", "--boot-seconds"] = 3.0
    engine: Annotated[bool, "Start the engine's process."] = True
    utilization: float = 0.5
    total_gib: float = 119.68
    weights_gib: float = 17.94
    costs: StepCosts = field(default_factory=StepCosts)
    faults: Faults = field(default_factory=Faults)

    @property
    def acceptance(self) -> float:
        """Return the factor of the method of drafting on acceptance."""
        return ACCEPTANCE.get(self.method, 1.0)


_GIB: Final = 1 << 30
_OTHER_GIB: Final = 3.42  # peak activations and non-torch memory
_GRAPHS_GIB: Final = {"estimated": 1.03, "actual": 0.86}
# Bytes of a token in the KV cache of a hybrid model with 16 layers of full attention, the drafter's included.
# NVFP4 holds less than twice what FP8 does: scales, and states that stay as they are (published: 1.79 times).
_BYTES: Final = {"auto": 146_000, "bfloat16": 146_000, "fp8": 73_000, "fp8_e4m3": 73_000, "nvfp4": 40_850}


@dataclass(frozen=True)
class MemoryPlan:
    """Shares of the card's memory, in GiB.

    Attributes:
        kv_tokens: its capacity in tokens, in whole blocks.
    """

    kv_gib: float
    kv_tokens: int
    kv_dtype: str
    graphs_gib: float
    graphs_actual_gib: float


def plan_memory(settings: Settings) -> MemoryPlan:
    """Return the memory left for the KV cache, computed as vLLM does: the budget less weights and graphs."""
    dtype = "nvfp4" if "nvfp4-no-gain" in settings.faults else settings.kv_dtype
    size = _BYTES["fp8" if "nvfp4-no-gain" in settings.faults else dtype]
    wrong = settings.faults.value("negative-estimate", "gib")
    estimate = _GRAPHS_GIB["estimated"] if wrong is None else wrong
    budget = settings.utilization * settings.total_gib - settings.weights_gib - _OTHER_GIB - estimate
    tokens = settings.kv_tokens or int(budget * _GIB / size)
    tokens -= tokens % BLOCK
    gib = tokens * size / _GIB if settings.kv_tokens else budget
    return MemoryPlan(round(gib, 2), tokens, dtype, estimate, _GRAPHS_GIB["actual"])


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
