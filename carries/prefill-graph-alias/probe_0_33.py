"""Does model runner V2, the default of vLLM 0.33.0, replay decode graphs for decodes only?

The steps are those of the first probe. V2 says in `gather_batch_req_state` how many tokens each decode has,
or that the step is none of decodes, and has decode graphs for such a number only.
"""

from __future__ import annotations

from shapes import Step, check, scheduled, states
from vllm.v1.worker import gpu_model_runner  # noqa: F401 - V1 still goes by shape, and no recipe reaches it
from vllm.v1.worker.gpu.model_runner import GPUModelRunner


def replays(step: Step) -> bool:
    """Whether *step* is one of decodes of 1 + K tokens."""
    made = GPUModelRunner.__new__(GPUModelRunner)
    made.__dict__.update(
        decode_query_len=1 + step.drafts,
        use_pp=False,
        adaptive_verification=None,
        pcp_manager=None,
        req_states=states(step),
    )
    _, count = made.gather_batch_req_state(scheduled(step), dummy_run=False)
    return count == 1 + step.drafts


def probe() -> None:
    """Check every step."""
    check("V2", replays)
