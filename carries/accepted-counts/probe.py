"""Does a hybrid model's request keep its own count of accepted tokens when rows of the batch move?

Steps run through the runner's own `_update_states`, `_prepare_inputs` up to the counts, and
`_update_states_after_model_execute`, with a real `InputBatch`. The device is a stand-in: what it copies to
the batch arrives at once, or not before it is waited for. Prompts come in chunks and pause, decodes have
drafts, requests end, and decodes are moved to the front.

Healthy: a request has the count of its last step, and 1 for a prompt, whenever the copy arrives. The defect:
copied early, the counts move with their rows and are then looked up by the old rows again; copied late, they
land in rows that have moved.

Controls: steps in which no row moves, and synchronous scheduling.
"""

from __future__ import annotations

import random
from inspect import signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from probekit import expect
from vllm.utils import torch_utils

torch_utils.PIN_MEMORY = False  # a CPU build of torch has none; read where the following are imported

from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput  # noqa: E402
from vllm.v1.utils import CpuGpuBuffer  # noqa: E402
from vllm.v1.worker import gpu_model_runner, mamba_utils  # noqa: E402
from vllm.v1.worker.gpu_input_batch import InputBatch  # noqa: E402
from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable

CPU = torch.device("cpu")
ROWS, LENGTH, TOKENS, DRAFTS = 6, 256, 256, 3
PROMPT, CHUNK = 24, 12


class Counted(Exception):  # noqa: N818 - it ends a method early, and is no error
    """The runner has the counts that its kernels will read; what it prepares besides is not looked at."""


class Counts:
    """The runner's buffer of counts."""

    def __init__(self) -> None:
        self.gpu = torch.zeros(ROWS, dtype=torch.int32)
        self.np = np.zeros(ROWS, dtype=np.int32)

    def copy_to_gpu(self, *_: int) -> None:
        """End `_prepare_inputs`: whatever else it does comes after this."""
        raise Counted


class Device:
    """Copies counts to the batch, each in its time."""

    def __init__(self, *, early: bool) -> None:
        self.early = early
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.waits = 0

    def copy(self, *, num_reqs: int, num_accepted_tokens_gpu: Any, **step: Any) -> None:
        """Copy a step's counts; where blocks of states are cached, a kernel for states comes before."""
        rows = step["num_accepted_tokens_cpu_tensor"][:num_reqs]
        self.pending.append((rows, num_accepted_tokens_gpu[:num_reqs].clone()))

    def record(self) -> None:
        """Get to the event, at once where the device is ahead."""
        if self.early:
            self.arrive()

    def synchronize(self) -> None:
        """Wait for the event."""
        self.waits += 1
        self.arrive()

    def arrive(self) -> None:
        """Let everything arrive that was copied before."""
        for rows, counts in self.pending:
            rows.copy_(counts)
        self.pending.clear()


class Runner(GPUModelRunner):  # type: ignore[misc]
    """Upstream's runner with what its steps read, and no model."""

    def __init__(self, mode: str, device: Device, *, asynchronous: bool) -> None:
        self.device = CPU
        kernels = (
            {"kernel_block_sizes": [16]} if "kernel_block_sizes" in signature(InputBatch).parameters else {}
        )
        self.input_batch = InputBatch(
            max_num_reqs=ROWS, max_model_len=LENGTH, max_num_batched_tokens=TOKENS, device=CPU, vocab_size=32,
            block_sizes=[16], max_num_blocks_per_req=[LENGTH // 16], num_spec_tokens=DRAFTS, **kernels,
        )  # fmt: skip
        self.requests, self.num_prompt_logprobs = {}, {}
        self.late_interaction_runner = mock.MagicMock()
        self.is_pooling_model = self.uses_mrope = self.enable_prompt_embeds = False
        self.uses_xdrope_dim = 0
        self.use_async_scheduling = self.use_async_spec_decode = asynchronous
        self.speculative_config = SimpleNamespace(use_ngram_gpu=lambda: False)
        self.model_config = SimpleNamespace(is_hybrid=True)
        self.cache_config = SimpleNamespace(mamba_cache_mode=mode)
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[None])
        self.compilation_config = SimpleNamespace(static_forward_context={})
        self.model = mock.MagicMock()
        self.reorder_batch_threshold = 1 + DRAFTS
        self.arange_np = np.arange(TOKENS)
        for name, size, dtype in (
            ("query_pos", TOKENS, torch.int64), ("input_ids", TOKENS, torch.int32),
            ("query_start_loc", ROWS + 1, torch.int32), ("prev_positions", ROWS, torch.int64),
            ("prev_num_draft_tokens", ROWS, torch.int32), ("discard_request_mask", ROWS, torch.bool),
        ):  # fmt: skip
            setattr(self, name, CpuGpuBuffer(size, dtype=dtype, device=CPU, pin_memory=False))
        self.optimistic_seq_lens_cpu = torch.zeros(ROWS, dtype=torch.int32)
        self.num_accepted_tokens = Counts()
        self.num_accepted_tokens_event = device

    def _get_mamba_bufs(self) -> None:
        """Have no buffers of states."""

    def _get_mamba_state_copy_funcs(self) -> None:
        """Have no states to copy."""

    def run(self, scheduled: SchedulerOutput) -> None:
        """Take up a step, as far as its counts."""
        self._update_states(scheduled)
        tokens = np.array([scheduled.num_scheduled_tokens[name] for name in self.input_batch.req_ids])
        try:
            self._prepare_inputs(scheduled, tokens.astype(np.int32))
        except Counted:
            return
        raise ValueError("no counts are copied to the device")

    def accept(self, scheduled: SchedulerOutput, counts: dict[str, int]) -> None:
        """End a step, in which so many tokens of each request were accepted."""
        names = self.input_batch.req_ids
        tokens = torch.full((len(names), 1 + DRAFTS), -1)
        for row, name in enumerate(names):
            tokens[row, : counts[name]] = 5
        self._update_states_after_model_execute(tokens, scheduled)
        if self.use_async_scheduling:  # as the bookkeeping of a step does: without chunks of a prompt
            mask = self.discard_request_mask.np
            rows = {name: row for row, name in enumerate(names) if not mask[row]}
            self.input_batch.prev_req_id_to_index = rows


class Served:
    """The scheduler's side: requests, and how far each is."""

    def __init__(self) -> None:
        self.computed: dict[str, int] = {}
        self.gone: list[str] = []

    def decodes(self, name: str) -> bool:
        """Tell whether a request is through with its prompt."""
        return self.computed.get(name, 0) >= PROMPT

    def step(self, names: Iterable[str], batch: InputBatch) -> SchedulerOutput:
        """Schedule these requests: chunks of prompts, and decodes with their drafts."""
        names = list(names)
        old = [name for name in names if name in self.computed]
        tokens = {name: 1 + DRAFTS if self.decodes(name) else CHUNK for name in names}
        made = {name: max(self.computed.get(name, 0) - PROMPT, 0) + self.decodes(name) for name in names}
        paused = [name for name in old if name not in batch.req_id_to_index]
        output = SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData(
                    req_id=name, prompt_token_ids=[1] * PROMPT, mm_features=[], pooling_params=None,
                    sampling_params=SamplingParams(), block_ids=([1, 2],), num_computed_tokens=0,
                    lora_request=None,
                ) for name in names if name not in self.computed
            ],
            scheduled_cached_reqs=CachedRequestData(
                req_ids=old, resumed_req_ids=set(), new_token_ids=[],
                all_token_ids={name: [1] * (PROMPT + made[name]) for name in paused},
                new_block_ids=[None] * len(old), num_computed_tokens=[self.computed[name] for name in old],
                num_output_tokens=[made[name] for name in old],
            ),
            num_scheduled_tokens=tokens, total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_spec_decode_tokens={name: [-1] * DRAFTS for name in names if self.decodes(name)},
            scheduled_encoder_inputs={}, num_common_prefix_blocks=[0], finished_req_ids=set(self.gone),
            free_encoder_mm_hashes=[],
        )  # fmt: skip
        self.gone.clear()
        return output

    def advance(self, names: Iterable[str], counts: dict[str, int]) -> None:
        """Count what a step computed."""
        for name in names:
            self.computed[name] = self.computed.get(name, 0) + (counts[name] if self.decodes(name) else CHUNK)

    def end(self, name: str) -> None:
        """End a request."""
        del self.computed[name]
        self.gone.append(name)


class Engine:
    """A runner with its scheduler."""

    def __init__(self, mode: str, *, early: bool, asynchronous: bool = True) -> None:
        self.device = Device(early=early)
        self.runner = Runner(mode, self.device, asynchronous=asynchronous)
        self.served = Served()
        self.counts: dict[str, int] = {}  # of the last step
        self.what = f"{'asynchronous' if asynchronous else 'synchronous'} scheduling, mode {mode!r}"

    def step(self, names: Iterable[str], accepted: dict[str, int] | None = None) -> None:
        """Run one step; decodes accept as many tokens as *accepted* says, else one."""
        names, batch = list(names), self.runner.input_batch
        scheduled = self.served.step(names, batch)
        with mock.patch.object(mamba_utils, "postprocess_mamba_align_gpu", self.device.copy):
            self.runner.run(scheduled)
            rows = batch.req_ids
            wanted = {name: self.counts.get(name, 1) for name in rows}
            for what, held in (
                ("kernels", self.runner.num_accepted_tokens.np), ("rows", batch.num_accepted_tokens_cpu)
            ):  # fmt: skip
                found = {name: int(held[row]) for row, name in enumerate(rows)}
                when = "at once" if self.device.early else "late"
                expect(found == wanted, f"{self.what}, copied {when}: {what} have {found}, and not {wanted}")
            decodes = [name for name in names if self.served.decodes(name)]
            self.counts = {name: (accepted or {}).get(name, 1) if name in decodes else 1 for name in rows}
            self.runner.accept(scheduled, self.counts)
        self.served.advance(names, self.counts)


def check_still(mode: str, *, asynchronous: bool, early: bool) -> None:
    """No row moves: prompts, then decodes of the same requests in the same rows."""
    engine = Engine(mode, early=early, asynchronous=asynchronous)
    for accepted in ({}, {}, {"a": 3, "b": 1, "c": 4}, {"a": 2, "b": 4, "c": 1}, {}):
        engine.step("abc", accepted)


def check_no_wait() -> None:
    """Asynchronous scheduling without blocks of states takes counts from the device, and must not wait."""
    engine = Engine("none", early=False)
    engine.runner._update_states(engine.served.step("abc", engine.runner.input_batch))  # noqa: SLF001
    expect(not engine.device.waits, f"{engine.what}: rows wait for counts that are not read")


def check_moves(*, early: bool) -> None:
    """End a request, let a prompt take its row, and move decodes before it."""
    engine = Engine("align", early=early)
    engine.step("abc")
    engine.step("abc")
    engine.step("abc", {"a": 2, "b": 3, "c": 4})
    engine.served.end("a")
    engine.step("bcd", {"b": 4, "c": 2})
    engine.step("bcd", {"b": 1, "c": 3})
    engine.step("dcb", {"b": 1, "c": 3, "d": 2})
    engine.step("bcd")


def check_many(mode: str, seed: int, *, asynchronous: bool) -> None:
    """Let requests come, decode and end by chance, and prompts pause; copies are early or late by chance."""
    engine, chance = Engine(mode, early=True, asynchronous=asynchronous), random.Random(seed)  # noqa: S311
    served = engine.served
    for step in range(60):
        for name in list(served.computed):
            if served.computed[name] > LENGTH - 2 * CHUNK or chance.random() < 0.1:
                served.end(name)
        live = [name for name in served.computed if served.decodes(name) or chance.random() < 0.8]
        if len(served.computed) < ROWS and (not live or chance.random() < 0.5):
            live.append(f"request {step}")
        engine.device.early = not asynchronous or chance.random() < 0.5
        engine.step(live, {name: chance.randint(1, 1 + DRAFTS) for name in live})


def probe() -> None:
    """Check the controls first."""
    last = SimpleNamespace(is_last_rank=True)
    with mock.patch.object(gpu_model_runner, "get_pp_group", return_value=last):
        for early in (True, False):
            check_still("align", asynchronous=True, early=early)
        check_no_wait()
        for mode in ("none", "align"):
            check_still(mode, asynchronous=False, early=True)
            for seed in range(5):
                check_many(mode, seed, asynchronous=False)
        for early in (True, False):
            check_moves(early=early)
        for seed in range(10):
            check_many("align", seed, asynchronous=True)
