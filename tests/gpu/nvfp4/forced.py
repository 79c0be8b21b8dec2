"""Decode along a given text: whatever the model would say, the next token is the text's."""

from __future__ import annotations

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

__all__ = ["Forced"]


class Forced(AdapterLogitsProcessor):
    """Leaves one token possible at each step, that of ``extra_args["forced"]``.

    Raw log probabilities are taken before, and are the model's own.
    """

    def is_argmax_invariant(self) -> bool:
        """It decides what is taken."""
        return False

    def new_req_logits_processor(self, params: SamplingParams):
        """Return the processor of one request's logits; `None` for a request without a text."""
        text = (params.extra_args or {}).get("forced")
        if text is None:
            return None

        def force(output: list[int], logits: torch.Tensor) -> torch.Tensor:
            token = text[min(len(output), len(text) - 1)]
            logits.fill_(float("-inf"))
            logits[token] = 0.0
            return logits

        return force
