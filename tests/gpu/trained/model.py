"""The DFlash drafter that vLLM computes, in torch: for training, and to predict what an engine accepts.

Names of modules are those of vLLM's checkpoints. The context of a step is each earlier token's hidden states
of chosen target layers, joined (`fc`), normalised (`hidden_norm`) and projected to keys and values of every
layer. Queries are the last confirmed token and masks behind it; a mask predicts the token of its own place.
Full layers see the context and the whole block; those with a window are causal and see that many places, with
their own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from trained.cells import DRAFTS

BLOCK = DRAFTS + 1
"""Tokens of a block: one confirmed, seven drafted."""
States = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Shape:
    """Sizes of a drafter."""

    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int  # width of the feed-forward networks
    layers: int
    features: tuple[int, ...]  # the target's layers whose hidden states are read
    target_layers: int
    theta: float
    eps: float
    vocabulary: int
    places: int
    mask: int
    window: int | None = None  # places that all layers but the last see

    def window_of(self, layer: int) -> int | None:
        """Return the window of a layer; the last one has none."""
        return self.window if layer < self.layers - 1 else None


def spread(layers: int, count: int = 5) -> tuple[int, ...]:
    """Return *count* of a target's layers, evenly from the second to the third last."""
    last = max(layers - 3, 0)
    first = min(1, last)
    return tuple(dict.fromkeys(first + round(at * (last - first) / (count - 1)) for at in range(count)))


def shape_of(config: Any, layers: int, mask: int, window: int | None) -> Shape:
    """Return the shape of a drafter for a target with transformers' *config*."""
    return Shape(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        inner=config.intermediate_size,
        layers=layers,
        features=spread(config.num_hidden_layers),
        target_layers=config.num_hidden_layers,
        theta=float(config.rope_parameters["rope_theta"]),
        eps=float(config.rms_norm_eps),
        vocabulary=config.vocab_size,
        places=config.max_position_embeddings,
        mask=mask,
        window=window,
    )


def visible(anchors: torch.Tensor, length: int, window: int | None, block: int = BLOCK) -> torch.Tensor:
    """Return what each query may read: … x (blocks * block) x (length + blocks * block), bool."""
    device, blocks = anchors.device, anchors.shape[-1]
    offset = torch.arange(block, device=device).repeat(blocks)
    anchor = anchors.repeat_interleave(block, dim=-1)[..., None]
    place = torch.arange(length, device=device)
    context = place < anchor
    number = torch.arange(blocks, device=device).repeat_interleave(block)
    own = number[:, None] == number[None]
    if window is not None:
        context = context & (place > anchor + offset[:, None] - window)
        behind = offset[:, None] - offset[None]
        own = own & (behind >= 0) & (behind < window)
    return torch.cat([context, own.expand(*anchors.shape[:-1], *own.shape)], dim=-1)


def rotated(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Return *x* (… x places x heads x channels) with rotary *positions* (… x places)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angle = positions.float()[..., None, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    left, right = x[..., :half].float(), x[..., half:].float()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)


class Norm(nn.Module):
    """A root-mean-square norm, computed in float32 whatever it is given."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return *x* divided by its root mean square, times the weight."""
        exact = x.float()
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return exact.to(x.dtype) * self.weight.to(x.dtype)


class Attention(nn.Module):
    """Attention of queries over stored context and the block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        wide, narrow = shape.heads * shape.head, shape.kv_heads * shape.head
        self.q_proj = nn.Linear(shape.width, wide, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(shape.width, narrow, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(wide, shape.width, bias=False)
        self.q_norm, self.k_norm = (Norm(shape.head, eps=shape.eps) for _ in range(2))

    def stored(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (… x places x heads x channels) of *x* at *positions*."""
        size = (*x.shape[:-1], self.shape.kv_heads, self.shape.head)
        keys = self.k_norm(self.k_proj(x).view(size))
        return rotated(keys, positions, self.shape.theta), self.v_proj(x).view(size)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        context: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Return what the queries *x* (batch x places x width) read."""
        shape = self.shape
        own = self.stored(x, positions)
        groups = shape.heads // shape.kv_heads
        keys, values = (
            torch.cat(pair, dim=1).transpose(1, 2).repeat_interleave(groups, dim=1)
            for pair in zip(context, own, strict=True)
        )
        query = self.q_norm(self.q_proj(x).view(*x.shape[:-1], shape.heads, shape.head))
        query = rotated(query, positions, shape.theta).transpose(1, 2)
        read = scaled_dot_product_attention(
            query, keys.to(query.dtype), values.to(query.dtype), attn_mask=mask[:, None]
        )
        return self.o_proj(read.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    """The feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(shape.width, shape.inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output."""
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """A layer of the drafter."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), Feed(shape)
        self.input_layernorm = Norm(shape.width, eps=shape.eps)
        self.post_attention_layernorm = Norm(shape.width, eps=shape.eps)


class Drafter(nn.Module):
    """A DFlash drafter; its embedding and output head are the target's, and are given to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.features) * shape.width, shape.width, bias=False)
        self.hidden_norm, self.norm = (Norm(shape.width, eps=shape.eps) for _ in range(2))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))

    def store(self, features: torch.Tensor) -> States:
        """Return each layer's keys and values of joined hidden states (batch x places x joined width)."""
        x = self.hidden_norm(self.fc(features))
        positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        return [layer.self_attn.stored(x, positions) for layer in self.layers]

    def forward(
        self, tokens: torch.Tensor, anchors: torch.Tensor, context: States, embedding: torch.Tensor
    ) -> torch.Tensor:
        """Return the last hidden states of the drafted places: batch x blocks x drafts x width."""
        batch, blocks = tokens.shape
        asked = tokens[..., None].expand(batch, blocks, BLOCK).clone()
        asked[..., 1:] = self.shape.mask
        x = embedding[asked.flatten(1)].to(self.norm.weight.dtype)
        positions = (anchors[..., None] + torch.arange(BLOCK, device=anchors.device)).flatten(1)
        length = context[0][0].shape[1]
        windows = {self.shape.window_of(number) for number in range(self.shape.layers)}
        masks = {window: visible(anchors, length, window) for window in windows}
        for number, (layer, stored) in enumerate(zip(self.layers, context, strict=True)):
            mask = masks[self.shape.window_of(number)]
            x = x + layer.self_attn(layer.input_layernorm(x), positions, stored, mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x).unflatten(1, (blocks, BLOCK))[:, :, 1:]

    def draft(
        self,
        tokens: torch.Tensor,
        anchors: torch.Tensor,
        context: States,
        embedding: torch.Tensor,
        head: torch.Tensor,
    ) -> torch.Tensor:
        """Return the likeliest tokens of the drafted places (batch x blocks x drafts)."""
        return linear(self(tokens, anchors, context, embedding), head).argmax(-1)

    def begin_as(self, model: Any) -> None:
        """Copy the last layers of a Llama *model* and its last norm; begin with its last hidden states."""
        inner, count = model.model, len(self.layers)
        with torch.no_grad():
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, -self.shape.width :] += torch.eye(self.shape.width)
            self.norm.weight.copy_(inner.norm.weight)
            for layer, teacher in zip(self.layers, inner.layers[-count:], strict=True):
                known = teacher.state_dict()
                layer.load_state_dict(
                    {name: known[name] for name in layer.state_dict() if name in known}, strict=False
                )


def configuration(shape: Shape) -> dict[str, Any]:
    """Return the ``config.json`` by which vLLM loads the drafter."""
    found: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu",
        "hidden_size": shape.width, "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head,
        "num_target_layers": shape.target_layers, "rms_norm_eps": shape.eps, "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "max_position_embeddings": shape.places, "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "block_size": BLOCK,
        "dflash_config": {"mask_token_id": shape.mask, "target_layer_ids": list(shape.features)},
    }  # fmt: skip
    if shape.window is not None:
        kinds = ["sliding_attention"] * (shape.layers - 1) + ["full_attention"]
        found |= {"layer_types": kinds, "sliding_window": shape.window, "use_sliding_window": True}
    return found


def export(drafter: Drafter, folder: Path) -> Path:
    """Write the checkpoint that vLLM loads, and the shape that `load` reads, into *folder*; return it."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: one.detach().bfloat16().cpu().contiguous() for name, one in drafter.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    config = json.dumps(configuration(drafter.shape), indent=1)
    (folder / "config.json").write_text(config + "\n", encoding="utf-8")
    (folder / "shape.json").write_text(json.dumps(asdict(drafter.shape)) + "\n", encoding="utf-8")
    return folder


def load(folder: Path) -> Drafter:
    """Return the drafter that `export` wrote into *folder*, in bfloat16."""
    from safetensors.torch import load_file

    told = json.loads((folder / "shape.json").read_text(encoding="utf-8"))
    drafter = Drafter(Shape(**(told | {"features": tuple(told["features"])}))).bfloat16()
    drafter.load_state_dict(load_file(folder / "model.safetensors"))
    return drafter.eval()
