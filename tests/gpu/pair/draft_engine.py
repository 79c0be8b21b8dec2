"""The process behind `draft_kv.py`: one engine, driven step by step, a JSON line for each case.

Started as ``python -m pair.draft_engine SPEC``. The engine core runs in this process
(``VLLM_ENABLE_V1_MULTIPROCESSING=0``): scheduler, block pool and caches can be looked at between steps.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest import mock

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import TokensPrompt
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.engine.llm_engine import LLMEngine

from pair.draft_compare import POISON, Verdict, compare, sides, some_skipped
from pair.load import DRAFTED
from pair.models import pair_arguments, words
from pair.parts import drafter_of, greedy, leave, models_of, name_of, specification, weights_of, writer

MAX_MODEL_LEN = 1024  # a multiple of 128, where the block table ends with the longest request
BLOCK = 16
BLOCKS = 420  # sixteen requests of 650 tokens do not fit
CLEAN_END = MAX_MODEL_LEN - BLOCK  # a request up to here is drafted for, on every tree
STEPS = 4000  # no case takes so many


@dataclass(frozen=True)
class Ask:
    """A request that is sent before step *at* of its round."""

    name: str
    prompt: list[int]
    output: int
    at: int = 0


@dataclass
class Told:
    """A request that was served, and what vLLM knew of it."""

    tokens: list[int]
    cached: int
    request: Any  # vllm.v1.request.Request: its block hashes grow with its tokens


@dataclass
class Case:
    """The requests of one case, and its findings."""

    told: dict[str, Told] = field(default_factory=dict)
    steps: int = 0
    preempted: int = 0
    drafted: int = 0
    generated: int = 0


class Bench:
    """An engine with known weights, and ways to look into its caches."""

    def __init__(self, spec: dict[str, Any]) -> None:
        # A small cache and a short longest request, so that both ends are met.
        pair = pair_arguments(spec, max_model_len=MAX_MODEL_LEN)
        sizes = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "num_gpu_blocks_override": BLOCKS}
        args = EngineArgs(**pair, **sizes, block_size=BLOCK, enable_prefix_caching=True)
        self.engine = LLMEngine.from_engine_args(args)
        core: Any = self.engine.engine_core
        self.scheduler: Any = core.engine_core.scheduler
        self.runner: Any = self.engine.collective_rpc(lambda worker: worker.model_runner)[0]
        self.drafter: Any = drafter_of(self.runner)
        names = getattr(self.drafter, "_draft_attn_layer_names", None) or self.drafter.draft_attn_layer_names
        self.pool: Any = self.scheduler.kv_cache_manager.block_pool
        groups = self.scheduler.kv_cache_config.kv_cache_groups
        self.group = next(index for index, one in enumerate(groups) if set(names) & set(one.layer_names))
        layers = self.runner.vllm_config.compilation_config.static_forward_context
        shared = set(groups[self.group].layer_names)
        self.draft_caches, self.target_caches = (
            [sides(layers[name].kv_cache, BLOCKS, BLOCK) for name in sorted(some)]
            for some in (names, shared - set(names))
        )
        if not (self.draft_caches and self.target_caches):
            raise ValueError("drafter and target share no KV cache group")
        self._fill_weights()

    @torch.inference_mode()
    def _fill_weights(self) -> None:
        """Weights with which every vector depends on its token, its position and all that came before.

        Those that ``load_format="dummy"`` makes up are so small that embeddings drown all layers.
        """
        generator, models = torch.Generator(device="cuda").manual_seed(7), models_of(self.runner)
        for _, weight in weights_of(models):
            if weight.dim() > 1:
                weight.normal_(0.0, 0.02, generator=generator)
            else:
                weight.fill_(1.0)  # of norms; there are no biases
        models["drafter"].model._build_fused_kv_buffers()  # copies of the weights, made at the first pass

    def view(self) -> dict[str, Any]:
        """What is being looked at."""
        return {"runner": name_of(self.runner), "drafter": name_of(self.drafter)}

    @torch.inference_mode()
    def clear(self) -> None:
        """Empty the prefix cache; let the drafter's cache hold nothing that could pass for a key."""
        for _ in range(20):
            if self.engine.reset_prefix_cache():
                break
            self.engine.step()  # a last step may be in flight, and hold blocks
        else:
            raise RuntimeError("the prefix cache could not be reset")
        torch.cuda.synchronize()
        for cache in self.draft_caches:
            cache.fill_(POISON)

    def serve(self, case: Case, asks: list[Ask]) -> None:
        """Send *asks* at their steps, and step until all are done."""
        waiting = sorted(asks, key=lambda ask: ask.at)
        open_requests: dict[str, tuple[Ask, Any]] = {}
        for step in range(STEPS):
            while waiting and waiting[0].at <= step:
                ask = waiting.pop(0)
                open_requests[ask.name] = (ask, self._send(ask))
            for output in self.engine.step():
                if output.finished:
                    ask, request = open_requests.pop(output.request_id)
                    tokens = [*ask.prompt, *output.outputs[0].token_ids]
                    case.told[ask.name] = Told(tokens, output.num_cached_tokens or 0, request)
                    case.generated += len(tokens) - len(ask.prompt)
            case.steps += 1
            if not waiting and not open_requests:
                return
        raise TimeoutError(f"{sorted(open_requests)} not done after {STEPS} steps")

    def _send(self, ask: Ask) -> Any:
        prompt = TokensPrompt(prompt_token_ids=ask.prompt)
        name = self.engine.add_request(ask.name, prompt, greedy(ask.output))
        return self.scheduler.requests[name]

    def blocks_of(self, request: Any) -> list[list[int]]:
        """For each full block of a request's tokens, the blocks that the cache would serve for it."""
        cached: dict[Any, list[int]] = defaultdict(list)
        for block in self.pool.blocks:
            if block.block_hash is not None:
                cached[block.block_hash].append(block.block_id)
        keys = [make_block_hash_with_group_id(one, self.group) for one in request.block_hashes]
        return [cached.get(key, []) for key in keys]

    @contextmanager
    def counting(self, case: Case) -> Iterator[None]:
        """Count drafted tokens and preemptions while it lasts."""
        schedule, preempt = self.scheduler.schedule, self.scheduler._preempt_request

        def scheduled(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            case.drafted += sum(map(len, output.scheduled_spec_decode_tokens.values()))
            return output

        def preempted(*args: Any, **kwargs: Any) -> Any:
            case.preempted += 1
            return preempt(*args, **kwargs)

        with (
            mock.patch.object(self.scheduler, "schedule", scheduled),
            mock.patch.object(self.scheduler, "_preempt_request", preempted),
        ):
            yield

    @contextmanager
    def planted(self, every: int) -> Iterator[None]:
        """A fault to be found: of the context rows of each pass, one in *every* is not stored."""
        inner = models_of(self.runner)["drafter"].model
        store = inner.precompute_and_store_context_kv

        def faulty(states: Any, positions: Any, context_slot_mapping: Any = None) -> None:
            store(states, positions, some_skipped(context_slot_mapping, every))

        inner.precompute_and_store_context_kv = faulty
        try:
            yield
        finally:
            del inner.precompute_and_store_context_kv


def alone(bench: Bench, case: Case) -> None:
    """One request after another, nothing in common: the control."""
    source = random.Random("alone")
    for number, length in enumerate((50, 130, 333)):
        bench.serve(case, [Ask(f"alone-{number}", words(source, length), 61)])


def shared(bench: Bench, case: Case) -> None:
    """A prefix of 320 tokens, shared by a dozen at once, and then the next turn of some of them."""
    source = random.Random("shared")
    base = words(source, 320)
    first = [Ask("shared-first", base + words(source, 20), 90)]
    others = [Ask(f"shared-{n}", base + words(source, 3 + 17 * n), 40 + n, at=8 + n // 3) for n in range(12)]
    bench.serve(case, first + others)
    turns = [
        Ask(f"turn-{n}", case.told[f"shared-{n}"].tokens + words(source, 30), 33 + n, at=n)
        for n in range(0, 12, 2)
    ]
    bench.serve(case, turns)


def crowded(bench: Bench, case: Case) -> None:
    """More than a step takes and more than the cache holds: chunked prefills, evictions, preemptions."""
    source = random.Random("crowded")
    asks = [Ask(f"crowded-{n}", words(source, 430 + 11 * n), 150 - 4 * n, at=n // 2) for n in range(16)]
    bench.serve(case, asks)
    bench.serve(case, [Ask(f"again-{n}", case.told[f"crowded-{n}"].tokens[:480], 20) for n in range(12, 16)])


def at_the_end(bench: Bench, case: Case) -> None:
    """Three prompts in the step of a request so long that V1 drafts for nobody; then they come again."""
    source = random.Random("end")
    long = Ask("end-long", words(source, MAX_MODEL_LEN - DRAFTED), 3)
    victims = [Ask(f"end-{n}", words(source, 300), 45 + n) for n in range(3)]
    bench.serve(case, [long, *victims])
    bench.serve(case, [Ask(f"back-{n}", victims[n].prompt + words(source, 12), 24) for n in range(3)])


CASES = {"alone": alone, "shared": shared, "crowded": crowded, "at-the-end": at_the_end, "planted": shared}


def judged(bench: Bench, case: Case) -> dict[str, Any]:
    """Compare each block that the cache would serve with one that was computed alone, in one prefill."""
    held = {}
    for name, told in case.told.items():
        rows = [(place, one) for place, ids in enumerate(bench.blocks_of(told.request)) for one in ids]
        places, ids = [place for place, _ in rows], [one for _, one in rows]
        held[name] = (places, *(_take(caches, ids) for caches in (bench.draft_caches, bench.target_caches)))
    draft, target, restored = Verdict(), Verdict(), Verdict()
    for name, (places, draft_seen, target_seen) in held.items():
        told = case.told[name]
        clean = _clean_blocks(bench, told.tokens[:CLEAN_END])
        kept = [index for index, place in enumerate(places) if place < len(clean)]
        if not kept:
            continue
        ids = [clean[places[index]] for index in kept]
        draft_clean, target_clean = _take(bench.draft_caches, ids), _take(bench.target_caches, ids)
        draft += compare([one[kept] for one in draft_seen], draft_clean)
        target += compare([one[kept] for one in target_seen], target_clean)
        hit = [at for at, index in enumerate(kept) if places[index] * BLOCK < told.cached]
        if hit:
            picked = [kept[at] for at in hit]
            restored += compare([one[picked] for one in draft_seen], [one[hit] for one in draft_clean])
    return {"draft": asdict(draft), "target": asdict(target), "restored": asdict(restored)}


def _take(caches: list[torch.Tensor], ids: list[int]) -> list[torch.Tensor]:
    index = torch.tensor(ids, dtype=torch.int64, device=caches[0].device)
    return [cache[index].clone() for cache in caches]


def _clean_blocks(bench: Bench, tokens: list[int]) -> list[int]:
    """Compute *tokens* in one prefill with an empty cache; the ids of their full blocks."""
    bench.clear()
    alone_case = Case()
    bench.serve(alone_case, [Ask("clean", tokens, 1)])
    torch.cuda.synchronize()
    blocks = bench.blocks_of(alone_case.told["clean"].request)
    if alone_case.told["clean"].cached or not all(len(ids) == 1 for ids in blocks[: len(tokens) // BLOCK]):
        raise RuntimeError("the clean computation was not clean")
    return [ids[0] for ids in blocks[: len(tokens) // BLOCK]]


def run_case(bench: Bench, name: str, plant: int) -> dict[str, Any]:
    """Serve one case and judge what it left."""
    case, started = Case(), time.monotonic()
    bench.clear()
    with bench.counting(case):
        with bench.planted(plant) if name == "planted" else nullcontext():
            CASES[name](bench, case)
        bench.engine.step()  # what is still in flight
    torch.cuda.synchronize()
    served = round(time.monotonic() - started, 2)
    found = judged(bench, case)
    return {
        "requests": len(case.told),
        **{name: getattr(case, name) for name in ("steps", "generated", "drafted", "preempted")},
        "cached_tokens": sum(told.cached for told in case.told.values()),
        "seconds": served,
        **found,
    }


def main(spec: dict[str, Any]) -> None:
    write, started = writer(spec), time.monotonic()
    bench = Bench(spec)
    write("boot", seconds=round(time.monotonic() - started, 1), **bench.view())
    for name in spec["cases"]:
        try:
            write("case", case=name, fault=None, **run_case(bench, name, spec["plant"]))
        except Exception as error:  # noqa: BLE001 - reported as this case's failure
            write("case", case=name, fault=repr(error)[:600])
    write("end")
    leave()


if __name__ == "__main__":
    main(specification())
