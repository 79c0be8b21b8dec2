"""Does the grammar hold from the token that ends reasoning, when that token is one of a step's drafts?

Upstream's schedulers, manager of structured outputs, grammars and reasoning parsers serve one request
here; only the models are replaced. The target thinks, ends its thought, and then wants to say "Sure"
rather than JSON, unless the step's mask forbids it. A greedy rejection sampler accepts drafts as long as
they are what the target samples under the mask of their row. Whatever is drafted, and wherever in a step
the thought ends, the answer has to be the JSON that the grammar describes, and the grammar has to have
seen exactly the answer.

Controls: no drafts, no reasoning parser, a prompt that ends the thought already, grammars that hold in
the thought as well, and a request without a grammar.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import xgrammar
from probekit import expect

if importlib.util.find_spec("mistral_common") is None:  # 0.33.0 loads Mistral's parser beside Qwen's
    sys.modules["vllm.parser.mistral"] = ModuleType("vllm.parser.mistral")
    sys.modules["vllm.parser.mistral"].MistralParser = type("MistralParser", (), {})  # type: ignore[attr-defined]

from vllm.config import SchedulerConfig
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
from vllm.reasoning.qwen3_engine_reasoning_parser import Qwen3ParserReasoningAdapter
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SPECIAL = [
    "<eos>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|channel|>", "final", "<|message|>",
    "<|end|>",
]  # fmt: skip
VOCABULARY = [*SPECIAL, *(chr(code) for code in range(32, 127))]
IDS = {text: index for index, text in enumerate(VOCABULARY)}
EOS = 0
JSON = '{"a":[12,7]}'
GRAMMAR = r'root ::= "{" "\"a\":[" [0-9]+ ("," [0-9]+)* "]}"'
TAG = "</think>"
CHANNEL = "<|channel|> final <|message|>"


def ids(text: str) -> list[int]:
    """The tokens of a text: words that are special, and characters."""
    words = [word if word in IDS else list(word) for word in text.split(" ")]
    return [IDS[token] for word in words for token in ([word] if isinstance(word, str) else word)]


class Tokenizer:
    """What parsers read of a tokenizer."""

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens."""
        return IDS

    def encode(self, text: str, **_: object) -> list[int]:
        """Return the ids of a text."""
        return ids(text.replace("|>", "|> ").replace("<|", " <|").strip())


def grammar(drafts: int) -> XgrammarGrammar:
    """A compiled grammar of its own."""
    known = xgrammar.TokenizerInfo(
        ["" if token in SPECIAL else token for token in VOCABULARY], stop_token_ids=[EOS]
    )
    compiled = xgrammar.GrammarCompiler(known).compile_grammar(GRAMMAR)
    matcher = xgrammar.GrammarMatcher(compiled, max_rollback_tokens=drafts)
    return XgrammarGrammar(matcher=matcher, vocab_size=len(VOCABULARY), ctx=compiled)


class StepParser(DeepSeekR1ReasoningParser):
    """A parser that reads the step's tokens only, and none that stands for a crossed-out draft."""

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Ask upstream's parser."""
        delta = list(delta_ids)
        expect(min(delta, default=0) >= 0, "a parser is given padding")
        return super().is_reasoning_end_streaming(input_ids, delta)


class PhraseParser(DeepSeekR1ReasoningParser):
    """A parser whose marker is of several tokens, and may begin in an earlier step."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Tell if the marker is among the tokens."""
        given, marker = list(input_ids), ids(CHANNEL)
        return any(given[start : start + len(marker)] == marker for start in range(len(given)))

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Tell the same of all tokens."""
        del delta_ids
        return self.is_reasoning_end(input_ids)


@dataclass
class Case:
    """How a request is served."""

    what: str
    parser: type[Any] | None
    thought: str  # with the marker that ends it
    prompt: str = "<think> "
    drafts: int = 4
    before: bool = False  # the thought has the grammar, too
    constrained: bool = True
    tag: bool = False  # the grammar is a structural tag
    answer: str = JSON


def target(said: Sequence[int], thought: Sequence[int], allowed: Callable[[int], bool]) -> int:
    """Sample the token that the target likes best of those that are allowed."""
    if len(said) < len(thought):
        wanted = [thought[len(said)]]
    else:
        content = "".join(VOCABULARY[token] for token in said[len(thought) :])
        following = [ids(JSON)[len(content)]] if JSON.startswith(content) and content != JSON else [EOS]
        polite = [ids("Sure")[len(content)]] if "Sure".startswith(content) and content != "Sure" else []
        wanted = [*polite, *following]
    return next((token for token in (*wanted, *range(len(VOCABULARY))) if allowed(token)), EOS)


def drafted(kind: str, said: Sequence[int], thought: Sequence[int], count: int) -> list[int]:
    """Draft what the target wants, what the grammar wants, or what neither does."""
    drafts: list[int] = []
    for _ in range(count):
        given = [*said, *drafts]
        free = len(given) < len(thought)
        if kind == "answer" and not free:
            rest = [*ids(JSON), *[EOS] * (count + 1)]
            drafts.append(rest[min(len(given) - len(thought), len(rest) - 1)])
        elif kind == "neither" and len(given) % 3 == 2:
            drafts.append(IDS[TAG if free else "x"])
        else:
            drafts.append(target(given, thought, lambda _: True))
    return drafts


def manager_of(case: Case) -> StructuredOutputManager:
    """Upstream's manager, with this case's parser."""
    config: Any = SimpleNamespace(
        parallel_config=SimpleNamespace(distributed_executor_backend="mp"),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        model_config=SimpleNamespace(skip_tokenizer_init=True, is_diffusion=False),
        structured_outputs_config=SimpleNamespace(enable_in_reasoning=case.before),
        speculative_config=SimpleNamespace(num_speculative_tokens=case.drafts) if case.drafts else None,
        num_speculative_tokens=case.drafts,
    )
    manager = StructuredOutputManager(config)
    manager.reasoner_cls, manager.tokenizer = case.parser, Tokenizer()  # type: ignore[assignment]
    manager.backend = SimpleNamespace(  # type: ignore[assignment]
        allocate_token_bitmask=lambda rows: xgrammar.allocate_token_bitmask(rows, len(VOCABULARY))
    )
    return manager


def scheduler_of(kind: type[Scheduler], case: Case, manager: StructuredOutputManager) -> Scheduler:
    """Upstream's scheduler, for a model with one layer."""
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
    plan = KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], spec)])
    asynchronous = kind is AsyncScheduler
    drafter = SimpleNamespace(
        method="mtp", num_speculative_tokens=case.drafts, use_eagle=lambda: True, parallel_drafting=False,
        num_speculative_tokens_per_batch_size=None, uses_draft_model=lambda: False,
        use_dflash=lambda: False, use_dspark=lambda: False, disable_eagle_block_drop=False,
        max_num_new_slots_for_drafting=0,
        use_eagle_block_drop=lambda: False, needs_eagle_block_drop=lambda: False,
    )  # fmt: skip
    config: Any = SimpleNamespace(
        scheduler_config=SchedulerConfig(
            max_model_len=1024, is_encoder_decoder=False, max_num_batched_tokens=512,
            async_scheduling=asynchronous,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks=64, block_size=16, hash_block_size=None, enable_prefix_caching=False,
            mamba_cache_mode="none", prefix_match_unit=None, prefix_cache_retention_interval=None,
            enable_mamba_shared_prefix_checkpoint=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=1, data_parallel_index=0, decode_context_parallel_size=1,
            prefill_context_parallel_size=1, pipeline_parallel_size=1, tensor_parallel_size=1,
            cp_kv_cache_interleave_size=1,
        ),
        model_config=SimpleNamespace(
            is_encoder_decoder=False, is_diffusion=False, is_multimodal_model=False, uses_mrope=False,
            enable_return_routed_experts=False, max_model_len=1024, runner_type="generate",
            supports_multimodal_inputs=False, return_sampling_mask=False, original_max_model_len=1024,
            hf_config=SimpleNamespace(model_type="qwen3"),
        ),
        observability_config=SimpleNamespace(
            kv_cache_metrics=False, per_request_spec_decode_metrics=False,
            enable_logging_iteration_details=False, enable_mfu_metrics=False,
        ),
        kv_events_config=None, lora_config=None, ec_transfer_config=None, kv_transfer_config=None,
        attention_config=SimpleNamespace(hisparse_config=None), is_mm_encoder_only=False,
        aux_output_config=SimpleNamespace(enabled=False),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        max_concurrent_batches=2 if asynchronous else 1, max_in_flight_tokens=512,
        speculative_config=drafter if case.drafts else None, num_speculative_tokens=case.drafts,
        num_lookahead_tokens=case.drafts, num_prefill_lookahead_tokens=0, num_hash_lookahead_tokens=0,
        use_v2_model_runner=False,
    )  # fmt: skip
    sizes = kv_cache_utils.resolve_kv_cache_block_sizes(plan, config)
    return kind(config, plan, manager, *sizes)


class Engine:
    """The steps of upstream's engine, and a worker that samples from the target."""

    def __init__(self, kind: type[Scheduler], case: Case, draft: str) -> None:
        self.case, self.draft, self.asynchronous = case, draft, kind is AsyncScheduler
        self.what = f"{case.what}, {draft} drafted, {kind.__name__}"
        self.thought = ids(case.thought)
        self.scheduler = scheduler_of(kind, case, manager_of(case))
        outputs = StructuredOutputsParams(grammar=GRAMMAR)
        if case.tag:
            outputs = StructuredOutputsParams(structural_tag="{}")
        sampling = SamplingParams(max_tokens=80, structured_outputs=outputs if case.constrained else None)
        sampling.update_from_generation_config({}, EOS)
        self.request = Request("request", ids(case.prompt.strip()), sampling, None)
        self.grammar = grammar(case.drafts)
        if structured := self.request.structured_output_request:
            structured.grammar = self.grammar
        self.scheduler.add_request(self.request)
        self.steps = 0
        self.drafts: list[int] = []
        self.said: list[int] = []  # by the worker, which is ahead of an asynchronous scheduler

    def sample(self, step: Any) -> ModelRunnerOutput:
        """Accept drafts as long as the target samples them under their rows' masks."""
        name = self.request.request_id
        if name not in step.num_scheduled_tokens:
            return ModelRunnerOutput([], {}, [])
        output = self.scheduler.get_grammar_bitmask(step)
        mask = None if output is None else output.grammar_bitmask
        scheduled = step.scheduled_spec_decode_tokens.get(name, [])
        drafts = self.drafts[: len(scheduled)]  # what the scheduler crossed out is still with the worker
        sampled: list[int] = []
        for row, draft in enumerate([*drafts, -1]):
            allowed: Callable[[int], bool] = lambda token, row=row: (  # noqa: E731
                mask is None or bool(mask[row][token >> 5] >> (token & 31) & 1)
            )
            sampled.append(target(self.said, self.thought, allowed))
            self.said.append(sampled[-1])
            if sampled[-1] != draft:
                break
        self.drafts = drafted(self.draft, self.said, self.thought, self.case.drafts)
        self.steps += 1
        return ModelRunnerOutput([name], {name: 0}, [sampled])

    def run(self) -> None:
        """Serve the request to its end, in the order of upstream's engine."""
        name = self.request.request_id
        waiting: list[tuple[Any, ModelRunnerOutput]] = []
        for _ in range(200):
            if not self.scheduler.requests:
                return
            step = self.scheduler.schedule()
            for done, output in waiting:
                self.scheduler.update_from_output(done, output)
            drafts = DraftTokenIds([name], [list(self.drafts)])
            if self.asynchronous:
                self.scheduler.update_draft_token_ids_in_output(drafts, step)
            waiting = [(step, self.sample(step))]
            if not self.asynchronous:
                self.scheduler.update_from_output(*waiting.pop())
                if self.drafts:
                    self.scheduler.update_draft_token_ids(DraftTokenIds([name], [list(self.drafts)]))
        raise ValueError(f"{self.what}: the request is stuck")


def check(kind: type[Scheduler], case: Case, draft: str) -> int:
    """Serve a request; the answer is what the grammar describes, and the grammar has seen all of it."""
    engine = Engine(kind, case, draft)
    try:
        engine.run()
    except AssertionError as error:
        expect(not error.args, f"{engine.what}: the grammar rejects what was drafted: {error}")
        raise
    tokens = list(engine.request.output_token_ids)
    start = len(engine.thought) if not case.before else 0
    answer = "".join(VOCABULARY[token] for token in tokens[start:] if token != EOS)
    expect(answer == case.answer, f"{engine.what}: the answer is {answer!r}")
    expect(
        engine.request.status == RequestStatus.FINISHED_STOPPED,
        f"{engine.what}: it ends as {engine.request.status}",
    )
    if case.constrained:
        seen = engine.grammar.num_processed_tokens
        expect(seen == len(ids(case.answer)) + 1, f"{engine.what}: the grammar saw {seen} tokens")
    return engine.steps


CONTROLS = (
    Case("no drafts", Qwen3ParserReasoningAdapter, f"aa {TAG}", drafts=0),
    Case("no drafts, a parser that reads the step only", StepParser, f"aa {TAG}", drafts=0),
    Case(
        "no drafts, a marker of several tokens",
        PhraseParser,
        f"aa {CHANNEL}",
        "<|channel|>",
        drafts=0,
    ),
    Case("no parser", None, ""),
    Case("no thought", Qwen3ParserReasoningAdapter, "", prompt=f"<think> {TAG}"),
    Case("no grammar", Qwen3ParserReasoningAdapter, f"aa {TAG}", constrained=False, answer="Sure"),
    Case("a grammar in the thought", Qwen3ParserReasoningAdapter, "", before=True),
)
PARSERS: tuple[tuple[type[Any], str, str], ...] = (
    (Qwen3ParserReasoningAdapter, TAG, "<think>"),
    (StepParser, TAG, "<think>"),
    (PhraseParser, CHANNEL, "<|channel|>"),
)
if hasattr(StructuredOutputManager, "validate_drafts"):
    # It waits for one token more, and remembers that. 0.27.1's own repair loses the end with it, and
    # 0.33.0 has no such parser.
    from vllm.reasoning.step3p5_reasoning_parser import Step3p5ReasoningParser

    PARSERS += ((Step3p5ReasoningParser, f"{TAG} b", "<think>"),)


def probe() -> None:
    """Check the controls first."""
    schedulers: tuple[type[Scheduler], ...] = (Scheduler, AsyncScheduler)
    for kind, case in itertools.product(schedulers, CONTROLS):
        check(kind, case, "what the target wants")
    for kind, (parser, marker, prompt) in itertools.product(schedulers, PARSERS):
        for length, drafts, tag in itertools.product(range(7), (1, 2, 4, 8), (False, True)):
            for draft in ("what the target wants", "answer", "neither"):
                what = f"{parser.__name__}, a thought of {length} tokens, {drafts} drafts" + ", tags" * tag
                case = Case(what, parser, f"{'a' * length} {marker}".strip(), prompt, drafts=drafts, tag=tag)
                steps = check(kind, case, draft)
                if draft == "answer":  # no draft is lost: after the prompt's step all are accepted
                    behind = len(ids(case.thought)) + len(JSON)
                    most = 1 + -(-behind // (drafts + 1)) + (kind is AsyncScheduler)
                    expect(steps <= most, f"{what}, {kind.__name__}: {steps} steps for {behind + 1} tokens")
