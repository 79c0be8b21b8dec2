"""Does a request of a gated delta net go on from its own state, by vLLM 0.33.0's builder and model runner V2?

The batches are those of the first probe. V1 of 0.33.0 still reads rows of requests that are gone in a dummy
run, and no recipe reaches it.
"""

from __future__ import annotations

from batches import check_batches
from vllm.v1.worker import gpu_model_runner  # noqa: F401 - see above


def probe() -> None:
    """Check the builder and V2."""
    check_batches()
