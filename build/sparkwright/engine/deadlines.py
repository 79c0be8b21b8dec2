"""Timeouts of requests."""

from __future__ import annotations

from sparkwright.base.config import Model

SLOWEST_S = 3.0
"""Seconds a token that one request may take at the most; servers for GB10 take 0.2 at 64 requests."""


class Deadlines(Model, frozen=True):
    """Timeouts of requests, in seconds of the server's clock.

    Attributes:
        first_token_s: from the request to the first token, queueing included.
        stall_s: between two chunks.
        canary_s: for one short request on a server that has nothing else to do.
        quiesce_s: until nothing runs and nothing waits after a cell.
    """

    connect_s: float = 10.0
    first_token_s: float = 300.0
    stall_s: float = 60.0
    canary_s: float = 60.0
    quiesce_s: float = 120.0

    def whole_s(self, max_tokens: int) -> float:
        """Return the timeout of an answer of *max_tokens*: first token, one stall, `SLOWEST_S` a token."""
        return self.first_token_s + self.stall_s + SLOWEST_S * max_tokens
