"""Train DFlash drafters on the answers that their target gives greedily, and foresee what is accepted."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from serve_pair import say
from torch import nn
from torch.nn.functional import cross_entropy, linear

from trained.model import BLOCK, Drafter, export, shape_of
from trained.texts import lessons

FADE = 0.8
"""Weight of a drafted place to the one before it."""
SHOWN = 50
"""Steps that a stated loss is the mean of."""
Data = list[tuple[list[int], int]]
"""Texts, and how many tokens of each are its prompt."""


@dataclass(frozen=True)
class Plan:
    """The settings of a training."""

    seconds: float  # of answers and training together
    windows: tuple[int | None, ...] = (None, 256)  # of the drafters, trained side by side
    layers: int = 4
    answer: int = 160
    together: int = 1 << 18  # tokens that are answered at once
    batch: int = 16  # texts of a step
    anchors: int = 48  # blocks of a text in a step
    share: float = 0.3  # of the seconds, for answers
    peak: float = 1e-3
    steps: float = math.inf
    mask: int = 16  # token that stands for a drafted place


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


def answered(target: Target, plan: Plan) -> Data:
    """Let the target answer training prompts, those of about one length together, for its share of time."""
    source, began = lessons(target.tokenizer, seed=1), time.monotonic()
    found: Data = []
    while True:
        some = sorted((next(source) for _ in range(max(4, plan.together // 512))), key=len)
        while some:
            group = [some.pop()]
            while some and (len(group[0]) + plan.answer) * (len(group) + 1) <= plan.together:
                group.append(some.pop())
            replies = greedy(target, group, plan.answer)
            found += [
                ([*one, *reply], len(one))
                for one, reply in zip(group, replies, strict=True)
                if len(reply) > BLOCK
            ]
            spent = time.monotonic() - began
            say(f"answers: {len(found)} after {spent:.0f} s")
            if spent > plan.share * plan.seconds and len(found) >= plan.batch:
                return found


def batch_of(data: Data, plan: Plan, draw: random.Random, device: str) -> tuple[torch.Tensor, ...]:
    """Return a step's padded texts, anchors, confirmed tokens and wanted tokens."""
    some = draw.sample(data, min(plan.batch, len(data)))
    longest = max(len(text) for text, _ in some)
    ids = torch.zeros(len(some), longest, dtype=torch.long)
    anchors = torch.empty(len(some), plan.anchors, dtype=torch.long)
    for row, (text, prompt) in enumerate(some):
        ids[row, : len(text)] = torch.tensor(text)
        anchors[row] = torch.tensor(draw.choices(range(prompt, len(text) - BLOCK + 1), k=plan.anchors))
    wanted = torch.stack([ids.gather(1, anchors + ahead) for ahead in range(1, BLOCK)], dim=-1)
    return tuple(one.to(device) for one in (ids, anchors, ids.gather(1, anchors), wanted))


class Pupil:
    """A drafter in training."""

    def __init__(self, target: Target, plan: Plan, window: int | None) -> None:
        torch.manual_seed(0)
        self.target, self.window = target, window
        drafter = Drafter(shape_of(target.model.config, plan.layers, plan.mask, window))
        drafter.begin_as(target.model)
        self.drafter = drafter.to(target.device)
        self.optimizer = torch.optim.AdamW(
            self.drafter.parameters(), lr=plan.peak, betas=(0.9, 0.95), weight_decay=0.01
        )

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


def train(target: Target, plan: Plan, folder: Path, data: Data | None = None) -> list[list[float]]:
    """Train the drafters, and export them to ``full`` and ``window`` under *folder*; return their losses."""
    data = data or answered(target, plan)
    pupils = [Pupil(target, plan, window) for window in plan.windows]
    limit, draw = (1 - plan.share) * plan.seconds, random.Random(7)
    began, steps = time.monotonic(), 0
    curve: list[list[float]] = []
    losses: list[list[torch.Tensor]] = []
    while (spent := time.monotonic() - began) < limit and steps < plan.steps:
        batch = batch_of(data, plan, draw, target.device)
        states = features(target, batch[0], pupils[0].drafter.shape.features)
        now = rate(plan, max(spent / limit, steps / plan.steps))
        losses.append([one.step(batch, states, now) for one in pupils])
        steps += 1
        if steps % SHOWN == 0:
            curve.append([round(mean(map(float, some)), 3) for some in zip(*losses, strict=True)])
            losses = []
            say(f"step {steps}, {spent:.0f} s: {curve[-1]}")
    for pupil in pupils:
        export(pupil.drafter, folder / ("full" if pupil.window is None else "window"))
    return curve


def walk(tokens: Sequence[int], prompt: int, drafts: Sequence[Sequence[int]]) -> list[int]:
    """Return how many tokens each step of an answer confirms: the right drafts, and one of the target's own.

    The last step, which the answer's end may cut, is left out."""
    steps, at = [], prompt
    while at < len(tokens) - 1:
        right = 0
        for place, draft in enumerate(drafts[at - prompt]):
            if at + 1 + place >= len(tokens) or draft != tokens[at + 1 + place]:
                break
            right += 1
        steps.append(right + 1)
        at += right + 1
    return steps[:-1]


@torch.inference_mode()
def drafts_of(target: Target, drafter: Drafter, tokens: Sequence[int], prompt: int) -> list[list[int]]:
    """Return the drafts from each place of an answer on."""
    ids = torch.tensor(list(tokens), device=target.device)[None]
    context = drafter.store(features(target, ids, drafter.shape.features))
    anchors = torch.arange(prompt, len(tokens) - 1, device=target.device)[None]
    found: Any = drafter.draft(ids[0, anchors[0]][None], anchors, context, target.embedding, target.head)
    return [[int(token) for token in row] for row in found[0].tolist()]


def predicted(
    target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the steps of each answer, as `walk` counts them; prompts without an answer are left out."""
    found = []
    for prompt, answer in zip(prompts, answers, strict=False):
        tokens = [*prompt, *answer]
        drafts = drafts_of(target, drafter, tokens, len(prompt)) if len(answer) > 1 else []
        found.append(walk(tokens, len(prompt), drafts))
    return found
