"""The launches that `nvfp4_compile.py` compiles, and how each is asked for.

A tree with ``triton_nvfp4_kv.py`` (series 0.24) is asked through its backend, as serving asks it. A tree
without it (series 0.33, where FlashInfer reads NVFP4) has Triton readers of 16 bits and FP8 alone; their
wrapper is called with views of its own cache layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvfp4.rig import Batch, Features, Shape

# Powers of two, and sizes that are padded to one; 512 is that of Gemma 4's layers with full attention.
HEADS = (64, 80, 96, 128, 192, 256, 512)
DRAFTS = (2, 4, 8, 16, 32)
FEW, MANY = 2, 64  # requests whose context is split, and that fill a card unsplit
CONTEXT = 40  # tokens; no kernel depends on it
DTYPES = ("bfloat16", "float16", "float32")
LONGEST_FLOAT32 = 256  # the longest heads that a model in float32 may have
QUICK_HEADS = (128,)
ALL = "window, softcap, sinks"


@dataclass(frozen=True)
class Launch:
    """One step of serving: *name* for people, and its sizes, features, requests and type."""

    name: str
    shape: Shape
    features: Features
    batch: Batch
    dtype: str = "bfloat16"

    @property
    def label(self) -> str:
        """Return the name with the head size and a type other than bfloat16."""
        return f"{self.name}, heads of {self.shape.head}" + (
            f", {self.dtype}" if self.dtype != "bfloat16" else ""
        )


def steps(*, full: bool) -> dict[str, Batch]:
    """Return the batches: decode, drafts and prefill, split over thread blocks and not."""
    from nvfp4.rig import Batch

    def batch(requests: int, queries: int) -> Batch:
        return Batch((CONTEXT,) * requests, (queries,) * requests)

    found = {"decode, split": batch(FEW, 1), "decode": batch(160, 1)}
    for drafts in DRAFTS if full else (4, 16):
        found[f"drafts of {drafts}, split"] = batch(FEW, drafts)
        found[f"drafts of {drafts}"] = batch(MANY, drafts)
    return found | {"prefill": batch(1, 4000)}


def featured() -> dict[str, tuple[Features, tuple[str, ...]]]:
    """Return what a layer may do besides plain causal attention, and the steps that are compiled with it."""
    from nvfp4.rig import Features

    drafts = ("drafts of 4, split", "drafts of 16")
    ends = ("decode, split", "prefill")
    return {
        "window": (Features(window=4096), ends),
        "softcap": (Features(softcap=30.0), ends),
        "sinks": (Features(sinks=True), ends),
        ALL: (Features(window=128, softcap=30.0, sinks=True), (*ends, *drafts)),
        "not causal": (Features(causal=False), drafts),
        "not causal, window": (Features(causal=False, window=4096), drafts),
    }


def reductions(head: int) -> list[Launch]:
    """Return decode in every power of two of segments: the reduction is compiled for each."""
    from nvfp4.rig import Batch, Features, Shape

    found = []
    for requests in (1, 2, 3, 6, 12, 24, 48):
        batch = Batch((CONTEXT,) * requests, (1,) * requests)
        shapes = {"": Shape(32, 8, head, 16), ", one KV head": Shape(4, 1, head, 16)}
        found += [
            Launch(f"decode of {requests}{name}", shape, Features(), batch) for name, shape in shapes.items()
        ]
    return found


def launches(*, full: bool) -> list[Launch]:
    """Return what is compiled for an NVFP4 cache; less than *full* has one head size in bfloat16."""
    from nvfp4.rig import Batch, Features, Shape

    batches, found = steps(full=full), []
    for head in HEADS if full else QUICK_HEADS:
        shape = Shape(32, 8, head, 16)
        found += [Launch(name, shape, Features(), batch) for name, batch in batches.items()]
        found += [
            Launch(f"{name}, {feature}", shape, features, batches[name])
            for feature, (features, names) in featured().items()
            for name in names
        ]
    if not full:
        return found
    for dtype in DTYPES[1:]:
        found += [
            replace(one, dtype=dtype)
            for one in found
            if one.dtype == "bfloat16"
            and one.features in {Features(), featured()[ALL][0]}
            and (dtype != "float32" or one.shape.head <= LONGEST_FLOAT32)
        ]
    for head in HEADS:
        found += reductions(head)
    few, prefill = Batch((CONTEXT,) * FEW, (1,) * FEW), batches["prefill"]
    for name, batch in {"decode, split": few, "prefill": prefill}.items():
        found += [
            Launch(f"{name}, HND, blocks of 32", Shape(32, 8, 128, 32, "HND"), Features(), batch),
            Launch(f"{name}, one query a head", Shape(8, 8, 128), Features(), batch),
            Launch(f"{name}, 16 queries a head", Shape(64, 4, 128), Features(), batch),
        ]
    return found


def asked(cache: str, launch: Launch) -> None:
    """Launch what one step of serving launches: the pack kernel (NVFP4's only) and the readers."""
    import torch
    from nvfp4.rig import Layer, table

    cpu, shape, batch = torch.device("cpu"), launch.shape, launch.batch
    blocks = batch.blocks(shape.block) + 1
    dtype = getattr(torch, launch.dtype)
    layer = Layer(cache, shape, blocks, cpu, dtype=dtype, features=launch.features)
    rows = batch.starts[-1]
    fused = torch.zeros(rows, shape.q_heads + 2 * shape.kv_heads, shape.head, dtype=layer.dtype)
    query, key, value = fused.split([shape.q_heads, shape.kv_heads, shape.kv_heads], dim=1)
    metadata = layer.metadata(batch, table(batch, shape.block, range(blocks - 1), cpu))
    if cache == "nvfp4":
        layer.write(key, value, metadata.slot_mapping)
    query = layer.query_as_served(query.contiguous())
    layer.attend(query, metadata, torch.zeros(query.shape, dtype=layer.dtype))


def asked_of_wrapper(cache: str, launch: Launch) -> None:
    """Launch the Triton readers of a tree whose cache has K and V side by side in a row (0.26 and later)."""
    import torch
    from nvfp4.rig import table
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    shape, batch, features = launch.shape, launch.batch, launch.features
    dtype = getattr(torch, launch.dtype)
    stored = torch.float8_e4m3fn if cache == "fp8" else dtype
    blocks = batch.blocks(shape.block) + 1
    pages = torch.zeros(blocks, shape.kv_heads, shape.block, 2 * shape.head, dtype=torch.int8).to(stored)
    key, value = pages.transpose(1, 2).split(shape.head, dim=-1)
    rows, segments = batch.starts[-1], 16
    query = torch.zeros(rows, shape.q_heads, shape.head, dtype=stored)
    kept = torch.zeros(rows, shape.q_heads, segments, 2)
    window = features.window
    unified_attention(
        query, key, value, torch.zeros(rows, shape.q_heads, shape.head, dtype=dtype),
        cu_seqlens_q=torch.tensor(batch.starts, dtype=torch.int32), max_seqlen_q=max(batch.queries),
        seqused_k=torch.tensor(batch.lengths, dtype=torch.int32), max_seqlen_k=max(batch.lengths),
        softmax_scale=shape.head**-0.5, causal=features.causal,
        window_size=(window - 1, 0 if features.causal else window - 1) if window else (-1, -1),
        block_table=table(batch, shape.block, range(blocks - 1), torch.device("cpu")),
        softcap=features.softcap, q_descale=torch.ones(()) if cache == "fp8" else None,
        k_descale=torch.ones(()), v_descale=torch.ones(()),
        seq_threshold_3D=128 // shape.kv_heads, num_par_softmax_segments=segments,
        softmax_segm_output=torch.zeros(rows, shape.q_heads, segments, 2 * shape.head),
        softmax_segm_max=kept[..., 0].contiguous(), softmax_segm_expsum=kept[..., 1].contiguous(),
        sinks=torch.zeros(shape.q_heads) if features.sinks else None,
    )  # fmt: skip


def nvfp4_in_triton() -> bool:
    """Return whether the imported tree reads an NVFP4 cache in Triton."""
    from importlib.util import find_spec

    return find_spec("vllm.v1.attention.ops.triton_nvfp4_kv") is not None


def asker() -> Any:
    """Return the function that launches a step of the imported tree."""
    return asked if nvfp4_in_triton() else asked_of_wrapper
