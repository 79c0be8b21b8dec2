"""A trained model whose cache rounds keys and values to a format before attention reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from kv_quality.formats import FORMATS, Format, bfloat16

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Subject"]

Scales = dict[tuple[int, int], float]


class RoundingCache(DynamicCache):
    """A cache that rounds keys (side 0) and values (side 1) before it stores them."""

    def __init__(self, config: Any, format_: Format, scales: Scales) -> None:
        super().__init__(config=config)
        self.format = format_
        self.scales = scales
        self.count = config.num_hidden_layers

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Round and store; return all keys and values of the layer."""
        rounding = [self.format.keys, self.format.values]
        if min(layer_idx, self.count - 1 - layer_idx) < self.format.whole:
            rounding = [bfloat16, bfloat16]
        rounded = [
            one(states, self.scales.get((layer_idx, side), 1.0))
            for side, (one, states) in enumerate(zip(rounding, (key_states, value_states), strict=True))
        ]
        return super().update(*rounded, layer_idx, *args, **kwargs)


class LargestCache(DynamicCache):
    """A cache that keeps the largest magnitude of each layer's keys (side 0) and values (side 1)."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.largest: Scales = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note the magnitudes and store."""
        for side, states in enumerate((key_states, value_states)):
            seen = self.largest.get((layer_idx, side), 0.0)
            self.largest[layer_idx, side] = max(seen, float(states.abs().max()))
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


class Subject:
    """A trained model and its tokenizer.

    Attributes:
        model: in float32.
        tokenizer: of the model.
        largest: largest magnitudes by layer and side, once calibrated.
        first: tokens that every text begins with.
    """

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.largest: Scales = {}
        # Gemma writes nothing sensible without its first token; SmolLM2 was trained without one.
        self.first = [self.tokenizer.bos_token_id] if "gemma" in self.model.config.model_type else []

    @property
    def chats(self) -> bool:
        """Return whether the model has a template for conversations."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of *text* without any special one."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def cache(self, name: str) -> RoundingCache:
        """Return an empty cache of the format *name*."""
        format_ = FORMATS[name]
        scales = {place: size / format_.top for place, size in self.largest.items()} if format_.top else {}
        return RoundingCache(self.model.config, format_, scales)

    def calibrate(self, tokens: Sequence[int]) -> None:
        """Note the largest keys and values of each layer over *tokens*."""
        cache = LargestCache(self.model.config)
        self.model.model(torch.tensor([[*self.first, *tokens]]), past_key_values=cache, use_cache=True)
        self.largest = cache.largest

    def hidden(self, tokens: Sequence[int], name: str) -> torch.Tensor:
        """Return the last hidden states (positions x width) over a cache of the format *name*."""
        ids = torch.tensor([list(tokens)])
        return self.model.model(ids, past_key_values=self.cache(name), use_cache=True).last_hidden_state[0]

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return scores of the next token (positions x vocabulary), whose softmax is its probability."""
        scores: torch.Tensor = self.model.lm_head(hidden)
        return scores

    def greedy(self, prompts: Sequence[Sequence[int]], name: str, count: int) -> list[list[int]]:
        """Return up to *count* greedy tokens after each prompt, up to the end of the answer.

        The prompts are computed as one batch, padded on the left; what is padded is masked.
        """
        width = max(map(len, prompts))
        pad, end = 0, self.model.generation_config.eos_token_id
        ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = self.model.generate(
            ids,
            attention_mask=mask,
            past_key_values=self.cache(name),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=pad,
        )
        ends = set(end if isinstance(end, list) else [end])
        return [cut([int(token) for token in row[width:]], ends) for row in out]

    def chat(self, question: str) -> list[int]:
        """Return the prompt of a conversation's first turn; a plain one if the model has no template."""
        if not self.chats:
            return [*self.first, *self.tokens(f"Question: {question}\nAnswer:")]
        messages = [{"role": "user", "content": question}]
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self.tokens(text)


def cut(tokens: list[int], ends: set[int]) -> list[int]:
    """Return *tokens* up to the first of *ends*, which is kept."""
    for at, token in enumerate(tokens):
        if token in ends:
            return tokens[: at + 1]
    return tokens
