"""What a speculating request gets from a gated delta net does not depend on its neighbours.

Batches of requests go through upstream's metadata builder and `_forward_core` of the Qwen layer. The
recurrent kernel, which multiplies the gates with queries, keys and values, is the real one and runs
in Triton's interpreter. Three neighbours of it have stand-ins: the convolution passes its input
through, and prefill adds gates to values, which still shows whose gates it was given.

Healthy: a request's outputs and its recurrent states are those that the kernel makes of its own rows and
gates, also when rows without drafts come before them.
Controls, true of every tree: batches in which all requests speculate, or where they come first; and
the rows without drafts, wherever they are.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import torch
from probekit import expect
from torch import nn
from vllm.forward_context import override_forward_context
from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn
from vllm.utils import torch_utils
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import utils as backend_utils
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata, GDNAttentionMetadataBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "layers.0"
KEY_HEADS, VALUE_HEADS, HEAD = 1, 2, 16
KEY_WIDTH, VALUE_WIDTH = KEY_HEADS * HEAD, VALUE_HEADS * HEAD
MAX_DRAFTS = 3
BLOCKS = MAX_DRAFTS + 1  # recurrent states of one request: one for each token that may be accepted
COMPUTED = 7  # tokens of every request that were computed before
A_LOG, DT_BIAS = torch.tensor([0.1, -0.3]), torch.tensor([0.2, 0.4])
PADDING = 2  # rows after the batch, as for a captured graph


class Request(NamedTuple):
    """One request's part of a batch."""

    index: int
    tokens: int
    speculates: bool
    accepted: int = 1  # of the previous step

    @property
    def blocks(self) -> range:
        """The blocks that hold its states; block 0 is of no request."""
        return range(1 + self.index * BLOCKS, 1 + (self.index + 1) * BLOCKS)


class Rows(NamedTuple):
    """Inputs of the layer, a row for each token."""

    qkv: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor


class Result(NamedTuple):
    """What the layer computed for one request."""

    output: torch.Tensor
    states: torch.Tensor


ANNE = Request(0, tokens=4, speculates=True, accepted=2)
BERT = Request(1, tokens=3, speculates=True, accepted=3)
DECODE = Request(2, tokens=1, speculates=False)
PREFILL = Request(3, tokens=5, speculates=False)
EVERYONE = (ANNE, BERT, DECODE, PREFILL)


def random_rows(count: int, seed: int) -> Rows:
    """Return *count* rows that depend on *seed* only."""
    generator = torch.Generator().manual_seed(seed)
    widths = (2 * KEY_WIDTH + VALUE_WIDTH, VALUE_HEADS, VALUE_HEADS)
    return Rows(*(torch.randn(count, width, generator=generator) for width in widths))


def rows_of(request: Request) -> Rows:
    """Return the inputs of *request*, the same in every batch."""
    return random_rows(request.tokens, seed=request.index)


def starts(counts: list[int]) -> torch.Tensor:
    """Return where each of consecutive runs starts, and where the last one ends."""
    return torch.tensor([0, *counts]).cumsum(0).to(torch.int32)


def metadata(batch: list[Request]) -> GDNAttentionMetadata:
    """Have upstream describe *batch*."""
    builder = object.__new__(GDNAttentionMetadataBuilder)
    builder.kv_cache_spec = None
    builder.vllm_config = SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode="none"))
    builder.gdn_prefill_backend = "triton"
    builder.use_spec_decode, builder.num_spec = True, MAX_DRAFTS
    builder.use_full_cuda_graph, builder.decode_cudagraph_max_bs = False, 0

    counts = [request.tokens for request in batch]
    lengths = torch.tensor([COMPUTED + count for count in counts], dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=starts(counts),
        query_start_loc_cpu=starts(counts),
        seq_lens=lengths,
        num_reqs=len(batch),
        num_actual_tokens=sum(counts),
        max_query_len=max(counts),
        max_seq_len=int(lengths.max()),
        block_table_tensor=torch.tensor([list(request.blocks) for request in batch], dtype=torch.int32),
        slot_mapping=torch.zeros(sum(counts), dtype=torch.int64),
    )
    return builder.build(
        0,
        common,
        num_accepted_tokens=torch.tensor([request.accepted for request in batch], dtype=torch.int32),
        num_decode_draft_tokens_cpu=torch.tensor(
            [request.tokens - 1 if request.speculates else -1 for request in batch], dtype=torch.int32
        ),
    )


def pass_through(x: torch.Tensor, *_args: object, **_options: object) -> torch.Tensor:
    """Stand in for the convolution."""
    return x


def prepare_prefill(
    conv_output: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **_options: object
) -> tuple[torch.Tensor, ...]:
    """Stand in for the preparation of prefill: leave the gates as they are."""
    query, key, value = conv_output.split([KEY_WIDTH, KEY_WIDTH, VALUE_WIDTH], dim=-1)
    return query, key, value.reshape(-1, VALUE_HEADS, HEAD), a, b


def prefill(
    *, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, initial_state: torch.Tensor, **_options: object
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for prefill: add the gates to the values, and leave the states alone."""
    return v + (g + 10 * beta).unsqueeze(-1), initial_state


@contextmanager
def without_gpu() -> Iterator[None]:
    """Replace the GPU kernels around the recurrent one, and pin no memory."""
    replacements = [
        (torch_utils, "PIN_MEMORY", False),
        (backend_utils, "PIN_MEMORY", False),
        (qwen_gdn_linear_attn, "causal_conv1d_update", pass_through),
        (qwen_gdn_linear_attn, "causal_conv1d_fn", pass_through),
        (qwen_gdn_linear_attn, "fused_post_conv_prep", prepare_prefill),
    ]
    with ExitStack() as stack:
        for replacement in replacements:
            stack.enter_context(mock.patch.object(*replacement))
        yield


def layer(states: torch.Tensor) -> nn.Module:
    """Return upstream's layer with what its core reads; projections are not involved."""
    kind = qwen_gdn_linear_attn.QwenGatedDeltaNetAttention
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    module.prefix, module.tp_size, module.activation = PREFIX, 1, "silu"
    module.num_k_heads, module.num_v_heads = KEY_HEADS, VALUE_HEADS
    module.head_k_dim = module.head_v_dim = HEAD
    module.key_dim, module.value_dim = KEY_WIDTH, VALUE_WIDTH
    module.A_log, module.dt_bias = A_LOG, DT_BIAS
    module.conv1d = nn.Conv1d(1, 1, 1, bias=False)
    module.kv_cache = (torch.zeros(1, 1, 1), states)
    module.enable_packed_recurrent_decode = False
    module.chunk_gated_delta_rule = prefill
    return module


def initial_states() -> torch.Tensor:
    """Return the recurrent states before a step, those of every block."""
    generator = torch.Generator().manual_seed(100)
    return torch.randn(1 + BLOCKS * len(EVERYONE), VALUE_HEADS, HEAD, HEAD, generator=generator)


def alone(request: Request) -> Result:
    """Return what the recurrent kernel makes of the rows and gates of *request*."""
    rows, states = rows_of(request), initial_states()
    query, key, value = rows.qkv.split([KEY_WIDTH, KEY_WIDTH, VALUE_WIDTH], dim=-1)
    output, _states = qwen_gdn_linear_attn.fused_sigmoid_gating_delta_rule_update(
        A_log=A_LOG,
        a=rows.a,
        b=rows.b,
        dt_bias=DT_BIAS,
        q=query.reshape(1, -1, KEY_HEADS, HEAD),
        k=key.reshape(1, -1, KEY_HEADS, HEAD),
        v=value.reshape(1, -1, VALUE_HEADS, HEAD),
        initial_state=states,
        inplace_final_state=True,
        cu_seqlens=starts([request.tokens]),
        ssm_state_indices=torch.tensor([list(request.blocks)], dtype=torch.int32),
        num_accepted_tokens=torch.tensor([request.accepted], dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )
    return Result(output.reshape(-1, VALUE_HEADS, HEAD), states[list(request.blocks)])


def run(batch: list[Request]) -> list[Result]:
    """Return what the layer computes for each request of *batch*."""
    padding = random_rows(PADDING, seed=99)
    inputs = Rows(*map(torch.cat, zip(*map(rows_of, batch), padding, strict=True)))
    states = initial_states()
    output = torch.zeros(len(inputs.qkv), VALUE_HEADS, HEAD)
    with without_gpu():
        context = SimpleNamespace(attn_metadata={PREFIX: metadata(batch)})
        with override_forward_context(context):
            layer(states)._forward_core(inputs.qkv, inputs.b, inputs.a, output)  # noqa: SLF001
    *pieces, _padding = output.split([request.tokens for request in batch] + [PADDING])
    return [Result(piece, states[list(request.blocks)]) for request, piece in zip(batch, pieces, strict=True)]


def check_neighbours(batch: list[Request], what: str) -> None:
    """Compare what each request of *batch* gets with what its own rows and gates make."""
    for request, found in zip(batch, run(batch), strict=True):
        if request.speculates:
            same = all(map(torch.equal, found, alone(request)))
            expect(same, f"{what}: a speculating request gets the gates of other rows")
        else:
            qkv, a, b = rows_of(request)
            value = qkv[:, -VALUE_WIDTH:].reshape(-1, VALUE_HEADS, HEAD)
            same = torch.equal(found.output, value + (a + 10 * b).unsqueeze(-1))
            expect(same, f"{what}: a request without drafts gets the gates of other rows")


def probe() -> None:
    """Check the controls first, then each way in which other rows may come before."""
    check_neighbours([ANNE, BERT], "all speculate")
    check_neighbours([ANNE, BERT, DECODE], "a decode behind")
    check_neighbours([ANNE, PREFILL], "a prefill behind")
    check_neighbours([DECODE, ANNE], "a decode in front")
    check_neighbours([ANNE, DECODE, BERT], "a decode between")
    check_neighbours([PREFILL, BERT], "a prefill in front")
