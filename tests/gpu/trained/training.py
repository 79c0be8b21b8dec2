"""Train DFlash drafters on the answers that their target gives greedily; bounded by time, and resumable."""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from serve_pair import say
from torch import nn
from torch.nn.functional import cross_entropy, linear

from trained.model import BLOCK, Drafter, export, shape_of
from trained.texts import lessons

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Plan", "Target", "features", "greedy", "make_data", "train"]

FADE = 0.8
"""Weight of a drafted place to the one before it."""
SAVED_EACH, SHOWN = 60.0, 50
"""Seconds between two checkpoints; steps that a stated loss is the mean of."""


@dataclass(frozen=True)
class Plan:
    """The settings of a training.

    Attributes:
        seconds: of answers and training together.
        windows: of the drafters that are trained side by side on the same batches; None is one without.
        layers: of a drafter.
        answer: longest answer, in tokens.
        together: tokens of prompts and answers that are generated at once.
        batch: texts of a step.
        anchors: blocks of a text in a step.
        share: of the seconds, for answers.
        peak: largest rate of learning.
        steps: after which training ends in any case.
        mask: token that stands for a drafted place.
    """

    seconds: float
    windows: tuple[int | None, ...] = (None, 256)
    layers: int = 4
    answer: int = 160
    together: int = 1 << 18
    batch: int = 16
    anchors: int = 48
    share: float = 0.3
    peak: float = 1e-3
    steps: float = math.inf
    mask: int = 16


class Target:
    """The model that is drafted for, and its tokenizer; in bfloat16, on a CPU in float32, being faster."""

    def __init__(self, folder: Path, device: str) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=self.dtype).to(device).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.device = device
        ends = self.model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    @property
    def embedding(self) -> torch.Tensor:
        """Return the table of embeddings (vocabulary x width)."""
        return self.model.model.embed_tokens.weight.detach()

    @property
    def head(self) -> torch.Tensor:
        """Return the output head (vocabulary x width)."""
        return self.model.lm_head.weight.detach()


@torch.inference_mode()
def greedy(target: Target, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Return up to so many greedy *tokens* after each prompt, up to the end of the answer, which is kept."""
    width = max(map(len, prompts))
    rows = [[0] * (width - len(one)) + list(one) for one in prompts]
    masks = [[0] * (width - len(one)) + [1] * len(one) for one in prompts]
    out = target.model.generate(
        torch.tensor(rows, device=target.device),
        attention_mask=torch.tensor(masks, device=target.device),
        max_new_tokens=tokens, do_sample=False, pad_token_id=0, repetition_penalty=1.0,
    )  # fmt: skip
    found = []
    for row in out[:, width:].tolist():
        end = next((at for at, token in enumerate(row) if token in target.ends), len(row) - 1)
        found.append(row[: end + 1])
    return found


def features(target: Target, ids: torch.Tensor, layers: Sequence[int]) -> torch.Tensor:
    """Return the target's hidden states behind *layers*, joined (batch x places x joined width)."""
    with torch.no_grad():
        states = target.model.model(ids, output_hidden_states=True, use_cache=False).hidden_states
    return torch.cat([states[layer + 1] for layer in layers], dim=-1)


def batches(target: Target, plan: Plan, seed: int) -> Iterator[list[list[int]]]:
    """Yield prompts to be answered together, of about one length, without an end."""
    source, draw = lessons(target.tokenizer, seed), random.Random(seed)
    while True:
        some = sorted((next(source) for _ in range(max(4, plan.together // 512))), key=len)
        groups: list[list[list[int]]] = [[]]
        for one in some:
            if (len(one) + plan.answer) * (len(groups[-1]) + 1) > plan.together:
                groups.append([])
            groups[-1].append(one)
        groups = [group for group in groups if group]
        draw.shuffle(groups)
        yield from groups


def make_data(target: Target, plan: Plan, file: Path) -> list[tuple[list[int], int]]:
    """Return texts and the lengths of their prompts; let the target answer for its share of the seconds.

    Where *file* exists, its answers are returned, and no more are generated.
    """
    if file.exists():
        return [(row["tokens"], row["prompt"]) for row in map(json.loads, file.read_text().splitlines())]
    began, found = time.monotonic(), []
    for prompts in batches(target, plan, seed=1):
        replies = greedy(target, prompts, plan.answer)
        found += [
            ([*one, *reply], len(one))
            for one, reply in zip(prompts, replies, strict=True)
            if len(reply) > BLOCK
        ]
        spent = time.monotonic() - began
        say(f"answers: {len(found)} after {spent:.0f} s")
        if spent > plan.share * plan.seconds and len(found) >= plan.batch:
            break
    part = file.with_suffix(".part")
    part.write_text("".join(json.dumps({"tokens": text, "prompt": at}) + "\n" for text, at in found))
    part.replace(file)
    return found


def batch_of(
    data: Sequence[tuple[list[int], int]], plan: Plan, draw: random.Random, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a step's padded texts, anchors, confirmed tokens and wanted tokens."""
    some = draw.sample(data, min(plan.batch, len(data)))
    longest = max(len(text) for text, _ in some)
    ids = torch.zeros(len(some), longest, dtype=torch.long)
    anchors = torch.empty(len(some), plan.anchors, dtype=torch.long)
    for row, (text, prompt) in enumerate(some):
        ids[row, : len(text)] = torch.tensor(text)
        anchors[row] = torch.tensor(draw.choices(range(prompt, len(text) - BLOCK + 1), k=plan.anchors))
    wanted = torch.stack([ids.gather(1, anchors + ahead) for ahead in range(1, BLOCK)], dim=-1)
    confirmed = ids.gather(1, anchors)
    return ids.to(device), anchors.to(device), confirmed.to(device), wanted.to(device)


class Pupil:
    """A drafter in training."""

    def __init__(self, target: Target, plan: Plan, window: int | None) -> None:
        torch.manual_seed(0)
        self.plan, self.target = plan, target
        shape = shape_of(target.model.config, plan.layers, plan.mask, window)
        drafter = Drafter(shape)
        drafter.begin_as(target.model)
        self.drafter = drafter.to(target.device)
        self.optimizer = torch.optim.AdamW(
            self.drafter.parameters(), lr=plan.peak, betas=(0.9, 0.95), weight_decay=0.01
        )
        self.losses: list[float] = []

    def step(self, batch: tuple[torch.Tensor, ...], states: torch.Tensor, rate: float) -> torch.Tensor:
        """Learn from a batch; return the loss."""
        _, anchors, confirmed, wanted = batch
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        weight = FADE ** torch.arange(BLOCK - 1, device=states.device).float()
        with torch.autocast(states.device.type, dtype=torch.bfloat16, enabled=states.device.type != "cpu"):
            context = self.drafter.store(states)
            out = self.drafter(confirmed, anchors, context, self.target.embedding)
            scores = linear(out, self.target.head)
        each = cross_entropy(scores.flatten(0, 2).float(), wanted.flatten(), reduction="none")
        loss = (each.view(-1, BLOCK - 1) * weight).mean() / weight.mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def rate(plan: Plan, share: float) -> float:
    """Return the rate of learning after a *share* of the time: a short rise, then a cosine to a twentieth."""
    if share < 0.03:
        return plan.peak * (0.05 + 0.95 * share / 0.03)
    return plan.peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, share))))


def train(target: Target, plan: Plan, folder: Path) -> dict[str, Any]:
    """Train the drafters, and export them to ``full`` and ``window`` under *folder*; return figures."""
    data = make_data(target, plan, folder / "answers.jsonl")
    pupils = [Pupil(target, plan, window) for window in plan.windows]
    file, spent, steps = folder / "state.pt", 0.0, 0
    curve: list[list[float]] = []
    if file.exists():
        spent, steps, curve = _restore(pupils, file, target.device)
    draw = random.Random(steps + 7)
    limit = (1 - plan.share) * plan.seconds
    began, saved, losses = time.monotonic() - spent, time.monotonic(), []
    while (spent := time.monotonic() - began) < limit and steps < plan.steps:
        batch = batch_of(data, plan, draw, target.device)
        states = features(target, batch[0], pupils[0].drafter.shape.features)
        now = rate(plan, max(spent / limit, steps / plan.steps))
        losses.append([one.step(batch, states, now) for one in pupils])
        steps += 1
        if steps % SHOWN == 0:
            curve.append(
                [
                    steps,
                    round(spent, 1),
                    *(round(mean(map(float, some)), 3) for some in zip(*losses, strict=True)),
                ]
            )
            losses = []
            say(f"step {steps}, {spent:.0f} s: {curve[-1][2:]}")
        if time.monotonic() - saved > SAVED_EACH:
            _keep(pupils, file, spent, steps, curve)
            saved = time.monotonic()
    _keep(pupils, file, spent, steps, curve)
    for pupil in pupils:
        export(pupil.drafter, folder / name_of(pupil.drafter.shape.window))
    return {
        "steps": steps, "seconds": round(spent, 1), "curve": curve, "texts": len(data),
        "answer_tokens": sum(len(text) - prompt for text, prompt in data),
        "parameters": sum(one.numel() for one in pupils[0].drafter.parameters()),
    }  # fmt: skip


def name_of(window: int | None) -> str:
    """Return what a drafter is called."""
    return "full" if window is None else "window"


def _keep(pupils: list[Pupil], file: Path, spent: float, steps: int, curve: list[list[float]]) -> None:
    part = file.with_suffix(".part")
    states = [(one.drafter.state_dict(), one.optimizer.state_dict()) for one in pupils]
    torch.save({"states": states, "spent": spent, "steps": steps, "curve": curve}, part)
    part.replace(file)


def _restore(pupils: list[Pupil], file: Path, device: str) -> tuple[float, int, list[list[float]]]:
    known = torch.load(file, map_location=device)
    for one, (weights, moments) in zip(pupils, known["states"], strict=True):
        one.drafter.load_state_dict(weights)
        one.optimizer.load_state_dict(moments)
    return known["spent"], known["steps"], known["curve"]
