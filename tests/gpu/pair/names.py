"""The names inside vLLM that these scripts look into, and whether a tree has them.

A script that reads a private attribute fails on a card, minutes into a lease, when a release renames it. This
reads the tree's source alone: no card, and no import of vLLM::

    python -m pair.names --tree TREE --series 0.33
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

__all__ = ["NAMES", "missing"]

# By file: classes, functions, "Class.attribute", "function(argument)" and "Class.method(argument)".
BOTH = {
    "vllm/v1/engine/llm_engine.py": (
        "LLMEngine.from_engine_args", "LLMEngine.engine_core", "LLMEngine.step", "LLMEngine.add_request",
        "LLMEngine.reset_prefix_cache", "LLMEngine.collective_rpc",
    ),
    "vllm/v1/engine/core_client.py": ("InprocClient.engine_core",),
    "vllm/v1/engine/core.py": ("EngineCore.scheduler",),
    "vllm/v1/engine/async_llm.py": (
        "AsyncLLM.from_engine_args", "AsyncLLM.collective_rpc", "AsyncLLM.reset_prefix_cache",
        "AsyncLLM.errored", "AsyncLLM.shutdown",
    ),
    "vllm/engine/arg_utils.py": (
        "EngineArgs.kv_cache_dtype_skip_layers", "EngineArgs.kv_cache_memory_bytes",
        "EngineArgs.attention_backend", "EngineArgs.worker_extension_cls", "EngineArgs.logits_processors",
        "EngineArgs.num_gpu_blocks_override", "EngineArgs.compilation_config",
    ),
    "vllm/v1/core/sched/scheduler.py": (
        "Scheduler.schedule", "Scheduler._preempt_request", "Scheduler.requests",
        "Scheduler.kv_cache_manager", "Scheduler.kv_cache_config",
    ),
    "vllm/v1/core/sched/output.py": ("SchedulerOutput.scheduled_spec_decode_tokens",),
    "vllm/v1/core/kv_cache_manager.py": ("KVCacheManager.block_pool",),
    "vllm/v1/core/block_pool.py": ("BlockPool.blocks",),
    "vllm/v1/core/kv_cache_utils.py": (
        "make_block_hash_with_group_id(group_id)", "KVCacheBlock.block_hash", "KVCacheBlock.block_id",
    ),
    "vllm/v1/request.py": ("Request.block_hashes",),
    "vllm/outputs.py": ("RequestOutput.num_cached_tokens",),
    "vllm/v1/kv_cache_interface.py": (
        "KVCacheConfig.kv_cache_groups", "KVCacheConfig.num_blocks", "KVCacheGroupSpec.layer_names",
        "KVCacheGroupSpec.kv_cache_spec", "UniformTypeKVCacheSpecs.kv_cache_specs",
        "AttentionSpec.kv_quant_mode", "AttentionSpec.page_size_bytes", "AttentionSpec.real_page_size_bytes",
        "KVQuantMode.NVFP4",
    ),
    "vllm/v1/worker/gpu_model_runner.py": (
        "GPUModelRunner.drafter", "GPUModelRunner.get_model", "GPUModelRunner.kv_cache_config",
        "GPUModelRunner.model", "GPUModelRunner.vllm_config",
    ),
    "vllm/v1/worker/gpu/model_runner.py": (
        "GPUModelRunner.speculator", "GPUModelRunner.get_model", "GPUModelRunner.kv_cache_config",
        "GPUModelRunner.model", "GPUModelRunner.kv_block_zeroer", "GPUModelRunner.vllm_config",
    ),
    "vllm/v1/worker/utils.py": ("KVBlockZeroer.zero_block_ids(block_ids)",),
    "vllm/model_executor/models/qwen3_dflash.py": (
        "DFlashQwen3Model._build_fused_kv_buffers",
        "DFlashQwen3Model.precompute_and_store_context_kv(context_slot_mapping)",
        "DFlashQwen3ForCausalLM.model",
    ),
    "vllm/model_executor/layers/attention/attention.py": (
        "Attention.kv_cache", "Attention.kv_cache_dtype", "Attention.attn_backend",
        "Attention.sliding_window",
    ),
    "vllm/config/model.py": ("ModelConfig.get_num_layers",),
    "vllm/config/compilation.py": ("CompilationConfig.static_forward_context",),
    "vllm/config/speculative.py": ("SpeculativeConfig.attention_backend",),
    "vllm/v1/attention/backends/registry.py": ("AttentionBackendEnum.TRITON_ATTN",),
    "vllm/compilation/counter.py": ("compilation_counter",),
    "vllm/compilation/cuda_graph.py": ("CUDAGraphWrapper.unwrap",),
    "vllm/sampling_params.py": ("SamplingParams.flat_logprobs", "SamplingParams.extra_args"),
}  # fmt: skip
ONE = {
    "0.24": {
        "vllm/v1/worker/gpu_model_runner.py": ("GPUModelRunner._kv_block_zeroer",),
        "vllm/v1/worker/gpu/attn_utils.py": ("_reshape_attention_kv_cache",),
        "vllm/v1/attention/ops/triton_nvfp4_kv.py": ("nvfp4_code_views", "nvfp4_segments"),
    },
    "0.33": {
        "vllm/v1/worker/gpu/spec_decode/speculator.py": ("DraftModelSpeculator.draft_attn_layer_names",),
        "vllm/config/speculative.py": ("SpeculativeConfig.kv_cache_dtype",),
        "vllm/v1/attention/backends/registry.py": ("AttentionBackendEnum.FLASHINFER",),
    },
}
NAMES = {
    series: {file: (*BOTH.get(file, ()), *own.get(file, ())) for file in dict.fromkeys([*BOTH, *own])}
    for series, own in ONE.items()
}


def defined(source: str) -> set[str]:
    """Return every name that *source* defines, in the forms of `NAMES`.

    An attribute counts where a method assigns or annotates it on its first argument, or in the class body.
    """
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{name}" for name in _members(node)}
        else:
            found |= _names(node)
    return found


def _members(node: ast.ClassDef) -> set[str]:
    found: set[str] = set()
    for part in node.body:
        found |= _names(part)
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.args.args:
            mine = part.args.args[0].arg
            found |= {
                inner.attr
                for inner in ast.walk(part)
                if isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == mine
            }
    return found


def _names(node: ast.stmt) -> set[str]:
    """Return what a statement defines: functions with their arguments, and assigned names."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return {node.name, *(f"{node.name}({one.arg})" for one in every)}
    if isinstance(node, ast.If | ast.Try):
        return {name for part in node.body for name in _names(part)}
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return {one.id for one in targets if isinstance(one, ast.Name)}


def bases(source: str) -> dict[str, list[str]]:
    """Return the names of each class's bases."""
    return {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def missing(tree: Path, names: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the names that *tree* lacks, each with its file.

    A member may come from a base class in the same file.
    """
    found = []
    for file, wanted in names.items():
        path = tree / file
        if not path.is_file():
            found.append(f"{file} is not there")
            continue
        source = path.read_text(encoding="utf-8")
        there, above = defined(source), bases(source)
        found += [f"{file} has no {name}" for name in wanted if not _has(name, there, above)]
    return found


def _has(name: str, there: set[str], above: dict[str, list[str]]) -> bool:
    owner, dot, member = name.partition(".")
    if name in there or not dot:
        return name in there
    return any(_has(f"{base}.{member}", there, above) for base in above.get(owner, []))


def main() -> int:
    """Print what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True, help="a patched tree, or where vLLM is installed")
    parser.add_argument("--series", choices=sorted(NAMES), required=True)
    args = parser.parse_args()
    found = missing(args.tree, NAMES[args.series])
    count = sum(map(len, NAMES[args.series].values()))
    sys.stdout.write("".join(f"{line}\n" for line in found) + f"{count - len(found)} of {count} are there\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
