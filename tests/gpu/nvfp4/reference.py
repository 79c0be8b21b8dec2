"""Attention in float64, one request at a time, straight from its definition."""

from __future__ import annotations

import torch

from nvfp4.rig import Batch, Features, Layer

__all__ = ["attention", "gather"]

ROWS = 256  # queries at a time, to bound the memory of the scores


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    features: Features,
    sinks: torch.Tensor | None = None,
    slopes: list[float] | None = None,
) -> torch.Tensor:
    """Attend with the last tokens of one request.

    Args:
        query: new tokens x heads x channels.
        key: all tokens x KV heads x channels; the new ones are the last.
        value: like *key*.
        features: what is masked and how scores are bent.
        sinks: a score for each head that takes part in the softmax and has no value.
        slopes: ALiBi's, one for each head.

    Returns:
        new tokens x heads x channels, float64.
    """
    group = query.shape[1] // key.shape[1]
    keys = key.double().repeat_interleave(group, dim=1).permute(1, 2, 0)  # heads x channels x tokens
    values = value.double().repeat_interleave(group, dim=1).permute(1, 0, 2)
    context = key.shape[0] - query.shape[0]
    places = torch.arange(key.shape[0], device=key.device)
    parts = []
    for begin in range(0, query.shape[0], ROWS):
        rows = query[begin : begin + ROWS].double().permute(1, 0, 2)
        scores = rows @ keys * query.shape[-1] ** -0.5
        own = context + begin + torch.arange(rows.shape[1], device=key.device)
        if features.softcap:
            scores = features.softcap * torch.tanh(scores / features.softcap)
        scores = scores.masked_fill(~visible(own[:, None], places[None, :], features), -torch.inf)
        if slopes is not None:
            slope = torch.tensor(slopes, dtype=torch.float64, device=key.device)[:, None, None]
            scores = scores + slope * (places[None, :] - own[:, None]).double()
        parts.append(_weighted(scores, values, sinks))
    return torch.cat(parts, dim=1).permute(1, 0, 2)


def visible(own: torch.Tensor, places: torch.Tensor, features: Features) -> torch.Tensor:
    """Return which *places* a token at place *own* may attend to."""
    distance = own - places
    seen = distance >= 0 if features.causal else torch.ones_like(distance, dtype=torch.bool)
    if features.window is not None:
        seen = seen & (distance < features.window)
        if not features.causal:
            seen = seen & (distance > -features.window)
    return seen


def _weighted(scores: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    if sinks is None:
        return torch.softmax(scores, dim=-1) @ values
    extra = sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.softmax(torch.cat([scores, extra], dim=-1), dim=-1)[..., :-1] @ values


def gather(
    layer: Layer, batch: Batch, blocks: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each request's keys and values from *key* and *value* (slots x heads x channels)."""
    from nvfp4.rig import slots_of

    rows = zip(blocks, batch.lengths, strict=True)
    slots = [slots_of(row, layer.shape.block, 0, length) for row, length in rows]
    return [(key[some], value[some]) for some in slots]


def expected(
    query: torch.Tensor, batch: Batch, pairs: list[tuple[torch.Tensor, torch.Tensor]], layer: Layer
) -> torch.Tensor:
    """`attention` of each request of *batch*, one after another as in *query*."""
    parts = []
    for index, (key, value) in enumerate(pairs):
        begin, end = batch.starts[index], batch.starts[index + 1]
        parts.append(
            attention(
                query[begin:end],
                key,
                value,
                features=layer.features,
                sinks=layer.sinks,
                slopes=layer.slopes,
            )
        )
    return torch.cat(parts)
