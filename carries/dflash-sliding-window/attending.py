"""Check each layer's window and causality, from a proposal's metadata to what a kernel computes with them.

The Triton backend is interpreted and held against a masked reference. FlashAttention has no kernel for CPUs:
there the arguments of its call are checked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from configurations import HEAD_SIZE, HEADS, KV_HEADS, Seen
from drafters import BLOCK, CONTEXTS, QUERIES, Drafter
from probekit import expect
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend


def check_attends(what: str, config: Any, wanted: list[Seen]) -> None:
    """Expect of both backends that each layer attends as *wanted*."""
    for backend in (TritonAttentionBackend, FlashAttentionBackend):
        found: object
        try:
            found = Drafter(config, backend).attends()
        except (AssertionError, ValueError) as error:
            found = repr(error)
        expect(found == wanted, f"{what}, on {backend.get_name()}: layers attend as {found}, not as {wanted}")


def reference(
    layer: Any, seen: Seen, query: torch.Tensor, cache: torch.Tensor, metadata: Any
) -> torch.Tensor:
    """Return attention of the drafted blocks with an explicit mask, one request after the other."""
    outputs = []
    for request, context in enumerate(CONTEXTS):
        rows = slice(request * QUERIES, (request + 1) * QUERIES)
        length = context + QUERIES
        pages = cache[metadata.block_table[request].long()]
        keys, values = (
            pages[:, kind].reshape(-1, KV_HEADS, HEAD_SIZE)[:length].repeat_interleave(HEADS // KV_HEADS, 1)
            for kind in (0, 1)
        )
        distance = torch.arange(context, length)[:, None] - torch.arange(length)
        mask = (distance >= 0) if seen.causal else torch.ones_like(distance, dtype=torch.bool)
        if seen.window is not None:
            mask &= distance.abs() < seen.window
        scores = torch.einsum("qhd,khd->hqk", query[rows], keys) * layer.impl.scale
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)


def check_numbers(what: str, config: Any, wanted: list[Seen]) -> None:
    """Expect of the Triton backend what attention with the mask of each layer gives."""
    drafter = Drafter(config)
    _, by_layer = drafter.metadata()
    query = torch.randn(len(CONTEXTS) * QUERIES, HEADS, HEAD_SIZE)
    cache = torch.randn(16, 2, BLOCK, KV_HEADS, HEAD_SIZE)
    for (name, layer), seen in list(zip(drafter.layers.items(), wanted, strict=True))[-2:]:
        output = torch.empty_like(query)
        layer.impl.forward(layer, query, query, query, cache, by_layer[name], output)
        goal = reference(layer, seen, query, cache, by_layer[name])
        error = (output - goal).abs().max().item()
        expect(error < 1e-4, f"{what}: {name} is off by {error:.3g} from attention as {seen}")


def check_flash_arguments(config: Any, wanted: list[Seen]) -> None:
    """Expect that FlashAttention gets each layer's window and causality, and no schedule made for one."""
    drafter = Drafter(config, FlashAttentionBackend)
    schedule = mock.patch.object(
        flash_attn, "get_scheduler_metadata", create=True, side_effect=ValueError("made for one window")
    )
    # As on a card whose FlashAttention schedules ahead: drafting must not, whatever the card.
    ahead = mock.patch.object(flash_attn, "get_flash_attn_version", return_value=3)
    with schedule, ahead:
        _, by_layer = drafter.metadata()
    query, cache = torch.zeros(QUERIES, HEADS, HEAD_SIZE), torch.zeros(16, 2, BLOCK, KV_HEADS, HEAD_SIZE)
    for (name, layer), seen in zip(drafter.layers.items(), wanted, strict=True):
        layer.impl.vllm_flash_attn_version = 2
        layer.impl.dcp_world_size = 1
        with mock.patch.object(flash_attn, "flash_attn_varlen_func", create=True) as call:
            layer.impl.forward(layer, query, query, query, cache, by_layer[name], query)
        given = call.call_args.kwargs
        left = -1 if seen.window is None else seen.window - 1
        window = [left, left if seen.window is None or not seen.causal else 0]
        found = given["causal"], given["window_size"]
        expect(found == (seen.causal, window), f"{name}: FlashAttention is called with {found}")
        expect(given["scheduler_metadata"] is None, f"{name}: FlashAttention was scheduled ahead")


def check_objects(what: str, config: Any, count: int) -> None:
    """Expect that *count* metadata objects serve all layers, on the same tensors."""
    by_group, by_layer = Drafter(config).metadata()
    objects = {id(one): one for one in by_layer.values()}
    tensors = {(one.block_table.data_ptr(), one.seq_lens.data_ptr()) for one in objects.values()}
    right = len(objects) == len(by_group) == count and len(tensors) == 1
    expect(right, f"{what}: {len(objects)} metadata objects on {len(tensors)} sets of tensors")


def check_assertion(config: Any) -> None:
    """Expect that metadata of a backend that does not do what a layer needs stop the proposal."""
    for fixed in (True, False):

        class Builder(TritonAttentionBackend.get_builder_cls()):  # type: ignore[misc]
            def build(self, *arguments: Any, **named: Any) -> Any:
                return replace(super().build(*arguments, **named), causal=fixed)  # noqa: B023

        backend = type("Fixed", (TritonAttentionBackend,), {"get_builder_cls": staticmethod(lambda: Builder)})
        try:
            found = Drafter(config, backend).attends()
        except AssertionError:
            continue
        expect(found == [Seen(None, fixed)] * 5, f"layers that attend as {found} are let through")
