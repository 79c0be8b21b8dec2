"""A request that hits the prefix cache of a hybrid model goes on from the state after its hit.

Mamba states are cached by blocks: a block's state is that after the block's last token. The scheduler ends
a prompt's chunks so that this holds, in units of `cache_config.block_size`, and the engine lowers that to the
smallest block of all cache groups. Here the engine's own start-up plans the groups, its scheduler schedules
prompts that share their beginnings, and a worker of the probe's runs each step: it takes the state that the
request's block table leads to, and puts the state after the step's last token where upstream's workers do.
A state is the tokens that went into it, so that a wrong one shows.

The layers are those of Qwen3.6-27B in FP8: with twelve drafts, blocks of 1696 tokens for full attention and
for the states. Where `--kv-cache-dtype-skip-layers` keeps a drafter's windows in 16 bits, half as many of
their tokens fit into a page. Healthy: whatever the drafter's blocks are, each step starts from the state of
all tokens before it, and leaves a block with the state after the block's last token.

Controls: the drafter's blocks are as large as Mamba's, or full attention's larger ones; no drafter at all;
and repeated prompts hit all that the blocks allow.
"""

# ruff: noqa: SLF001 - the engine's start-up has no public name
from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from probekit import expect
from vllm.config import SchedulerConfig
from vllm.model_executor.layers.mamba.checkpoint import compute_mamba_prefill_checkpoints
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.v1.kv_cache_interface import KVCacheSpec

    Tokens = tuple[int, ...]

LENGTH = 49152
HEADS = 4 * 256 * 2  # bytes of a token in FP8 full attention


class Model(NamedTuple):
    """A hybrid model with its drafter.

    Attributes:
        what: the form, in words.
        windows: tokens in a block of the drafter's windows, if there is a drafter.
        drafts: draft tokens; the states have room for as many.
        scale: how many times a block of full attention is one of states.
        exports: whether a prefill can store the state at a position within it, as FlashInfer's does.
    """

    what: str
    windows: int | None
    drafts: int = 12
    scale: int = 1
    exports: bool = False

    @property
    def states(self) -> int:
        """Tokens in a block of states: as many as FP8 full attention has in its memory, in sixteens."""
        content = 10240 * (3 + self.drafts) * 2 + 48 * 128 * 128 * 4
        return 16 * -(-content // (16 * HEADS))

    def layers(self) -> dict[str, KVCacheSpec]:
        """Return the layers' specifications, by name."""
        page = self.scale * self.states * HEADS
        state: Any = MambaSpec(
            self.states, shapes=((10240, 3 + self.drafts), (48, 128, 128)),
            dtypes=(torch.bfloat16, torch.float32), page_size_padded=page, mamba_cache_mode="align",
            num_speculative_blocks=self.drafts, num_prefill_checkpoint_blocks=int(self.exports),
            prefill_checkpoint_alignment=self.states if self.exports else None,
        )  # fmt: skip
        full: Any = FullAttentionSpec(
            self.scale * self.states, num_kv_heads=4, head_size=256, dtype=torch.uint8
        )
        layers = {f"layers.{index}": full if index % 4 == 0 else state for index in range(16)}
        if self.windows:
            window: Any = SlidingWindowSpec(
                self.windows, num_kv_heads=8, head_size=128, dtype=torch.bfloat16, sliding_window=2048,
                page_size_padded=page,
            )  # fmt: skip
            layers |= {f"draft.{index}": window for index in range(4)}
        return layers


CONTROLS = (
    Model("no drafter", None),
    Model("16-bit windows in pages of their own size", 1696, scale=2),
    Model("these, and states that a prefill exports", 1696, scale=2, exports=True),
)
DEFECTS = (
    Model("16-bit windows in pages of full attention's size", 848),
    Model("16-bit windows with twice as many heads", 424),
    Model("windows of a backend with blocks of 64 tokens", 64),
    Model("16-bit windows, and states that a prefill exports", 848, exports=True),
    Model("16-bit windows whose blocks do not divide Mamba's", 816, drafts=7),
)


def serving(model: Model, batch: int) -> Any:
    """Return what planning and the scheduler read of the configuration, with *batch* tokens in a step."""
    layout, drafts = KVCacheLayout.LBNHC, model.drafts
    dflash = SimpleNamespace(
        method="dflash", num_speculative_tokens_per_batch_size=None, disable_eagle_block_drop=True,
        max_num_new_slots_for_drafting=0, use_eagle=lambda: True, use_eagle_block_drop=lambda: False,
        needs_eagle_block_drop=lambda: False,
    )  # fmt: skip
    return SimpleNamespace(
        cache_config=SimpleNamespace(
            num_gpu_blocks=None, num_gpu_blocks_override=2000, block_size=model.scale * model.states,
            # Workers set theirs to the block of states; this is another process's, and stays as it was.
            mamba_block_size=16, mamba_cache_mode="align", enable_prefix_caching=True,
            prefix_match_unit=None, prefix_cache_retention_interval=None,
            enable_mamba_shared_prefix_checkpoint=False, kv_cache_layout=layout.name,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        scheduler_config=SchedulerConfig(
            max_model_len=LENGTH, is_encoder_decoder=False, max_num_batched_tokens=batch, max_num_seqs=8,
            disable_hybrid_kv_cache_manager=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=1, data_parallel_index=0, decode_context_parallel_size=1,
            prefill_context_parallel_size=1, pipeline_parallel_size=1, tensor_parallel_size=1,
            cp_kv_cache_interleave_size=1,
        ),
        model_config=SimpleNamespace(
            is_encoder_decoder=False, is_diffusion=False, uses_mrope=False, runner_type="generate",
            max_model_len=LENGTH, original_max_model_len=LENGTH, supports_multimodal_inputs=False,
            return_sampling_mask=False, supports_kv_cache_grouping=False,
            hf_config=SimpleNamespace(model_type="qwen3_5_text"),
        ),
        observability_config=SimpleNamespace(
            kv_cache_metrics=False, per_request_spec_decode_metrics=False,
            enable_logging_iteration_details=False, enable_mfu_metrics=False,
        ),
        speculative_config=dflash if model.windows else None, num_speculative_tokens=drafts,
        num_lookahead_tokens=drafts + 1, num_prefill_lookahead_tokens=1, num_hash_lookahead_tokens=0,
        max_concurrent_batches=1, max_in_flight_tokens=batch, use_v2_model_runner=True,
        kv_transfer_config=None, kv_events_config=None, ec_transfer_config=None, lora_config=None,
        attention_config=SimpleNamespace(hisparse_config=None),
        aux_output_config=SimpleNamespace(enabled=False),
        compilation_config=SimpleNamespace(compilation_time=0.0, encoder_compilation_time=0.0),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        device_config=SimpleNamespace(device_type="cuda"), is_mm_encoder_only=False,
        validate_block_size=lambda: None, adjust_dcp_kv_cache_interleave_size=lambda _: None,
    )  # fmt: skip


class Engine:
    """Upstream's start-up and scheduler, and a worker that has a state for each block of Mamba's groups."""

    def __init__(self, model: Model, batch: int) -> None:
        config = serving(model, batch)
        executor = mock.MagicMock()
        executor.get_kv_cache_specs.return_value = [model.layers()]
        executor.determine_available_memory.return_value = [1 << 40]
        core: Any = SimpleNamespace(model_executor=executor)
        groups = EngineCore._initialize_kv_caches(core, config)
        sizes = resolve_kv_cache_block_sizes(groups, config)
        outputs: Any = mock.MagicMock(**{"should_advance.return_value": False})
        self.scheduler = Scheduler(config, groups, outputs, *sizes)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(sizes[1], sha256)
        self.exported = partial(
            compute_mamba_prefill_checkpoints, hash_block_size=sizes[1], mamba_block_size=model.states,
            checkpoint_alignment=model.states if model.exports else None, drop_eagle_block=False,
            cache_hit_alignment_tokens=groups.cache_hit_alignment_tokens,
        )  # fmt: skip
        self.what = f"{model.what}, steps of {batch} tokens"
        self.size, self.exports = model.states, model.exports
        self.mamba = [
            index for index, group in enumerate(groups.kv_cache_groups)
            if isinstance(group.kv_cache_spec, MambaSpec)
        ]  # fmt: skip
        self.states: dict[int, Tokens] = {}  # the tokens that went into the state of a block
        self.tables: dict[str, list[list[int]]] = {}  # the blocks of a request, by Mamba's groups
        self.column: dict[str, int] = {}  # of the state that a request goes on from
        self.hits: dict[str, int] = {}

    def add(self, name: str, prompt: Sequence[int], answer: int = 1) -> None:
        """Ask for an answer to *prompt*."""
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
        self.scheduler.add_request(Request(name, list(prompt), sampling, None, block_hasher=self.hasher))

    def step(self) -> None:
        """Schedule, compute and report one step."""
        step = self.scheduler.schedule()
        begun: dict[str, int] = {}
        for new in step.scheduled_new_reqs:
            begun[new.req_id] = new.num_computed_tokens
            self.tables[new.req_id] = [list(new.block_ids[group]) for group in self.mamba]
            self.column[new.req_id] = (new.num_computed_tokens - 1) // self.size
            self.hits.setdefault(new.req_id, new.num_computed_tokens)
        cached = step.scheduled_cached_reqs
        for name, ids, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            begun[name] = computed
            for table, group in zip(self.tables[name], self.mamba, strict=True):
                table.extend(ids[group] if ids else ())
        for copy in step.kv_cache_block_copies or ():
            if copy.src_block_id in self.states:
                self.states[copy.dst_block_id] = self.states[copy.src_block_id]
        ended: dict[int, Tokens] = {}
        for name, start in begun.items():
            tokens = tuple(self.scheduler.requests[name].all_token_ids)
            end = start + step.num_scheduled_tokens[name]
            before, self.column[name] = self.column[name], -(-end // self.size) - 1
            left = self.column[name] > before >= 0 and not self.exports
            expect(
                not left or start == (before + 1) * self.size,
                f"{self.what}: the block up to {(before + 1) * self.size} is left with the state of {start}",
            )
            for table in self.tables[name]:
                if start:
                    state = self.states.get(table[before], ())
                    expect(
                        state == tokens[:start],
                        f"{self.what}: a request with {start} tokens behind it goes on from the state of "
                        f"{len(state)}",
                    )
                ended[table[self.column[name]]] = tokens[:end]
                (offset,), (column,) = self.exported([end], [end - start])
                if offset:
                    ended[table[column]] = tokens[: start + offset]
        self.states |= ended
        self.report(step)

    def report(self, step: Any) -> None:
        """Tell the scheduler that each request that is through with its prompt has one more token."""
        names = list(step.num_scheduled_tokens)
        sampled = [[] if self.scheduler.requests[name].is_prefill_chunk else [7] for name in names]
        ids = {name: index for index, name in enumerate(names)}
        self.scheduler.update_from_output(step, ModelRunnerOutput(names, ids, sampled))

    def finish(self) -> None:
        """Go on until every request is done."""
        for _ in range(1000):
            if self.scheduler.requests:
                self.step()
        left = list(self.scheduler.requests)
        expect(not left, f"{self.what}: requests are stuck: {left}")


def text(kind: int, tokens: int) -> list[int]:
    """Return the first *tokens* of the text of this *kind*."""
    return [kind * 1000 + index % 997 for index in range(tokens)]


def check_states(model: Model, batch: int) -> None:
    """Let prompts that share their beginnings hit states of chunks, of ends of prompts, and of answers."""
    engine = Engine(model, batch)
    engine.add("first", text(1, 20_000))
    engine.add("beside", text(2, 9_000))  # takes the rest of the first one's steps
    engine.finish()
    for tokens in (20_000, 14_000, 9_100, 7_000, 5_500, 4_300, 3_400, 2_600):
        engine.add(f"{tokens} again", [*text(1, tokens), *text(3, 3_000)], answer=3)
        engine.finish()
    engine.add("longer", text(1, 30_000), answer=4)
    engine.add("other", [*text(2, 8_800), *text(4, 9_000)], answer=4)
    engine.finish()
    engine.add("short", text(5, 3_000))
    engine.finish()
    engine.add("from within a block", text(5, 12_000))
    engine.finish()
    engine.add("behind that block", [*text(5, 3_400), *text(6, 2_000)])
    engine.finish()


def check_hits(model: Model, batch: int) -> None:
    """Let repeated prompts hit all that the groups' blocks allow."""
    engine = Engine(model, batch)
    grain = model.windows or model.states
    for kind, tokens in enumerate((1_000, 1_800, 3_000, 3_400, 5_000, 6_000, 16_000)):
        for name in ("first", "again"):
            engine.add(f"{name} {tokens}", text(kind, tokens))
            engine.finish()
        hit, most = engine.hits[f"again {tokens}"], (tokens - 1) // grain * grain
        expect(
            hit == most, f"{engine.what}: of {tokens} tokens, a repeated prompt hits {hit} instead of {most}"
        )


def probe() -> None:
    """Check the controls first."""
    for models in (CONTROLS, DEFECTS):
        for model in models:
            for batch in (8192, 2048, 1000):
                check_states(model, batch)
                if model.scale == 1 and model.states % (model.windows or 1) == 0:
                    check_hits(model, batch)
