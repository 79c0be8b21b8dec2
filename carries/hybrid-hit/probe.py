"""Does a hybrid model's prefix hit restore what it counts: each group's blocks, and the state after them?

Upstream's scheduler serves conversations, and a worker of the probe's writes into each block which tokens
went into it, and the state where a step ends: what a request goes on from has to be its own tokens. Then
upstream's coordinator looks prompts up in caches that hold so many blocks of attention, and states after some
of them: the hit has to be the longest one that all groups hold, with as many blocks in each group.

Two defects, both with a drafter, for which full attention drops the last block that it finds. A state lies
where the longest match ends, in a plain conversation if an answer crosses a block's end: the hit then has a
block more than full attention found, and that block is a new one. And a step with little room ends within a
block, the next one runs across the block's end, and the first one's state is cached as the whole block's.

Controls: hits without a drafter; states where full attention's hit ends, or before; windows of a drafter,
which need the block behind a hit; blocks as large as two of Mamba's; and turns without a whole block.
"""

from __future__ import annotations

import random
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch
from probekit import expect
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_coordinator import get_kv_cache_coordinator
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    make_block_hash_with_group_id,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheSpec

    Tokens = tuple[int, ...]

BLOCK = 16
LENGTH = 1024
DRAFTS = 2
NUM_BLOCKS = 400


def full(heads: int = 2, block: int = BLOCK) -> FullAttentionSpec:
    """Return a layer of full attention."""
    return FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=32, dtype=torch.float16)


def windowed() -> SlidingWindowSpec:
    """Return a layer with a window of two blocks."""
    return SlidingWindowSpec(
        block_size=BLOCK, num_kv_heads=4, head_size=16, dtype=torch.float16, sliding_window=2 * BLOCK + 1
    )


def states(drafts: int = DRAFTS) -> MambaSpec:
    """Return a layer of states."""
    return MambaSpec(
        block_size=BLOCK, shapes=((2, 512),), dtypes=(torch.float32,), mamba_cache_mode="align",
        num_speculative_blocks=drafts,
    )  # fmt: skip


class Model(NamedTuple):
    """The cache groups of a hybrid model, and whether it has a drafter."""

    what: str
    specs: tuple[KVCacheSpec, ...]
    drafter: bool = True

    def cache(self) -> KVCacheConfig:
        """Return the groups as the engine plans them; no group is marked as the drafter's, as on 0.24.0."""
        groups = [KVCacheGroupSpec([f"layers.{index}"], spec) for index, spec in enumerate(self.specs)]
        return KVCacheConfig(NUM_BLOCKS, [], groups)


# Three groups of states, as Qwen3.6-27B has.
ALONE = Model("no drafter", (full(), *[states(0)] * 3), drafter=False)
WITHIN = Model("MTP in full attention's group", (full(), *[states()] * 3))
OWN = Model("DFlash in a group of its own", (full(), *[states()] * 3, full(1)))
WINDOWS = Model("a drafter with windows", (full(), states(), windowed()))
LARGER = Model("a drafter with blocks of two", (full(), states(), full(1, 2 * BLOCK)))


def request(name: str, tokens: Tokens, answer: int = 1) -> Request:
    """Return a request for so many tokens."""
    return Request(
        name, list(tokens), SamplingParams(max_tokens=answer, ignore_eos=True), None,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )  # fmt: skip


def check_lookups(model: Model, most: int = 4) -> None:
    """Look prompts up in every cache of up to *most* blocks, for the longest hit that all groups hold."""
    attention = [index for index, spec in enumerate(model.specs) if not isinstance(spec, MambaSpec)]
    sizes = {index: model.specs[index].block_size for index in attention}
    unit = max(sizes.values())  # of hits: every block size here divides the largest one
    prompts = [request("prompt", tuple(range(most * BLOCK + rest))) for rest in (0, 1, 3 * BLOCK)]
    for held in product(range(most + 1), repeat=len(attention)):
        lengths = {index: count * BLOCK // sizes[index] for index, count in zip(attention, held, strict=True)}
        for kept in product((False, True), repeat=most):
            coordinator = get_kv_cache_coordinator(
                model.cache(), LENGTH, LENGTH, model.drafter, enable_caching=True,
                enable_kv_cache_events=False, dcp_world_size=1, pcp_world_size=1, scheduler_block_size=unit,
                hash_block_size=BLOCK,
            )  # fmt: skip
            pool = coordinator.block_pool
            for group, spec in enumerate(model.specs):
                for block in range(most if group not in sizes else lengths[group]):
                    if group not in sizes and not kept[block]:
                        continue
                    last = prompts[-1].block_hashes[(block + 1) * spec.block_size // BLOCK - 1]
                    key = make_block_hash_with_group_id(last, group)  # which is the hash of the block, too
                    pool.cached_block_hash_to_block.insert(key, pool.get_new_blocks(1)[0])
            for prompt in prompts:
                longest = prompt.num_tokens - 1
                ends = [
                    end for end in range(unit, min(longest, most * BLOCK) + 1, unit)
                    if kept[end // BLOCK - 1] and all(
                        min(lengths[index], longest // sizes[index]) * sizes[index]
                        >= end + model.drafter * sizes[index]
                        for index in attention
                    )
                ]  # fmt: skip
                blocks, hit = coordinator.find_longest_cache_hit(prompt.block_hashes, longest)[:2]
                best = max(ends, default=0)
                after = [index + 1 for index in range(most) if kept[index]]
                found = f"{model.what}: {prompt.num_tokens} tokens, attention holds {held} blocks, "
                found += f"states lie after {after}: the hit counts {hit} tokens"
                expect(hit <= best, f"{found}, and no more than {best} can be restored")
                expect(hit == best, f"{found}, and {best} can be restored")
                each = [len(group) * spec.block_size for group, spec in zip(blocks, model.specs, strict=True)]
                expect(set(each) == {hit}, f"{found}, and groups get blocks of {each}")


class Speculation(SimpleNamespace):
    """A drafter's configuration, as far as the scheduler reads it."""

    def use_eagle(self) -> bool:
        """Say that drafts come from the target's hidden states: so do MTP's and DFlash's."""
        return True

    def uses_draft_model(self) -> bool:
        """Say that the drafter is no model of its own."""
        return False

    def use_dspark(self) -> bool:
        """Say that it is not DSpark, which 0.25 adds."""
        return False

    def use_dflash(self) -> bool:
        """Tell whether drafts are filled in, which takes a slot more."""
        return bool(self.dflash)


class ModelConfig(SimpleNamespace):
    """A model's configuration that says no to whatever else is read of it."""

    def __getattr__(self, name: str) -> bool:
        return False


class Engine:
    """Upstream's scheduler, and a worker that writes into each block which tokens went into it."""

    def __init__(self, model: Model, budget: int) -> None:
        config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=4, max_num_batched_tokens=budget, max_model_len=LENGTH, is_encoder_decoder=False
            ),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            device_config=DeviceConfig("cpu"),
        )
        config.cache_config.mamba_cache_mode = "align"
        config.cache_config.num_gpu_blocks = NUM_BLOCKS
        config.model_config = ModelConfig(  # type: ignore[assignment]
            architectures=[""], max_model_len=LENGTH, runner_type="generate"
        )
        if model.drafter:
            config.speculative_config = Speculation(  # type: ignore[assignment]
                num_speculative_tokens=DRAFTS, num_speculative_tokens_per_batch_size=None,
                dflash=len(model.specs) > 4,
            )  # fmt: skip
        groups = model.cache()
        sizes = resolve_kv_cache_block_sizes(groups, config)
        outputs: Any = mock.MagicMock(**{"should_advance.return_value": False})
        self.scheduler = Scheduler(config, groups, outputs, *sizes)
        self.model = model
        self.what = f"{model.what}, steps of {budget} tokens"
        self.held: dict[tuple[int, int, int], Tokens] = {}  # by group, block and offset: what went into it
        self.tables: dict[str, list[list[int]]] = {}  # the blocks of a request, by groups
        self.column: dict[str, int] = {}  # of the state that a request goes on from
        self.hits: dict[str, int] = {}

    def add(self, name: str, tokens: Tokens, answer: int = 1) -> None:
        """Ask for an answer to *tokens*."""
        self.scheduler.add_request(request(name, tokens, answer))

    def step(self) -> None:
        """Schedule, compute and report one step."""
        step = self.scheduler.schedule()
        begun = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        for new in step.scheduled_new_reqs:
            self.hits[new.req_id] = new.num_computed_tokens
            self.tables[new.req_id] = [list(ids) for ids in new.block_ids]
            self.column[new.req_id] = new.num_computed_tokens // BLOCK - 1
        cached = step.scheduled_cached_reqs
        begun |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            for table, more in zip(self.tables[name], ids or [()] * len(self.tables[name]), strict=True):
                table.extend(more)
        for name, start in begun.items():
            self.read(name, tuple(self.scheduler.requests[name].all_token_ids)[:start])
        for name, start in begun.items():
            tokens = tuple(self.scheduler.requests[name].all_token_ids)
            self.write(name, tokens[: start + step.num_scheduled_tokens[name]], start)
        names = list(step.num_scheduled_tokens)
        sampled = [[] if self.scheduler.requests[name].is_prefill_chunk else [7] for name in names]
        rows = {name: row for row, name in enumerate(names)}
        self.scheduler.update_from_output(step, ModelRunnerOutput(names, rows, sampled))

    def finish(self) -> None:
        """Go on until every request is done."""
        for _ in range(LENGTH):
            if self.scheduler.has_unfinished_requests():
                self.step()
        expect(not self.scheduler.has_unfinished_requests(), f"{self.what}: requests are stuck")

    def read(self, name: str, tokens: Tokens) -> None:
        """Check that a request's blocks hold these tokens, the ones that it goes on from."""
        for group, (spec, table) in enumerate(zip(self.model.specs, self.tables[name], strict=True)):
            if isinstance(spec, MambaSpec):
                state = self.held.get((group, table[self.column[name]], 0), ()) if tokens else ()
                expect(
                    state == tokens,
                    f"{self.what}: {len(tokens)} tokens on, a request has the state of {len(state)}",
                )
                continue
            wrong = [
                position for position in range(len(tokens))
                if self.held.get((group, table[position // spec.block_size], position % spec.block_size))
                != tokens[: position + 1]
            ]  # fmt: skip
            expect(
                not wrong,
                f"{self.what}: {len(tokens)} tokens count as computed, group {group} lacks {len(wrong)}",
            )

    def write(self, name: str, tokens: Tokens, start: int) -> None:
        """Put the last of these tokens into their blocks, and the state after them where a worker puts it."""
        self.column[name] = (len(tokens) - 1) // BLOCK
        for group, (spec, table) in enumerate(zip(self.model.specs, self.tables[name], strict=True)):
            if isinstance(spec, MambaSpec):
                self.held[group, table[self.column[name]], 0] = tokens
                continue
            for position in range(start, len(tokens)):
                key = group, table[position // spec.block_size], position % spec.block_size
                self.held[key] = tokens[: position + 1]


def check_conversations(model: Model) -> None:
    """Let each turn bring the one before it, its answer, and more."""
    for budget, prompt, answer in product((256, 5 * BLOCK + 3), (60, 64, 90), (1, 10, 40)):
        engine = Engine(model, budget)
        tokens: Tokens = tuple(range(100, 100 + prompt))
        kept = 0  # a state, a block before the last one that a drafter's rule drops
        for turn in range(4):
            name = f"turn {turn}"
            engine.add(name, tokens, answer)
            engine.finish()
            what = f"{engine.what}: {name} from {prompt} tokens, answers of {answer}"
            expect(engine.hits[name] >= kept, f"{what}, hits {engine.hits[name]} tokens of {kept}")
            kept = (len(tokens) // BLOCK - model.drafter) * BLOCK
            tokens += (7,) * answer + tuple(range(1000 * turn, 1000 * turn + 45))
        engine.add("again", tokens)
        engine.finish()


def check_crowds(model: Model) -> None:
    """Let prompts share steps, which leaves some a small chunk, and let the next turns come one by one."""
    for budget in range(33, 80, 5):
        engine, chance = Engine(model, budget), random.Random(budget)  # noqa: S311
        turns = [
            (tuple(range(1000 * kind, 1000 * kind + chance.randint(17, 120))), chance.randint(1, 20))
            for kind in range(12)
        ]
        for kind, (tokens, answer) in enumerate(turns):
            engine.add(f"first {kind}", tokens, answer)
        engine.finish()
        for kind, (tokens, answer) in enumerate(turns):
            engine.add(f"next {kind}", tokens + (7,) * answer + tuple(range(40)))
            engine.finish()


def check_chunks() -> None:
    """Begin chunks anywhere: none runs from within a block into the next, and none waits without need."""
    split = Scheduler._mamba_block_aligned_split  # noqa: SLF001
    scheduler = Engine(ALONE, 256).scheduler
    for start, room, prompt in product(range(40), (7, 16, 25, 70), (30, 64, 100)):
        if start >= prompt:
            continue
        chunk = request("chunk", tuple(range(prompt)))
        chunk.num_computed_tokens = start
        most = min(room, prompt - start)
        count = split(scheduler, chunk, most)
        rest = -start % BLOCK  # of the block that it begins in
        what = f"from token {start} of {prompt}, {most} at most: a chunk of {count} tokens"
        expect(0 <= count <= (rest or most), f"{what} runs from within a block into the next one")
        expect(count or most < (rest or BLOCK), f"{what}, and a block's end is in reach")


def probe() -> None:
    """Check the controls first."""
    init_none_hash(sha256)
    check_lookups(ALONE)
    check_conversations(ALONE)
    check_crowds(ALONE)
    for model in (WITHIN, OWN):
        check_conversations(model)
        check_crowds(model)
    check_chunks()
    for model in (WITHIN, OWN, WINDOWS, LARGER):
        check_lookups(model)
