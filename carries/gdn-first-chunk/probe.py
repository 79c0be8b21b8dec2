"""Does a request of a gated delta net go on from its own state, at a prompt's start and without drafts?

Batches go through upstream's builder. Model runners V1 and V2 describe them, too: what they say of a step has
to be enough for the builder. V1's `execute_model` and `_dummy_run` run up to the metadata.

Healthy: a prompt's first token counts as a prefill without a state; a decode without drafts looks its state
up as one with drafts does; and rows of a dummy run are decodes, whatever requests left there. Controls, true
of every tree: longer starts, later tokens of a prompt, decodes with drafts, outputs that are computed again,
warmups, and batches of captures, which have the shape of prompts' starts.
"""

from __future__ import annotations

from batches import (
    BATCHES,
    CAPTURED,
    DRAFTED,
    DRAFTS,
    LONG,
    STEPS,
    check,
    check_batches,
    check_drafts,
    make_builder,
)
from probekit import expect
from runner import V1
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backends.mamba2_attn import Mamba2AttentionMetadataBuilder


class Mamba(Mamba2AttentionMetadataBuilder):  # type: ignore[misc]
    """Mamba's builder, as far as what it is given."""

    def __init__(self) -> None: ...

    def build(self, **given: object) -> bool:
        """Say whether there are counts of accepted tokens."""
        return "num_accepted_tokens" in given


def check_steps() -> None:
    """Let V1 describe steps without a speculator, and with one."""
    for batch in BATCHES:
        if batch.requests[0] is not CAPTURED:
            check(batch, V1(make_builder(speculative=False), batch.requests, CUDAGraphMode.NONE, 0).step())
    for what, rows in STEPS.items():
        found = V1(make_builder(speculative=True), rows, CUDAGraphMode.NONE, DRAFTS).step()
        check_drafts(f"V1, {what}", rows, found)
        given = V1(Mamba(), rows, CUDAGraphMode.NONE, DRAFTS).step()
        drafted = any(row.drafts for row in rows)
        expect(given == drafted, f"V1, {what}: Mamba's builder is not given what it was upstream")


def check_dummies() -> None:
    """Let V1 describe dummy runs while rows hold what is left of a prompt, and of its drafts."""
    for drafts in (0, DRAFTS):
        left = V1(make_builder(speculative=drafts > 0), (LONG, DRAFTED), CUDAGraphMode.FULL, drafts)
        left.num_decode_draft_tokens.np.fill(-1)
        found = left.dummy(num_tokens=1 + drafts, uniform_decode=True)
        kinds = found.num_decodes, found.num_prefills, found.num_spec_decodes
        right = (0, 0, 1) if drafts else (1, 0, 0)
        expect(kinds == right, f"a dummy run, K={drafts}: decodes, prefills and drafted are {kinds}")
        left.mode = CUDAGraphMode.NONE
        found = left.dummy(num_tokens=20, force_attention=True, create_mixed_batch=True)
        kinds = found.num_decodes, found.num_prefills, found.num_spec_decodes
        expect(kinds == (7, 1, 0), f"a warmup, K={drafts}: decodes, prefills and drafted are {kinds}")


def probe() -> None:
    """Check the builder and V2, then V1."""
    check_batches()
    check_steps()
    check_dummies()
