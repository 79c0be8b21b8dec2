"""Records of a measured server: its replies, counters, host and boot. `cell` has the requests.

All times are nanoseconds of `time.perf_counter_ns` (monotonic, origin arbitrary) unless a name ends in
``_s``. Everything here goes into the journal as JSON and comes back the same.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import field

from sparkwright.base.config import Model
from sparkwright.engine.cell import REFUSED, Cell


class FailureKind(StrEnum):
    """Reason for which a request does not count."""

    CONNECT = "connect"  # no connection, or refused
    STATUS = "status"  # an HTTP status other than 200
    NOT_JSON = "not-json"  # HTML, cut or broken JSON
    FORM = "form"  # JSON, but no chunk as OpenAI's servers write them
    IN_BAND = "in-band"  # an ``error`` object inside the stream
    TRUNCATED = "truncated"  # the stream ended without ``[DONE]``
    RESET = "reset"  # the connection broke
    NO_FINISH = "no-finish"  # ``[DONE]`` without a finish reason
    FIRST_TOKEN = "first-token"  # noqa: S105 - no token within the deadline
    STALL = "stall"  # tokens, and then none within the deadline
    OVERDUE = "overdue"  # tokens now and then, and no end within the deadline of the whole
    RUNAWAY = "runaway"  # more than was requested, and no end
    NO_COUNT = "no-count"  # neither usage nor token ids
    COUNT = "count"  # usage and token ids disagree
    LENGTH = "length"  # another number of tokens than requested, or ``abort``


REFUSALS = frozenset({400, 404, 405, 413, 415, 422, 501})
"""Statuses that say that the request, not the server, is at fault."""


class RequestFailure(Model, frozen=True):
    """Reason for which a request does not count, with the observed detail."""

    kind: FailureKind
    detail: str
    status: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Chunk(Model, frozen=True, array_like=True, gc=False):
    """One event with generated output: the time at which its bytes were read, and its tokens.

    Attributes:
        at: time at which the read that completed it returned.
        tokens: tokens in it, from token ids; 0 where the server does not send them.
        kind: of output: ``content``, ``reasoning`` or ``tool``.
    """

    at: int
    tokens: int
    kind: str = "content"


class TokenLogprobs(Model, frozen=True, array_like=True):
    """One generated token: its log-probability, and the most likely alternatives (natural logarithm).

    Attributes:
        token: the token as the server writes it, ``token_id:N`` where that was requested.
        top: the alternatives' by token, the most likely first.
    """

    token: str
    logprob: float
    top: dict[str, float]


class ToolCall(Model, frozen=True):
    """One call of a tool, as the server parsed it from the generated text.

    Attributes:
        arguments: JSON text, as streamed.
    """

    name: str
    arguments: str


class Sample(Model, frozen=True):
    """One request and its result.

    Attributes:
        counted: false for a warm-up.
        request: the server's id of it, as its log has it; empty if unknown.
        started: time at which its bytes were handed to the socket.
        headers: time at which the response's headers were read; 0 if never.
        ended: time at which the stream was over or abandoned.
        chunks: events with output, in order.
        cached_tokens: those of them that came from the prefix cache; -1 if the server does not report them.
        output_tokens: from ``usage``, or the number of token ids.
        counted_by: source of `output_tokens`: ``usage``, ``ids`` or empty.
        finish_reason: as the server gave it.
        text: the generated text, reasoning first.
        token_ids: the generated tokens, if the server sends their ids.
        logprobs: for each generated token, if requested.
        reasoning_chars: characters at the beginning of `text` that are reasoning.
        tool_chars: characters at its end that are names and arguments of tool calls.
        failure: reason for which it does not count.
        due: time at which an open loop meant to send it; 0 for other loads.
        late: nanoseconds after that at which the client came to sending it.
        responded: time at which the first event with a choice was read, also one without output such as a
            chat's role; 0 if none was, or in recordings that lack it.
    """

    prompt: str
    category: str
    started: int
    ended: int
    counted: bool = True
    request: str = ""
    headers: int = 0
    chunks: tuple[Chunk, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = -1
    output_tokens: int = 0
    counted_by: Literal["usage", "ids", ""] = ""
    finish_reason: str = ""
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    reasoning_chars: int = 0
    tool_chars: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    failure: RequestFailure | None = None
    due: int = 0
    late: int = 0
    responded: int = 0

    @property
    def answer(self) -> str:
        """The generated text without reasoning and tool calls: the part that a user reads."""
        return self.text[self.reasoning_chars : len(self.text) - self.tool_chars]

    @property
    def first(self) -> int:
        """Time at which the first generated token was read; 0 if none was."""
        return self.chunks[0].at if self.chunks else 0

    @property
    def last(self) -> int:
        """Time at which the last generated token was read; 0 if none was."""
        return self.chunks[-1].at if self.chunks else 0

    @property
    def ttft_ms(self) -> float:
        """Time to the first generated token: from the request's start."""
        return (self.first - self.started) / 1e6

    @property
    def tpot_ms(self) -> float:
        """Time per output token after the first, as vLLM defines it; NaN for fewer than two tokens."""
        if self.output_tokens < 2:  # noqa: PLR2004 - the first token has no predecessor
            return float("nan")
        return (self.last - self.first) / 1e6 / (self.output_tokens - 1)


class MetricsSnapshot(Model, frozen=True):
    """The server's own counters at one moment, summed over engines. Absent values are -1.

    Attributes:
        at: time at which the response had been read.
        drafts: requests times steps with draft tokens.
        draft_tokens: tokens that were drafted.
        accepted: drafted tokens that were accepted; the token that follows them is not among them.
        accepted_per_position: the same by position in the draft.
        generation_tokens: tokens that were generated.
        prompt_tokens: prefilled tokens of prompts.
        prefix_queries: prompt tokens that were looked up in the prefix cache.
        prefix_hits: those that were found.
        preemptions: requests whose blocks were taken away.
        running: requests that run.
        kv_usage: share of the KV cache in use, 0 to 1.
        start_s: the server process's start (seconds since the epoch); another value is another process.
        cache: labels of ``cache_config_info``.
    """

    at: int
    drafts: float = -1
    draft_tokens: float = -1
    accepted: float = -1
    accepted_per_position: tuple[float, ...] = ()
    generation_tokens: float = -1
    prompt_tokens: float = -1
    requests: float = -1
    prefix_queries: float = -1
    prefix_hits: float = -1
    preemptions: float = -1
    running: float = -1
    waiting: float = -1
    kv_usage: float = -1
    start_s: float = -1
    cache: dict[str, str] = field(default_factory=dict)


class HostSample(Model, frozen=True):
    """The machine at one moment; absent values are -1.

    Attributes:
        memory_available_mib: of the whole machine.
        server_rss_mib: resident memory of the server's processes together.
        gpu_slowed_by: NVIDIA's mask of the reasons for which clocks are lowered at this moment.
        swap_used_mib: of the whole machine.
        memory_pressure: percent of the last ten seconds in which some process waited for memory (PSI).
        gpu_utilization: percent of the last moments in which a kernel ran.
        gpu_clock_max_mhz: the highest clock of the multiprocessors that the card offers.
    """

    at: int
    memory_available_mib: float = -1
    server_rss_mib: float = -1
    gpu_clock_mhz: float = -1
    gpu_power_w: float = -1
    gpu_temperature_c: float = -1
    gpu_slowed_by: int = -1
    swap_used_mib: float = -1
    memory_pressure: float = -1
    gpu_utilization: float = -1
    gpu_clock_max_mhz: float = -1


class BootFacts(Model, frozen=True):
    """Facts that a server reported while it started. Absent numbers are -1, absent words empty.

    Attributes:
        runner: the model runner: ``v1`` or ``v2``.
        backends: attention backends that the log names, in order.
        drafter_backends: those of them that were chosen while the drafter was loaded, where the log shows it.
        linear_backends: kernels of quantized linear layers, each after its kind, such as
            ``NVFP4 FlashInferCutlassNvFp4LinearKernel``.
        moe_backends: backends of experts, each after its kind, such as ``NvFp4 FLASHINFER_CUTLASS``.
        slow_paths: slow kernels that the log warns of.
        asked_linear: the requested backend of linear layers; empty if left to vLLM.
        asked_moe: the same of experts.
        quantization: of the weights, in vLLM's words.
        eager: a start without graphs was requested; `None` if not reported.
        capability: compute capability of the card, such as ``12.1``.
        kv_gib: memory for the KV cache.
        kv_tokens: tokens that fit into it.
        kv_dtype: their type, such as ``fp8``.
        max_concurrency: requests of full length that fit.
        weights_gib: memory that the weights took.
        graph_gib: estimated memory of CUDA graphs, which may be negative; `None` if not reported.
        total_gib: the card's memory.
        utilization: share of it that the server may use.
        capture_sizes: batch sizes that graphs were captured for.
        graph_mode: such as ``FULL_AND_PIECEWISE``.
        planned_graphs: the same as it was configured, before backends were asked what they can.
        speculative_tokens: drafted tokens a step, k; 0 without speculation.
        speculative_method: such as ``dflash``.
        max_model_len: tokens of the longest request.
        max_num_seqs: requests that may run at a time.
        seconds: from the start of the process to the first good answer.
        words_per_token: of the corpus's documents, by its own tokenizer; -1 if it was not measured.
        uncounted: failure of its ``POST /tokenize``, though it has one; else empty.
        block_sizes: tokens in a block of the KV cache, of each kind of block, in ascending order.
        refused: reason for which it did not start; empty if it did.
    """

    version: str = ""
    runner: str = ""
    backends: tuple[str, ...] = ()
    drafter_backends: tuple[str, ...] = ()
    linear_backends: tuple[str, ...] = ()
    moe_backends: tuple[str, ...] = ()
    slow_paths: tuple[str, ...] = ()
    asked_linear: str = ""
    asked_moe: str = ""
    quantization: str = ""
    eager: bool | None = None
    capability: str = ""
    kv_gib: float = -1
    kv_tokens: int = -1
    kv_dtype: str = ""
    max_concurrency: float = -1
    weights_gib: float = -1
    graph_gib: float | None = None
    graph_actual_gib: float = -1
    total_gib: float = -1
    utilization: float = -1
    capture_sizes: tuple[int, ...] = ()
    graph_mode: str = ""
    planned_graphs: str = ""
    speculative_tokens: int = -1
    speculative_method: str = ""
    max_model_len: int = -1
    max_num_seqs: int = -1
    seconds: float = -1
    words_per_token: float = -1
    uncounted: str = ""
    block_sizes: tuple[int, ...] = ()
    refused: str = ""


class Observation(Model, frozen=True):
    """The record of one measured cell.

    Attributes:
        samples: its requests, in the order of their starts.
        before: counters of the idle server before the first request.
        after: counters of the idle server after the last one.
        series: counters in between.
        host: the machine in between.
        lag_ms: lag of the client's event loop: maximum and 99th percentile.
        log: error lines of the server's log in this time.
        canary: empty if the server answered a plain request afterwards, else the reason.
        died: the server's exit status if it ended meanwhile; `None` while it runs or where unknown.
        unread: reason for which `before` or `after` is missing, if one is.
        clock_step_s: drift of the wall clock against the monotonic one in this time.
        compiled: compilers that the server ran and kernels that it added to its caches in this time; `None`
            where they were not watched.
        health: HTTP status of ``GET /health`` where the canary stayed without an answer; -1 where unknown.
    """

    cell: Cell
    samples: tuple[Sample, ...] = ()
    before: MetricsSnapshot | None = None
    after: MetricsSnapshot | None = None
    series: tuple[MetricsSnapshot, ...] = ()
    host: tuple[HostSample, ...] = ()
    lag_ms: tuple[float, float] = (0.0, 0.0)
    log: tuple[str, ...] = ()
    canary: str = ""
    died: int | None = None
    unread: str = ""
    clock_step_s: float = 0.0
    compiled: tuple[str, ...] | None = None
    health: int = -1

    @property
    def counted(self) -> tuple[Sample, ...]:
        """Requests that are measured and did not fail."""
        return tuple(sample for sample in self.samples if sample.counted and sample.failure is None)

    @property
    def seconds(self) -> float:
        """Seconds of the client's clock from the first request's start to the last one's end."""
        if not self.samples:
            return 0.0
        begin = min(sample.started for sample in self.samples)
        return (max(sample.ended for sample in self.samples) - begin) / 1e9

    @property
    def refused(self) -> tuple[Sample, ...]:
        """Requests that were refused, in a cell whose requests must or may be (see `cell.REFUSED`)."""
        how = self.cell.tags.get(REFUSED, "")
        if not how:
            return ()
        found = tuple(one for one in self.samples if one.failure and one.failure.status in REFUSALS)
        return found if how == "must" or len(found) == len(self.samples) else ()

    @property
    def failed(self) -> tuple[Sample, ...]:
        """Requests that failed, warm-ups included, and without those that are rightly refused."""
        refused = {id(sample) for sample in self.refused}
        return tuple(one for one in self.samples if one.failure is not None and id(one) not in refused)
