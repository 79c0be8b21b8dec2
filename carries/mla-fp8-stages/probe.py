"""Does decoding over a latent FP8 cache fit the shared memory of a 12.x card?

Upstream's own backend is given queries and a cache of one layer, on a platform that says that it is the
card. What it launches is compiled for that card, which needs none, and the compiler says how much shared
memory a block takes. A launch that takes more than the card has fails at the first request.

Controls: launches that fit keep the stages that they have, be it for their latent, for 16 bits, for a
kernel that is not MLA's, or for a card with more shared memory.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from compilekit import LIMIT, pretend
from probekit import expect

CARD = pretend(121)

import torch  # noqa: E402 - after the card
from vllm.v1.attention.backends.mla.triton_mla import TritonMLAImpl  # noqa: E402
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd  # noqa: E402

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
GROUPED = "_fwd_grouped_kernel_stage1"
REQUESTS, BLOCKS = 3, 8


def attend(
    latent: int, rope: int, cache: torch.dtype, *, heads: int = 16, page: int = 16, context: int = 40
) -> Any:
    """Launch one decode step of a layer of latent attention, and return the launch that reads the cache."""
    layer = object.__new__(TritonMLAImpl)
    layer.__dict__.update(num_heads=heads, kv_lora_rank=latent, scale=0.1, _sm_count=48, dcp_world_size=1)
    decode = SimpleNamespace(
        block_table=torch.zeros(REQUESTS, BLOCKS, dtype=torch.int32),
        seq_lens=torch.full((REQUESTS,), context, dtype=torch.int32),
    )
    layer.forward_mqa(
        torch.zeros(REQUESTS, heads, latent + rope, dtype=BF16),
        torch.zeros(BLOCKS, page, latent + rope).to(cache),
        SimpleNamespace(decode=decode, max_seq_len=context, causal=True),
        SimpleNamespace(_k_scale=torch.ones(())),
    )
    return reader()


def attend_plainly(head: int, cache: torch.dtype) -> Any:
    """Launch the same kernel with keys and values of their own, and return the launch."""
    pages = torch.zeros(BLOCKS, 16, 1, head).to(cache)
    decode_attention_fwd(
        torch.zeros(REQUESTS, 16, head, dtype=BF16),
        pages,
        pages.clone(),
        torch.zeros(REQUESTS, 16, head, dtype=BF16),
        torch.zeros(REQUESTS, 16),
        torch.zeros(REQUESTS, BLOCKS, dtype=torch.int32),
        torch.ones(REQUESTS, dtype=torch.int32),
        torch.zeros(REQUESTS, 16, 4, head + 1),
        4,
        0.1,
        16,
        k_scale=torch.ones(()),
        v_scale=torch.ones(()),
    )
    return reader()


def reader() -> Any:
    """Return the one launch that reads the cache."""
    (launch,) = [one for one in CARD.taken() if one.function.__name__ == GROUPED]
    return launch


def fits(launch: Any, what: str) -> None:
    """Compile *launch* for its card, and expect that a block has the memory that it takes."""
    taken, limit = launch.compile().shared, LIMIT[launch.arch]
    name = f"{launch.arch // 10}.{launch.arch % 10}"
    expect(
        taken <= limit, f"{what} takes {taken} bytes of shared memory on {name}, where a block has {limit}"
    )


def probe() -> None:
    """Expect every launch to fit its card, and the others to stay as they are."""
    for arch in (121, 120):
        CARD.arch = arch
        fits(attend(512, 64, FP8), "a latent of 512 + 64 in FP8")
    CARD.arch = 121
    for options in ({"heads": 128}, {"page": 64}, {"context": 60000}):
        fits(attend(512, 64, FP8, **options), f"a latent of 512 + 64 in FP8 with {options}")
    kept = {
        "a latent of 512 + 64 in 16 bits": attend(512, 64, BF16),
        "a latent of 256 + 64 in FP8": attend(256, 64, FP8),
        "a latent of 256 + 32 in FP8": attend(256, 32, FP8),
        "heads of 512 in FP8, not latent": attend_plainly(512, FP8),
    }
    for arch in (90, 100):
        CARD.arch = arch
        kept[f"a latent of 512 + 64 in FP8 on {arch // 10}.0"] = attend(512, 64, FP8)
    for what, launch in kept.items():
        expect(launch.options["num_stages"] == 2, f"{what} lost its second stage")
        fits(launch, what)
