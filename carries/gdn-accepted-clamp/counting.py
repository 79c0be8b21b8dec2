"""Which state a request goes on from, given how many tokens its last step is said to have accepted.

Each kernel is run on two requests of 1 + K tokens. Every state that a table or a row of states holds is
different, and so are those that lie before, between and behind them, as other requests' do in a cache.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING
from unittest import mock

import torch
from probekit import expect
from vllm.triton_utils import tl, triton

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    # From (initial states, their table, accepted counts) to the outputs of every token.
    Recurrent = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    Run = Callable[[list[int]], torch.Tensor]

DRAFTS = 3
TOKENS = 1 + DRAFTS  # of each request
REQUESTS = 2
HEADS, HEAD = 2, 16
WIDTH, CHANNELS = 4, 8  # of the convolution
BLOCKS = 24
STARTS = torch.arange(0, (REQUESTS + 1) * TOKENS, TOKENS, dtype=torch.int32)


@triton.jit
def exp(x):  # noqa: ANN001, ANN201 - Triton's
    """Stand in for the modules' `exp`, a function of Triton's that the interpreter misses by that name."""
    return tl.exp(x)


def rows(*shape: int, seed: int) -> torch.Tensor:
    """Return values of *shape* that depend on *seed* only."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def recurrent(kernel: Recurrent, accepted: list[int]) -> torch.Tensor:
    """Run *kernel*; its table of states lies between rows of other requests, in one piece of memory."""
    table = torch.arange(1, 1 + (REQUESTS + 2) * TOKENS, dtype=torch.int32).view(-1, TOKENS)[1:-1]
    states = rows(BLOCKS, HEADS, HEAD, HEAD, seed=0)
    return kernel(states, table, torch.tensor(accepted, dtype=torch.int32))


def convolution(update: Callable[..., torch.Tensor], accepted: list[int]) -> torch.Tensor:
    """Run the convolution on states that lie between those of other requests; return outputs and states."""
    states = rows(BLOCKS, CHANNELS, WIDTH - 1 + DRAFTS, seed=1)
    output = update(
        rows(REQUESTS * TOKENS, CHANNELS, seed=2),
        states,
        rows(CHANNELS, WIDTH, seed=3),
        conv_state_indices=torch.tensor([5, 9], dtype=torch.int32),
        num_accepted_tokens=torch.tensor(accepted, dtype=torch.int32),
        query_start_loc=STARTS,
        max_query_len=TOKENS,
    )
    return torch.cat([output.flatten(), states.flatten()])


def check(what: str, run: Run) -> None:
    """Expect counts from 1 to 1 + K to choose different states, and all others the nearest of these."""
    for request in range(REQUESTS):

        def of(count: int, request: int = request) -> torch.Tensor:
            return run([count if index == request else 2 for index in range(REQUESTS)])

        proper = [of(count) for count in range(1, TOKENS + 1)]
        distinct = all(not torch.equal(one, other) for one, other in pairwise(proper))
        expect(distinct, f"{what}: the states of different counts are the same")
        for count, nearest in ((0, 0), (-3, 0), (TOKENS + 1, DRAFTS), (TOKENS + 6, DRAFTS)):
            found = of(count)
            expect(
                torch.equal(found, proper[nearest]),
                f"{what}: {count} accepted tokens of {TOKENS} take request {request} to another state",
            )


def check_all(
    kernels: dict[str, Recurrent], update: Callable[..., torch.Tensor], modules: list[ModuleType]
) -> None:
    """Check the convolution and each of the recurrent *kernels*; *modules* have an `exp` of their own."""
    check("convolution", partial(convolution, update))
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "exp", exp))
        for what, kernel in kernels.items():
            check(what, partial(recurrent, kernel))


def inputs() -> dict[str, torch.Tensor]:
    """Return queries, keys and values of all tokens."""
    return {name: rows(1, REQUESTS * TOKENS, HEADS, HEAD, seed=seed) for seed, name in enumerate("qkv", 10)}


def gated(rule: Callable[..., tuple[torch.Tensor, torch.Tensor]], *, per_channel: bool = False) -> Recurrent:
    """Adapt *rule*, which takes ready gates: one for each head, or one for each channel of it."""

    def run(states: torch.Tensor, table: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
        shape = (1, REQUESTS * TOKENS, HEADS, HEAD) if per_channel else (1, REQUESTS * TOKENS, HEADS)
        return rule(
            **inputs(),
            g=-rows(*shape, seed=20).abs(),
            beta=rows(1, REQUESTS * TOKENS, HEADS, seed=21).sigmoid(),
            scale=HEAD**-0.5,
            initial_state=states,
            cu_seqlens=STARTS,
            ssm_state_indices=table,
            num_accepted_tokens=accepted,
        )[0]

    return run


def gating(rule: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Recurrent:
    """Adapt *rule*, which makes its gates by itself."""

    def run(states: torch.Tensor, table: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
        return rule(
            A_log=rows(HEADS, seed=30),
            a=rows(REQUESTS * TOKENS, HEADS, seed=31),
            b=rows(REQUESTS * TOKENS, HEADS, seed=32),
            dt_bias=rows(HEADS, seed=33),
            **inputs(),
            initial_state=states,
            cu_seqlens=STARTS,
            ssm_state_indices=table,
            num_accepted_tokens=accepted,
        )[0]

    return run
