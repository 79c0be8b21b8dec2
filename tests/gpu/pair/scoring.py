"""Limits for greedy answers: the tokens that they may consist of, and how far from the best a near tie is."""

# The output head has rows for these alone, a row and its negative each, so that drafters of made-up weights
# guess right often enough for both outcomes of a draft to be met.
TOKENS = (100, 2000, 4000, 8000)
ALLOWED = {"auto": 0.25, "fp8": 0.5, "nvfp4": 1.0}
"""Nats that a token's log probability may be below the best one's, by KV cache dtype.

Logits have a standard deviation of about 1, and prefill and decode round differently.
"""
RARE = {"auto": 0.05, "fp8": 0.1, "nvfp4": 0.1}
"""Largest share of tokens that may be below the best one at all: near ties."""
