"""What vLLM's attention backends compute for a drafted block, against a masked reference.

Started by `draft_attention.py` as ``python -m pair.attention FILE DEVICE GROUP``; a JSON line for each case
of the group. The KV cache is written and read by the backend itself, with metadata from its builder, for
batches of requests whose histories are shorter than the window, as long, and longer. On ``cpu``, small cases
of the Triton backend run in its interpreter, to try this program without a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.argv[2:3] == ["cpu"]:  # before vLLM is imported: it does without Triton when it finds no driver
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import backends
    from triton.runtime import driver

    backends["nvidia"].driver.is_active = staticmethod(lambda: True)
    driver.set_active(SimpleNamespace())

import torch
from vllm.config import (
    CacheConfig,
    CompilationConfig,
    CompilationMode,
    CUDAGraphMode,
    DeviceConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec

BLOCK = 16
GRID = 8  # query rows are padded to multiples of this, as for a graph
UNTOUCHED = 7.0
STRANGE = 100.0  # what is in the cache where nothing was written


@dataclass(frozen=True)
class Case:
    """One batch on one backend: `window` in tokens, None for none; `contexts` are tokens before the block."""

    backend: str
    histories: str
    window: int | None
    causal: bool
    contexts: tuple[int, ...]
    drafts: int = 15
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128

    @property
    def group(self) -> str:
        """What shares a process: for FlashAttention, the cases that need the same binary of its kernels.

        FlashAttention 2 is compiled for sm_80, with PTX. Another card's driver compiles a binary from PTX
        before its first case, which takes a minute or more for each head size, causal kernels apart from
        others; windows take the others.
        """
        if self.backend != "FLASH_ATTN":
            return self.backend
        causal = "-causal" if self.causal and self.window is None else ""
        return f"{self.backend}-{self.head_size}{causal}"

    @property
    def queries(self) -> int:
        """Rows of one request: the token to go on from, and every drafted one."""
        return 1 + self.drafts

    @property
    def lengths(self) -> list[int]:
        """Tokens of each request, the block's included."""
        return [context + self.queries for context in self.contexts]


def histories(window: int, queries: int) -> dict[str, tuple[int, ...]]:
    """Batches by where their histories end; none of their sizes is a capture size's worth."""
    below = (1, window // 2, window - queries)
    at = tuple(window - queries + step for step in range(-3, 4))
    beyond = (window + 1, window + queries + 1, 2 * window, 2 * window + 37, 3 * window - 5)
    mixed = (5, *at, *below, *beyond, 3 * window + 1)
    return {"below": below, "at": at, "beyond": beyond, "mixed": mixed}


def cases(device: str) -> Iterator[Case]:
    """All cases, windows outermost."""
    small = {"drafts": 3, "heads": 4, "kv_heads": 2, "head_size": 32} if device == "cpu" else {}
    queries = 1 + small.get("drafts", 15)
    for backend in ("TRITON_ATTN",) if device == "cpu" else ("FLASH_ATTN", "TRITON_ATTN"):
        for window in (20,) if device == "cpu" else (64, 2048):
            for causal in (True, False):
                for name, contexts in histories(window, queries).items():
                    yield Case(backend, name, window, causal, contexts, **small)
        for causal in (True, False):
            mixed = histories(20 if device == "cpu" else 512, queries)["mixed"]
            yield Case(backend, "mixed", None, causal, mixed, **small)
        if device == "cpu":
            continue
        for heads, kv_heads, size, drafts in ((8, 4, 128, 3), (24, 4, 256, 7), (8, 8, 64, 7)):
            for causal in (True, False):
                mixed = histories(64, 1 + drafts)["mixed"]
                yield Case(backend, "mixed", 64, causal, mixed, drafts, heads, kv_heads, size)


def serving_config(case: Case, device: str) -> Any:
    """What a builder reads of the configuration."""
    config: Any = VllmConfig(
        cache_config=CacheConfig(block_size=BLOCK),
        compilation_config=CompilationConfig(mode=CompilationMode.NONE, cudagraph_mode=CUDAGraphMode.NONE),
        device_config=DeviceConfig(device=device),
    )
    config.attention_config.flash_attn_version = 2
    config.model_config = SimpleNamespace(
        dtype=torch.float32 if device == "cpu" else torch.bfloat16,
        get_head_size=lambda: case.head_size,
        get_num_attention_heads=lambda _parallel: case.heads,
        get_num_kv_heads=lambda _parallel: case.kv_heads,
        is_hybrid=False,
        max_model_len=65536,
    )
    return config


@dataclass
class Batch:
    """The tensors of a case: rows of all requests one after the other."""

    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    table: torch.Tensor
    slots: list[torch.Tensor]


def batch(case: Case, device: str) -> Batch:
    """Random queries, keys and values, and a block table in no order."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    generator = torch.Generator(device=device).manual_seed(0)

    def random(rows: int, heads: int) -> torch.Tensor:
        shape = (rows, heads, case.head_size)
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)

    count, pages = len(case.lengths), -(-max(case.lengths) // BLOCK)
    shuffled = torch.randperm(count * pages, generator=torch.Generator().manual_seed(0))
    table = (1 + shuffled).view(count, pages).to(device=device, dtype=torch.int32)
    places = [torch.arange(length, device=device) for length in case.lengths]
    return Batch(
        query=random(count * case.queries, case.heads),
        keys=[random(length, case.kv_heads) for length in case.lengths],
        values=[random(length, case.kv_heads) for length in case.lengths],
        table=table,
        slots=[
            row[place // BLOCK].long() * BLOCK + place % BLOCK
            for row, place in zip(table, places, strict=True)
        ],
    )


def metadata(case: Case, tensors: Batch, device: str) -> CommonAttentionMetadata:
    """What the proposer hands to the metadata builders."""
    count = len(case.lengths)
    starts = torch.arange(count + 1, dtype=torch.int32) * case.queries
    lengths = torch.tensor(case.lengths, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(device),
        num_reqs=count,
        num_actual_tokens=count * case.queries,
        max_query_len=case.queries,
        max_seq_len=max(case.lengths) + 3,  # the proposer knows an upper bound only
        block_table_tensor=tensors.table,
        slot_mapping=torch.cat([slots[-case.queries :] for slots in tensors.slots]),
        seq_lens_cpu_upper_bound=lengths,
        causal=case.causal,
    )


def computed(case: Case, tensors: Batch, device: str) -> torch.Tensor:
    """The backend's output; rows of padding behind it."""
    backend = AttentionBackendEnum[case.backend].get_class()
    config = serving_config(case, device)
    dtype = tensors.query.dtype
    one = torch.ones(1, device=device)
    layer: Any = SimpleNamespace(
        _q_scale=one, _k_scale=one, _v_scale=one, _q_scale_float=1.0, _k_scale_float=1.0, _v_scale_float=1.0
    )
    with set_current_vllm_config(config), torch.inference_mode():
        impl = backend.get_impl_cls()(
            case.heads, case.head_size, case.head_size**-0.5, case.kv_heads, None, case.window, "auto"
        )
        spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=case.kv_heads, head_size=case.head_size, dtype=dtype
        )
        builder = backend.get_builder_cls()(spec, ["layer"], config, torch.device(device))
        shape = backend.get_kv_cache_shape(int(tensors.table.max()) + 1, BLOCK, case.kv_heads, case.head_size)
        cache = torch.full(shape, STRANGE, device=device, dtype=dtype)
        for keys, values, slots in zip(tensors.keys, tensors.values, tensors.slots, strict=True):
            if device == "cpu":  # the kernel that writes asks for a GPU's name
                cache[slots // BLOCK, 0, slots % BLOCK] = keys
                cache[slots // BLOCK, 1, slots % BLOCK] = values
            else:
                impl.do_kv_cache_update(layer, keys, values, cache, slots)
        built = builder.build_for_drafting(metadata(case, tensors, device), draft_index=0)
        rows = len(tensors.query)
        padded = torch.zeros((-(-rows // GRID) * GRID, *tensors.query.shape[1:]), device=device, dtype=dtype)
        padded[:rows] = tensors.query
        output = torch.full_like(padded, UNTOUCHED)
        ones = torch.zeros(len(padded), case.kv_heads, case.head_size, device=device, dtype=dtype)
        impl.forward(layer, padded, ones, ones, cache, built, output)
    return output


def reference(case: Case, tensors: Batch, window: int | None, *, causal: bool) -> torch.Tensor:
    """Attention in float32 with an explicit mask, one request after the other."""
    outputs = []
    groups = case.heads // case.kv_heads
    for index, length in enumerate(case.lengths):
        query = tensors.query[index * case.queries : (index + 1) * case.queries].float()
        places = torch.arange(length, device=query.device)
        distance = places[-case.queries :, None] - places
        mask = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            mask = mask & (distance.abs() < window)
        keys = tensors.keys[index].float().repeat_interleave(groups, 1)
        values = tensors.values[index].float().repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * case.head_size**-0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference in terms of the norm of what is wanted."""
    return ((found - wanted).norm() / wanted.norm()).item()


def judged(case: Case, device: str) -> dict[str, Any]:
    """The case's errors: to what it must be, and to what a window or a causality next to it would give."""
    tensors = batch(case, device)
    output = computed(case, tensors, device).float()
    rows = len(tensors.query)
    found = output[:rows]
    right = reference(case, tensors, case.window, causal=case.causal)
    others = {"causality": reference(case, tensors, case.window, causal=not case.causal)}
    if case.window is not None:
        for step in (-1, 1):
            others[f"window {step:+d}"] = reference(case, tensors, case.window + step, causal=case.causal)
    apart = {}
    for name, other in others.items():
        # Where a neighbour gives the same, no row can tell; where it does not, the rows are these.
        differ = ((other - right).abs() > 1e-6).flatten(1).any(1)
        if differ.any():
            apart[name] = round(relative(found[differ], other[differ]), 6)
    worst = ((found - right).flatten(1).norm(dim=1) / right.flatten(1).norm(dim=1)).max().item()
    return {
        "error": relative(found, right),
        "worst_row": worst,
        "apart": apart,
        "padding": bool((output[rows:] == UNTOUCHED).all()),
        "rows": rows,
    }


def main() -> None:
    """Write a line for each case of a group."""
    file, device, group = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    for case in cases(device):
        if case.group != group:
            continue
        began = time.monotonic()
        line = {"fault": "", "error": float("inf"), "worst_row": float("inf"), "apart": {}, "padding": False}
        try:
            line |= judged(case, device)
        except Exception as error:  # noqa: BLE001 - reported as this case's failure
            line["fault"] = repr(error)[:300]
        seconds = round(time.monotonic() - began, 1)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({**asdict(case), **line, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
