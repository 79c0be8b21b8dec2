"""Options that are known not to work together, each with the reason and a working alternative.

Options, values and variables that a release does not have are not listed here: `release_options` asks the
release itself. Nor is what depends on the machine or the checkpoint, which preflight reads.

Every rule was read in upstream's source: `Rule.source` is the release and file:line that it
repeats. A rule refuses only options that are *known* to fail: where a release's source was not read, or the
card is not known, it does not apply, and vLLM decides.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from sparkwright.base.errors import IncompatibleOptionsError
from sparkwright.recipes.recipe import Recipe
from sparkwright.recipes.rule import Rule, ServerOptions

_EAGLE_LIKE = ("eagle", "eagle3", "dflash", "extract_hidden_states", "draft_model", "ngram_gpu")
_MAY_DRAFT_NOTHING = {"ngram", "ngram_gpu", "suffix"}
_NVFP4_CARRY = "nvfp4-kv-triton"
_SIXTEEN_BITS = ("bfloat16", "float16")
_NON_CAUSAL = {"FLASH_ATTN", "FLASHINFER", "FLEX_ATTENTION", "TRITON_ATTN"}


def _rates_wrong(options: ServerOptions) -> bool:
    """Tell if synthetic acceptance is given in a way that is refused."""
    rates = options.speculative.get("synthetic_acceptance_rates")
    length = options.speculative.get("synthetic_acceptance_length")
    if options.speculative.get("rejection_sample_method") != "synthetic":
        return rates is not None or length is not None
    if (rates is None) == (length is None):
        return True
    if rates is None:
        return not 1 <= float(length or 0) <= options.k + 1
    falling = all(after <= before for before, after in pairwise(rates))
    return len(rates) != options.k or not falling or not all(0 <= rate <= 1 for rate in rates)


def _drafts_nothing_by_load(options: ServerOptions) -> bool:
    """Tell if no token is drafted at some load."""
    by_load = options.speculative.get("num_speculative_tokens_per_batch_size") or []
    return any(drafts == 0 for *_, drafts in by_load)


def _slots_missing(options: ServerOptions) -> bool:
    """Tell if a full batch's draft slots leave no token to schedule: k - 1 of them for each request."""
    tokens, requests = options.number("max-num-batched-tokens"), options.number("max-num-seqs")
    return (
        options.method == "dflash"
        and None not in {tokens, requests}
        and (tokens or 0) - (options.k - 1) * (requests or 0) <= 0
    )


def _no_size_left(options: ServerOptions) -> bool:
    """Tell if no capture size is left when they are rounded to whole requests of 1 + k tokens."""
    sizes = options.flags.get("cudagraph-capture-sizes")
    most = options.number("max-cudagraph-capture-size")
    largest = max(sizes) if isinstance(sizes, list) and sizes else most
    return options.k > 0 and not options.flags.get("enforce-eager") and 0 < (largest or 0) < options.k + 1


RULES: tuple[Rule, ...] = (
    Rule(
        "dflash-nvfp4-kv",
        "DFlash attends without a causal mask, and no backend does that on an NVFP4 KV cache: FlashInfer,"
        " the only one that reads such a cache, refuses it",
        'use a wheel with the carry nvfp4-kv-triton, kv-cache-dtype = "fp8_e4m3" with DFlash, or a causal'
        " method such as mtp",
        # Releases 0.30 to 0.32 were not read.
        "0.24.0 v1/attention/backends/flashinfer.py:807",
        lambda o: o.method == "dflash" and o.draft_kv.startswith("nvfp4"),
        before="0.30",
        carry=_NVFP4_CARRY,
    ),
    Rule(
        "dflash-nvfp4-kv-card",
        "FlashInfer attends without a causal mask over an NVFP4 KV cache by XQA, which reads it on compute"
        " capability 12.x alone: elsewhere it is chosen all the same, and the first drafts end the engine",
        'use a wheel with the carry nvfp4-kv-triton, kv-cache-dtype = "fp8_e4m3" with DFlash, or'
        ' kv_cache_dtype = "bfloat16" in [speculative]',
        "0.33.0 v1/attention/backends/flashinfer.py:1391 and :1606",
        lambda o: o.method == "dflash" and o.draft_kv.startswith("nvfp4") and o.family(12) is False,
        since="0.33",
        carry=_NVFP4_CARRY,
    ),
    Rule(
        "nvfp4-kv-card",
        "FlashInfer reads an NVFP4 KV cache by kernels of compute capability 10.x alone in this release, and "
        "a GB10 is 12.1",
        "use a wheel with the carry nvfp4-kv-triton and do not name FLASHINFER, kv-cache-dtype = "
        '"fp8_e4m3", or vLLM 0.33, which reads it on 8.x, 9.x and 12.x too',
        # 0.33.0: _nvfp4_kv_on_fa2 (flashinfer.py:114). Releases 0.30 to 0.32 were not read.
        "0.24.0 v1/attention/backends/flashinfer.py:654",
        lambda o: (
            o.kv == "nvfp4"
            and o.family(10) is False
            and (_NVFP4_CARRY not in o.carries or "FLASHINFER" in o.nvfp4_readers)
        ),
        before="0.30",
    ),
    Rule(
        "nvfp4-kv-backend",
        "FLASHINFER is the only attention backend that takes an NVFP4 KV cache, and TRITON_ATTN in wheels"
        " with the carry nvfp4-kv-triton",
        "leave attention-backend out, or name one of these",
        "0.24.0 v1/attention/backends/flashinfer.py:327, triton_attn.py:254, flash_attn.py:183",
        lambda o: bool(
            {*o.nvfp4_readers} - {"FLASHINFER", *(["TRITON_ATTN"] if _NVFP4_CARRY in o.carries else [])}
        ),
    ),
    Rule(
        "draft-kv-type",
        "this release has no KV cache type for the drafter alone: kv_cache_dtype is no key of its "
        "speculative configuration",
        "use a wheel with the carry draft-kv-dtype or vLLM 0.26, or leave the key out of [speculative]",
        # vLLM 0.26.0 config/speculative.py:123; 0.25.1 has none.
        "0.24.0 config/speculative.py:75",
        lambda o: "kv_cache_dtype" in o.speculative,
        before="0.26",
        carry="draft-kv-dtype",
    ),
    Rule(
        "hybrid-draft-kv",
        "all pages of a hybrid model's KV cache have one size, and this release cannot plan a drafter whose "
        "pages are larger than the target's, such as one of 16 bits beside FP8 or NVFP4",
        "use a wheel with the carry kv-page-nvfp4, where states then take 2 to 3.56 times the memory, or "
        "leave kv_cache_dtype out of [speculative]",
        "0.24.0 v1/core/kv_cache_utils.py:1049",
        lambda o: (
            "hybrid" in o.traits and o.draft_kv in _SIXTEEN_BITS and o.kv not in {"auto", *_SIXTEEN_BITS}
        ),
        before="0.26",
        carry="kv-page-nvfp4",
    ),
    Rule(
        "hybrid-steps-without-drafts",
        "in a hybrid model a step without drafts reads a request's state from its first slot, where a step "
        "with drafts has left it in another: answers go wrong without an error, and n-gram and suffix drafts "
        "are often none",
        'draft in every step (method = "mtp", "eagle3" or "dflash", and no load with 0 drafts), or leave '
        "[speculative] out",
        # 0.33.0 v1/attention/backends/gdn_attn.py:390 and :472; open as #39273 and #40875.
        "0.24.0 v1/attention/backends/gdn_attn.py:219 and :292, v1/worker/gpu_model_runner.py:2407",
        lambda o: "hybrid" in o.traits and (o.method in _MAY_DRAFT_NOTHING or _drafts_nothing_by_load(o)),
        before="0.34",
    ),
    Rule(
        "mla-drafts",
        "over latent attention this card's backend reads drafts as prompts: rejected drafts stay part of a "
        "request's context under asynchronous scheduling, and contexts that take several parts are added up "
        "with the strides of one part: answers go wrong without an error",
        "leave [speculative] out, or take vLLM 0.33",
        # Mended by 0.33.0, whose merge asserts equal strides and whose TRITON_MLA reads drafts as decode.
        # The merge: found in local-inference-lab/vllm#15.
        "0.24.0 model_executor/layers/attention/mla_attention.py:1653, "
        "v1/attention/ops/triton_merge_attn_states.py:31",
        lambda o: (
            bool(o.method) and "mla" in o.traits and ("TRITON_MLA" in o.backends or o.family(12) is True)
        ),
        before="0.25",
    ),
    Rule(
        "mla-runner-v2",
        "model runner V2 sorts a batch by the tokens of a step, and latent attention expects requests with a "
        "context before those without: a prompt that is read in several steps can lose its first part, and "
        "answers go wrong without an error",
        "set VLLM_USE_V2_MODEL_RUNNER to 0, or leave it out, or take vLLM 0.33",
        # The order: mended upstream in vllm-project/vllm#47381.
        "0.24.0 v1/worker/gpu/model_runner.py:855, model_executor/layers/attention/mla_attention.py:1793",
        lambda o: o.runner == "v2" and "mla" in o.traits,
        before="0.25",
    ),
    Rule(
        "nvfp4-kv-mla",
        "models with multi-head latent attention have no NVFP4 KV cache in this release",
        'use kv-cache-dtype = "fp8" or "auto"',
        "0.24.0 config/vllm.py:2164",
        lambda o: o.kv == "nvfp4" and "mla" in o.traits,
        before="0.25",
    ),
    Rule(
        "turboquant-nvfp4-kv",
        "TurboQuant and NVFP4 are two types of one KV cache: the TURBOQUANT backend reads turboquant_* alone",
        'choose one: kv-cache-dtype = "turboquant_k8v4" with no backend named, or "nvfp4" with FLASHINFER',
        "0.24.0 v1/attention/backends/turboquant_attn.py:101",
        lambda o: (
            o.kv.startswith("nvfp4")
            and ("TURBOQUANT" in o.backends or o.environment.get("VLLM_USE_TURBOQUANT", "0") not in {"", "0"})
        ),
    ),
    Rule(
        "turboquant-dflash",
        "DFlash attends without a causal mask, and TURBOQUANT, the only backend for this KV cache, cannot",
        'use kv-cache-dtype = "fp8_e4m3" with DFlash, kv_cache_dtype = "bfloat16" in [speculative], or draft '
        "with a causal method",
        "0.24.0 v1/attention/backend.py:261 and :356, turboquant_attn.py:101",
        lambda o: o.draft_kv.startswith("turboquant_") and o.method == "dflash",
    ),
    Rule(
        "turboquant-backend",
        "TURBOQUANT is the only attention backend that reads a turboquant_* KV cache",
        "leave attention-backend out, or name TURBOQUANT",
        "0.24.0 v1/attention/backends/turboquant_attn.py:101, triton_attn.py:254, flash_attn.py:183",
        lambda o: any(kv.startswith("turboquant_") and name != "TURBOQUANT" for name, kv in o.readers),
    ),
    Rule(
        "flash-attn-fp8-kv",
        "FLASH_ATTN reads an FP8 KV cache with FlashAttention 3 on compute capability 9.x alone",
        'use attention-backend = "TRITON_ATTN" for the target, and the same in [speculative] for the drafter',
        # 0.27.1 and later query the kernels instead (0.33.0 flash_attn.py:438).
        "0.24.0 v1/attention/backends/flash_attn.py:186",
        lambda o: "FLASH_ATTN" in o.fp8_readers and o.family(9) is False,
        before="0.27",
    ),
    Rule(
        "flex-attention-fp8-kv",
        "FLEX_ATTENTION takes a 16-bit KV cache alone",
        'use attention-backend = "TRITON_ATTN", or kv-cache-dtype = "auto"',
        "0.24.0 v1/attention/backends/flex_attention.py:91",
        lambda o: "FLEX_ATTENTION" in o.fp8_readers,
        before="0.25",
    ),
    Rule(
        "dflash-causal-backend",
        "a DFlash drafter attends without a causal mask, which the backend that is named for it cannot",
        f"name one of {', '.join(sorted(_NON_CAUSAL))} in [speculative], or none",
        "0.24.0 v1/attention/backend.py:356, v1/spec_decode/dflash.py:85",
        lambda o: (
            o.method == "dflash"
            and bool(name := str(o.speculative.get("attention_backend", "")).upper())
            and name not in {*_NON_CAUSAL, "AUTO"}
        ),
        before="0.25",
    ),
    Rule(
        "quantization-other",
        "the requested quantization is not the checkpoint's, and vLLM does not convert between the two",
        "leave `quantization` out: vLLM reads it from the checkpoint",
        # Other methods may override the user's choice (modelopt.py:1062, and GPTQ's and AWQ's): not refused.
        "0.24.0 config/model.py:1042",
        lambda o: (
            o.weights in {"compressed-tensors", "fp8"}
            and o.flags.get("quantization") not in {None, o.weights, "humming"}
        ),
    ),
    Rule(
        "quantization-of-nothing",
        "ModelOpt and compressed-tensors describe checkpoints that are quantized already, and this one is"
        " not",
        "leave `quantization` out, use a quantized checkpoint, or `fp8` to quantize while loading",
        "0.24.0 model_executor/model_loader/weight_utils.py:286",
        lambda o: (
            o.weights == "none"
            and str(o.flags.get("quantization", "")).startswith(("modelopt", "compressed-tensors"))
        ),
    ),
    Rule(
        "tied-modelopt",
        "ModelOpt's quantization cannot tie the output layer to the embeddings in this release: loading "
        "ends in NotImplementedError",
        "use a wheel with the carry tie-weights or vLLM 0.25",
        "0.24.0 model_executor/layers/quantization/base_config.py:51",
        lambda o: o.weights.startswith("modelopt") and "tied-embeddings" in o.traits,
        before="0.25",
        carry="tie-weights",
    ),
    Rule(
        "v2-hybrid-prefix-cache",
        "model runner V2 does not take hybrid models with prefix caching in this release (their cache "
        "would be in mode align)",
        "leave VLLM_USE_V2_MODEL_RUNNER out or set it to 0, or switch enable-prefix-caching off",
        "0.24.0 config/vllm.py:2000 and :2156, model_executor/models/config.py:417",
        lambda o: o.runner == "v2" and "hybrid" in o.traits and o.flags.get("enable-prefix-caching") is True,
        before="0.25",
    ),
    Rule(
        "v2-method",
        "model runner V2 drafts by eagle, eagle3, mtp and dflash alone in this release",
        "set VLLM_USE_V2_MODEL_RUNNER to 0, or draft by one of these",
        "0.24.0 config/vllm.py:2029",
        lambda o: (
            o.runner == "v2"
            and o.method not in {"", "eagle", "eagle3", "dflash"}
            and not o.method.endswith("mtp")
        ),
        before="0.25",
    ),
    Rule(
        "v2-dynamic-k",
        "model runner V2 cannot change the number of drafted tokens by batch size in this release",
        "set VLLM_USE_V2_MODEL_RUNNER to 0, or leave num_speculative_tokens_per_batch_size out",
        "0.24.0 config/vllm.py:2034",
        lambda o: o.runner == "v2" and bool(o.speculative.get("num_speculative_tokens_per_batch_size")),
        before="0.25",
    ),
    Rule(
        "async-method",
        "asynchronous scheduling was requested, and this method of drafting does not support it",
        "leave async-scheduling out: vLLM switches it on where it can",
        "0.24.0 config/vllm.py:944",
        lambda o: (
            o.flags.get("async-scheduling") is True
            and o.method not in {"", *_EAGLE_LIKE}
            and not o.method.endswith("mtp")
        ),
        before="0.25",
    ),
    Rule(
        "async-unpadded-drafts",
        "asynchronous scheduling needs the drafter's batch padded",
        "leave async-scheduling or disable_padded_drafter_batch out",
        "0.24.0 config/vllm.py:955",
        lambda o: (
            o.flags.get("async-scheduling") is True
            and bool(o.speculative.get("disable_padded_drafter_batch"))
        ),
        before="0.25",
    ),
    Rule(
        "drafter-missing",
        "DFlash needs a drafter's checkpoint and the number of tokens to draft",
        "name `drafter` in the recipe and num_speculative_tokens in [speculative]",
        "0.24.0 config/speculative.py:626 and :1022",
        lambda o: o.method == "dflash" and o.k <= 0,
    ),
    Rule(
        "drafter-parallelism",
        "tensor_parallel_size is no key of the speculative configuration",
        "use draft_tensor_parallel_size",
        "0.24.0 config/speculative.py:1016",
        lambda o: "tensor_parallel_size" in o.speculative,
    ),
    Rule(
        "synthetic-acceptance",
        "synthetic acceptance needs exactly one of synthetic_acceptance_rates (as many as are drafted, "
        "from 0 to 1, none above the one before it) and synthetic_acceptance_length (from 1 to 1 + k), "
        "and only together with rejection_sample_method = synthetic",
        "give one of the two, within these limits",
        "0.24.0 config/speculative.py:238 and :1043",
        _rates_wrong,
    ),
    Rule(
        "draft-slots",
        "DFlash takes k - 1 slots of a batch for each request, and a full batch leaves none for tokens",
        "raise max-num-batched-tokens above (k - 1) times max-num-seqs, or lower one of these",
        "0.24.0 config/vllm.py:1605, config/speculative.py:1084",
        _slots_missing,
    ),
    Rule(
        "capture-sizes",
        "capture sizes are rounded to whole requests of 1 + k tokens, and none is as large as one request",
        "raise the largest capture size to at least 1 + k, or leave them to vLLM",
        "0.24.0 config/compilation.py:1497",
        _no_size_left,
    ),
    Rule(
        "mamba-block-size",
        "mamba-block-size has a meaning with prefix caching alone",
        "leave it out: vLLM derives it",
        "0.24.0 config/vllm.py:2179",
        lambda o: "mamba-block-size" in o.flags and o.flags.get("enable-prefix-caching") is False,
    ),
    Rule(
        "download-dir",
        "a relative download-dir is looked up in the working folder of the server, which each start makes: "
        "every start would fetch the model again, and ~ is taken as it is",
        "give download-dir as an absolute path",
        "0.24.0 config/load.py:58",
        lambda o: not str(o.flags.get("download-dir", "/")).startswith("/"),
    ),
)


def incompatibilities(
    recipe: Recipe, version: str, capability: str = "", carries: Collection[str] = frozenset()
) -> tuple[Rule, ...]:
    """Return the rules that *recipe* breaks.

    Args:
        recipe: the recipe to serve.
        version: vLLM's version; where it is not a valid one, rules that are bound to releases do not apply.
        capability: compute capability of the card, such as ``9.0``; by default the recipe's.
        carries: names of the wheel's carries.
    """
    options = ServerOptions.of(recipe, capability, carries)
    return tuple(
        rule
        for rule in RULES
        if rule.carry not in options.carries and rule.holds_in(version) and rule.broken(options)
    )


def check_compatible(
    recipe: Recipe, version: str, *, capability: str = "", carries: Collection[str] = frozenset()
) -> None:
    """Refuse a recipe whose options are known not to work together; see `incompatibilities`.

    Raises:
        IncompatibleOptionsError: with every reason, and working alternatives.
    """
    if broken := incompatibilities(recipe, version, capability, carries):
        raise IncompatibleOptionsError(
            f"the recipe {recipe.name} cannot be served by vLLM {version}",
            because="; ".join(f"{rule.reason} [{rule.name}; {rule.source}]" for rule in broken),
            next_step="; ".join(dict.fromkeys(rule.instead for rule in broken)),
        )
