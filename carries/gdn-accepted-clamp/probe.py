"""Does a wrong count of accepted tokens leave a request with a state of its own, in vLLM 0.24.0?

Upstream's kernels of the gated delta net run in Triton's interpreter. Healthy: a count of zero or less
acts as one, a count above 1 + K as 1 + K. Controls, true of every tree: counts from 1 to 1 + K choose the
state that they name.
"""

from __future__ import annotations

from counting import check_all, gated, gating
from vllm.model_executor.layers.fla.ops import fused_recurrent
from vllm.model_executor.layers.fla.ops.fused_sigmoid_gating import fused_sigmoid_gating_delta_rule_update
from vllm.model_executor.layers.fla.ops.kda import fused_recurrent_kda_fwd
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update


def probe() -> None:
    """Check each kernel that takes accepted counts."""
    kernels = {
        "fused_recurrent": gated(fused_recurrent.fused_recurrent_gated_delta_rule),
        "fused_recurrent by kda": gated(fused_recurrent_kda_fwd, per_channel=True),
        "fused_sigmoid_gating": gating(fused_sigmoid_gating_delta_rule_update),
    }
    check_all(kernels, causal_conv1d_update, modules=[fused_recurrent])
