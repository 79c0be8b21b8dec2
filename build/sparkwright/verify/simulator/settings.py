"""What a simulated server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sparkwright.verify.simulator.faults import Faults

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 16  # tokens in a block of the KV cache
Dialect = Literal["0.24", "0.33"]
VERSIONS: dict[Dialect, str] = {"0.24": "0.24.0", "0.33": "0.33.0"}


@dataclass(frozen=True)
class StepCosts:
    """What a step costs, in simulated milliseconds.

    The defaults are close to a dense model of 27 billion parameters in four bits with a DFlash drafter on
    GB10: 124 ms a step for one request, 1.25 s for 64, prompts at 1,600 tokens a second.

    Attributes:
        base: any step.
        request: more, for each request that decodes in it.
        context: more, for each token in those requests' context.
        prefill: more, for each token of a prompt that is worked through in it.
        jitter: standard deviation of a step's own factor.
        lottery: standard deviation of a start's factor: kernels are tuned anew at each start.
    """

    base: float = 105.0
    request: float = 18.0
    context: float = 0.0008
    prefill: float = 0.6
    jitter: float = 0.01
    lottery: float = 0.015


@dataclass(frozen=True)
class Settings:
    """One simulated server.

    Attributes:
        dialect: which vLLM it speaks like.
        model: the name that it serves.
        host: address to listen on.
        port: 0 takes a free one.
        api_key: what clients must know; empty asks for none.
        speed: simulated seconds in a real one.
        seed: of all that is drawn.
        k: drafted tokens a step; 0 serves without speculation.
        method: of speculation.
        max_num_seqs: requests that may run at a time.
        max_model_len: tokens of the longest request; 0 for what fits (see `memory.fitted`).
        max_batched_tokens: tokens of prompts and drafts in one step.
        kv_tokens: tokens that the KV cache holds; 0 for what is left of the memory.
        kv_dtype: their type.
        prefix_caching: whether blocks are found again.
        prompt_details: whether ``usage`` says how many tokens came from the cache.
        reasoning: whether chat output begins with thoughts, as a parser of them would give it.
        spec_metrics: acceptance on each response (vLLM 0.33).
        runner: model runner that the log names.
        utilization: share of the card's memory that may be used.
        total_gib: the card's memory.
        weights_gib: memory that weights take.
        boot_s: simulated seconds until it is ready.
        costs: of steps.
        faults: what is wrong with it.
        log: file for its log; the standard error stream if absent.
        ready: file that is written when it listens.
        truth: file for a line about each request.
        engine: whether to start the engine's process.
    """

    dialect: Dialect = "0.24"
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
    spec_metrics: Literal["", "summary", "detailed"] = ""
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

    @property
    def version(self) -> str:
        """The version that it says it is."""
        return VERSIONS[self.dialect]
