"""The settings of a simulated server, and the share of the card's memory that its KV cache gets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from sparkwright.verify.simulator.faults import Faults

BLOCK = 16  # tokens in a block of the KV cache
Dialect = Literal["0.24", "0.33"]
DIALECT: Final[Dialect] = "0.33"  # of the default series
ServerShape = Literal["vllm", "other"]
VERSIONS: dict[Dialect, str] = {"0.24": "0.24.0", "0.33": "0.33.0"}
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
    """One simulated server.

    Attributes:
        dialect: the vLLM release that it imitates.
        model: the served model name.
        host: address to listen on.
        port: 0 takes a free one.
        api_key: key that requests must carry; empty for none.
        speed: simulated seconds in a real one.
        seed: seed of every random draw.
        k: drafted tokens a step; 0 serves without speculation.
        max_num_seqs: requests that may run at a time.
        max_model_len: tokens of the longest request; 0 for the largest that fits (see `fit_max_model_len`).
        max_batched_tokens: tokens of prompts and drafts in one step.
        kv_tokens: capacity of the KV cache in tokens; 0 for the rest of the memory.
        kv_dtype: type of the KV cache.
        prefix_caching: reuse cached blocks.
        prompt_details: include the count of cached tokens in ``usage``.
        reasoning: begin chat output with reasoning, as a reasoning parser would return it.
        images: chats may hold pictures.
        tool_parser: chats may offer tools.
        tool_template: the chat template describes tools to the model.
        runner: model runner that the log names.
        utilization: share of the card's memory that may be used.
        total_gib: the card's memory.
        boot_s: simulated seconds until the server is ready.
        costs: duration of steps.
        log: file for the server's log; the standard error stream if absent.
        ready: file that is written when the server listens.
        truth: file for one line about each request.
        engine: start the engine's process.
        shape: the kind of server. Another one than vLLM, such as llama.cpp's or that of transformers, has
            chats alone, refuses fields that are not OpenAI's, counts no tokens, sends no ``[DONE]``, and
            closes a connection after a stream.
    """

    dialect: Dialect = DIALECT
    model: str = "simulated/Qwen3.6-27B-NVFP4"
    host: str = "127.0.0.1"
    port: int = 0
    api_key: str = ""
    speed: float = 1.0
    seed: int = 0
    k: int = 7
    method: str = "dflash"
    max_num_seqs: int = 64
    max_model_len: int = 40_960
    max_batched_tokens: int = 8192
    kv_tokens: int = 0
    kv_dtype: str = "fp8"
    prefix_caching: bool = True
    prompt_details: bool = True
    reasoning: bool = False
    images: bool = True
    tool_parser: bool = True
    tool_template: bool = True
    runner: Literal["v1", "v2"] = "v1"
    utilization: float = 0.5
    total_gib: float = 119.68
    weights_gib: float = 17.94
    boot_s: float = 3.0
    costs: StepCosts = field(default_factory=StepCosts)
    faults: Faults = field(default_factory=Faults)
    log: Path | None = None
    ready: Path | None = None
    truth: Path | None = None
    engine: bool = True
    shape: ServerShape = "vllm"

    @property
    def version(self) -> str:
        """Return the vLLM version that the server reports."""
        return VERSIONS[self.dialect]

    @property
    def acceptance(self) -> float:
        """Return the factor of the method of drafting on acceptance."""
        return ACCEPTANCE.get(self.method, 1.0)


_GIB: Final = 1 << 30
_MOST_LEN: Final = 40_960
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
        graphs_gib: CUDA graphs as estimated.
        graphs_actual_gib: CUDA graphs as captured.
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


def fit_max_model_len(settings: Settings) -> Settings:
    """Return *settings* with the largest request length that fits, where its length is 0."""
    if settings.max_model_len:
        return settings
    most = plan_memory(settings).kv_tokens - BLOCK - 1 - settings.k
    return replace(settings, max_model_len=min(_MOST_LEN, most - most % BLOCK))
