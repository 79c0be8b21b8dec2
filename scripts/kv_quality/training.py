"""Train the block drafter in place, on what its target answers greedily over a 16-bit cache."""

from __future__ import annotations

import inspect
import random
import time
from collections import Counter
from importlib import import_module
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kv_quality.drafter import BLOCK, Drafter, Shape, context_mask
from kv_quality.texts import prose

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kv_quality.subject import Subject

__all__ = ["features", "load", "make_data", "new_drafter", "train"]

LAYERS = (6, 17, 29)
"""Of the target: those after which hidden states are taken."""
TAUGHT_BY = (28, 29)
"""Of the target: the layers that the drafter's begin as."""
WINDOW = 64
"""Positions of context that half of the steps are trained with; the other half sees all."""
BATCH, ANCHORS = 8, 20
PEAK, WARM = 6e-4, 20
SHOWN = 20
"""Steps that a stated loss is the mean of."""
FADE = 0.8
"""Weight of a drafted place to the one before it."""
ANSWER, PIECE = 64, 256
"""Tokens of a training answer, and of a piece of text."""
UNTAUGHT = 16
"""First tokens of a piece of text that no draft is trained on."""
SUBJECTS = (
    "the moon", "a volcano", "bread", "the internet", "a river", "photosynthesis", "a database", "democracy",
    "a bicycle", "chess", "the heart", "a lighthouse", "inflation", "an elephant", "wind power", "a violin",
    "sleep", "rust", "a library", "the Roman Empire", "electricity", "an operating system", "tea", "a desert",
    "friendship", "recursion", "snow", "a vaccine", "money", "a whale", "glass", "the number pi",
)  # fmt: skip
TASKS = (
    "Explain {} to a child.",
    "Write a short story about {}.",
    "List five facts about {}.",
    "Why does {} matter?",
    "Write a letter about {}.",
    "What are common mistakes about {}?",
)
SORTS = (
    "sum", "mean", "median", "product", "first item", "last item", "longest word", "number of vowels",
    "sorted copy", "reverse", "set of duplicates", "index of the smallest item",
)  # fmt: skip
CODE = (
    "heapq",
    "json.decoder",
    "logging",
    "mailbox",
    "netrc",
    "optparse",
    "pathlib",
    "queue",
    "random",
    "shlex",
    "tarfile",
)


def questions() -> list[str]:
    """Return what the target is asked for training; none of it is among the measured prompts."""
    found = [task.format(subject) for subject in SUBJECTS for task in TASKS]
    found += [f"Write a function in Python that returns the {sort} of a list." for sort in SORTS]
    for name in CODE:
        text = inspect.getsource(import_module(name))
        for part in (1, 2, 3):
            begin = text.find("\n    def ", len(text) * part // 5)
            found.append(f"Repeat this code with comments:\n\n{text[begin : begin + 500]}")
    random.Random(0).shuffle(found)  # noqa: S311 - not a secret
    return found


def features(subject: Subject, tokens: torch.Tensor, name: str) -> torch.Tensor:
    """Return the target's joined hidden states (batch x positions x width) over a cache of format *name*."""
    out = subject.model.model(
        tokens, past_key_values=subject.cache(name), use_cache=True, output_hidden_states=True
    )
    return torch.cat([out.hidden_states[layer] for layer in LAYERS], dim=-1)


def make_data(subject: Subject, file: Path, answers: int, pieces: int, together: int = 24) -> None:
    """Let the target answer questions and read text, write tokens and hidden states to *file*.

    What the file has is kept. Reading is far cheaper than answering, and teaches most of what answers do.

    Args:
        subject: the target.
        file: of torch's own format, a list of tokens, the prompt's length, and hidden states in bfloat16.
        answers: to questions, a multiple of *together*.
        pieces: of text, of 256 tokens.
        together: questions of a batch.
    """
    found: list[dict[str, Any]] = torch.load(file) if file.exists() else []
    if len(found) < pieces:
        text = subject.tokens("\n\n".join(inspect.getsource(import_module(name)) for name in CODE))
        text += subject.tokens(prose())
        for number in range(len(found), pieces):
            begin = number * (len(text) - PIECE) // pieces
            found.append(example(subject, text[begin : begin + PIECE], UNTAUGHT))
        torch.save(found, file)
    asked = sorted((subject.chat(one) for one in questions()[:answers]), key=len)
    for at in range(len(found) - pieces, len(asked), together):
        batch = asked[at : at + together]
        replies = subject.greedy(batch, "16 bits", ANSWER)
        found += [
            example(subject, [*one, *reply], len(one)) for one, reply in zip(batch, replies, strict=True)
        ]
        torch.save(found, file)
        print(f"{len(found) - pieces} answers", flush=True)


def example(subject: Subject, tokens: list[int], prompt: int) -> dict[str, Any]:
    """Return *tokens*, the length of their *prompt*, and the target's hidden states over a 16-bit cache."""
    ids = torch.tensor(tokens)
    return {
        "tokens": ids,
        "prompt": prompt,
        "features": features(subject, ids[None], "16 bits")[0].bfloat16(),
    }


def new_drafter(subject: Subject, known: torch.Tensor) -> Drafter:
    """Return a drafter whose layers are copies of the target's last ones."""
    model = subject.model
    config = model.config
    shape = Shape(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        inner=config.intermediate_size,
        layers=len(TAUGHT_BY),
        features=len(LAYERS),
        theta=config.rope_parameters["rope_theta"],
    )
    drafter = Drafter(shape, model.model.embed_tokens.weight, model.lm_head.weight, known)
    with torch.no_grad():
        drafter.join.weight.mul_(0.1)
        drafter.join.weight[:, -shape.width :] += torch.eye(shape.width)
        drafter.last.weight.copy_(model.model.norm.weight)
        for layer, number in zip(drafter.layers, TAUGHT_BY, strict=True):
            teacher = model.model.layers[number]
            attention, network = teacher.self_attn, teacher.mlp
            pairs = (
                (layer.before, teacher.input_layernorm), (layer.between, teacher.post_attention_layernorm),
                (layer.query, attention.q_proj), (layer.key, attention.k_proj),
                (layer.value, attention.v_proj), (layer.out, attention.o_proj),
                (layer.gate, network.gate_proj), (layer.up, network.up_proj), (layer.down, network.down_proj),
            )  # fmt: skip
            for own, its in pairs:
                own.weight.copy_(its.weight)
    return drafter


def vocabulary(data: Sequence[dict[str, Any]]) -> torch.Tensor:
    """Return the tokens that answers in *data* have, ascending."""
    counts = Counter(token for one in data for token in one["tokens"][one["prompt"] :].tolist())
    return torch.tensor(sorted(counts))


def batch_of(data: Sequence[dict[str, Any]], draw: random.Random) -> dict[str, torch.Tensor]:
    """Return a step's inputs: padded hidden states, anchors, their tokens, wanted tokens, and the mask."""
    long = [one for one in data if len(one["tokens"]) - one["prompt"] > BLOCK]
    some = draw.sample(long, min(BATCH, len(long)))
    longest = max(len(one["tokens"]) for one in some)
    window = draw.choice((None, WINDOW))
    states = torch.zeros(len(some), longest, some[0]["features"].shape[-1])
    anchors, masks, wanted, confirmed = [], [], [], []
    for row, one in enumerate(some):
        tokens = one["tokens"]
        states[row, : len(tokens)] = one["features"].float()
        places = range(one["prompt"], len(tokens) - BLOCK + 1)
        at = torch.tensor(sorted(draw.choices(places, k=ANCHORS)))
        anchors.append(at)
        confirmed.append(tokens[at])
        wanted.append(torch.stack([tokens[at + ahead] for ahead in range(1, BLOCK)], dim=1))
        masks.append(context_mask(at, longest, window))
    names = {"anchors": anchors, "confirmed": confirmed, "wanted": wanted, "mask": masks}
    return {"states": states, **{name: torch.stack(parts) for name, parts in names.items()}}


def train(
    subject: Subject, data: Sequence[dict[str, Any]], file: Path, steps: int, seed: int
) -> dict[str, Any]:
    """Train a drafter for a number of *steps*, write it to *file*; return figures of the training."""
    torch.manual_seed(seed)
    draw = random.Random(seed)  # noqa: S311 - not a secret
    drafter = new_drafter(subject, vocabulary(data))
    index = {token: at for at, token in enumerate(drafter.known.tolist())}
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=PEAK, betas=(0.9, 0.95), weight_decay=0.01)
    weight = torch.tensor([FADE**ahead for ahead in range(BLOCK - 1)])
    losses: list[float] = []
    began = time.process_time()
    while len(losses) < steps:
        batch = batch_of(data, draw)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(1.0, (len(losses) + 1) / WARM) * (1.0 - 0.9 * len(losses) / steps)
        context = drafter.store(batch["states"])
        scores = drafter(batch["confirmed"], batch["anchors"], context, batch["mask"])
        wanted = torch.tensor([index[token] for token in batch["wanted"].flatten().tolist()])
        each = nn.functional.cross_entropy(scores.flatten(0, 2), wanted, reduction="none")
        loss = (each.view(-1, BLOCK - 1) * weight).mean() / weight.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) % SHOWN == 0:
            print(f"step {len(losses)}: {mean(losses[-SHOWN:]):.3f}", flush=True)
    torch.save({"known": drafter.known, "state": drafter.state_dict()}, file)
    return {
        "steps": steps,
        "first_loss": mean(losses[:SHOWN]),
        "loss": mean(losses[-SHOWN:]),
        "seconds": round(time.process_time() - began),
        "answers": len(data),
        "tokens": sum(len(one["tokens"]) - one["prompt"] for one in data),
        "known": len(drafter.known),
        "parameters": sum(one.numel() for one in drafter.parameters()),
    }


def load(subject: Subject, file: Path) -> Drafter:
    """Return the drafter in *file*."""
    found = torch.load(file)
    drafter = new_drafter(subject, found["known"])
    drafter.load_state_dict(found["state"])
    return drafter.eval()
