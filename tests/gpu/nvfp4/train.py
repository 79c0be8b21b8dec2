"""A small Qwen3 over bytes, trained in place on the Python sources that are installed.

A made-up model has nothing to lose: its attention is noise. This one has learned to look back, to a name
that it copies or an indentation that it keeps, so that a cache's error shows in what it predicts.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["LENGTH", "VOCABULARY", "corpus", "train"]

VOCABULARY = 256
LENGTH = 2048
TEXT_BYTES = 120_000_000
HELD_OUT = 0.02
WARM_UP = 50  # steps
RATE = 2e-3


@dataclass(frozen=True)
class Sizes:
    """Of the model and of a step."""

    layers: int = 4
    hidden: int = 512
    heads: int = 8
    kv_heads: int = 2
    head: int = 64
    batch: int = 24
    length: int = LENGTH


SMALL = Sizes(layers=1, hidden=64, heads=2, kv_heads=1, head=64, batch=2, length=128)


def configuration(sizes: Sizes) -> dict[str, Any]:
    """Return what vLLM reads as ``config.json``."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "head_dim": sizes.head,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "initializer_range": 0.02,
        "intermediate_size": 3 * sizes.hidden,
        "max_position_embeddings": 2 * LENGTH,
        "model_type": "qwen3",
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def sources() -> Iterator[Path]:
    """Python files of the installed packages, in an order that does not depend on the file system."""
    for place in dict.fromkeys(map(Path, [*sys.path, str(Path(torch.__file__).parents[1])])):
        if place.is_dir() and any(part.endswith("-packages") for part in place.parts):
            yield from sorted(place.rglob("*.py"))


def corpus(seed: int, limit: int = TEXT_BYTES) -> tuple[torch.Tensor, list[bytes]]:
    """Return bytes to train on, and files that are held out, long ones only."""
    files = list(dict.fromkeys(sources()))
    random.Random(seed).shuffle(files)
    texts, taken = [], 0
    for file in files:
        try:
            text = file.read_bytes()
        except OSError:
            continue
        if 500 < len(text) < 200_000:
            texts.append(text)
            taken += len(text)
        if taken > limit:
            break
    held = int(len(texts) * HELD_OUT) + 1
    long = [text for text in texts[:held] if len(text) >= LENGTH + 256]
    joined = b"\0".join(texts[held:])
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8), long


def train(folder: Path, seed: int, seconds: float, device: str) -> dict[str, Any]:
    """Train for *seconds*, write the model into *folder*; returns steps, loss and the held-out files."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = Sizes() if device == "cuda" else SMALL
    text, held = corpus(seed, TEXT_BYTES if device == "cuda" else 2_000_000)
    text = text.to(device)
    torch.manual_seed(seed)
    config = configuration(sizes)
    given = {
        name: value
        for name, value in config.items()
        if name not in {"architectures", "model_type", "torch_dtype"}
    }
    model = Qwen3ForCausalLM(Qwen3Config(**given, attn_implementation="sdpa")).to(device)
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    losses, began, step = [], time.monotonic(), 0
    offsets = torch.arange(sizes.length + 1, device=device)
    while (share := (time.monotonic() - began) / seconds) < 1:
        rate = RATE * min(1.0, (step + 1) / WARM_UP) * (0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(text) - sizes.length - 1, (sizes.batch, 1), device=device)
        rows = text[starts + offsets].long()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        step += 1
        if step % 20 == 0:
            losses[-1].item()  # the card must not fall behind the clock
    _write(folder, model, config)
    last = torch.stack(losses[-20:]).mean().item()
    return {
        "steps": step,
        "loss": round(last, 4),
        "first_loss": round(losses[0].item(), 4),
        "bytes": step * sizes.batch * sizes.length,
        "text": len(text),
        "parameters": sum(one.numel() for one in model.parameters()),
        "held": held,
    }


def _write(folder: Path, model: Any, config: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
