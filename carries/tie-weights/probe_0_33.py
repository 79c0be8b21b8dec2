"""An output head that ModelOpt leaves unquantized can be tied to the embedding, from vLLM 0.25.1 on.

The layers, the configuration and the checks are those of the first probe, `probe.py`. From 0.25.1 on the
base class of all quantization methods shares the embedding's parameter, which is model loading and so is
the same for both model runners.

Healthy: a head without quantization and one that ModelOpt excludes end up with the embedding's very
parameter, whether it is loaded before they are tied or after that, and logits are computed with it.
Control: an embedding without a plain weight is never taken for one.

The first probe has further controls: heads whose weight is packed, converted or under another name
refuse. They are the carry's own answer and no part of the defect; upstream's default has no such check.
"""

from __future__ import annotations

import probe as first
import torch
from probekit import expect
from torch import nn
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import base_config


def check_loaded_before() -> None:
    """Tie to an embedding that is loaded already: the head has to compute with what it holds."""
    source, output = first.embedding(), first.head(first.nvfp4(excluded=["lm_head"]))
    loaded = torch.randn(first.VOCABULARY, first.HIDDEN, generator=torch.Generator().manual_seed(1))
    source.weight.weight_loader(source.weight, loaded)
    expect(first.can_tie(output, source), "a head that ModelOpt excludes: tie_weights is not implemented")
    hidden = torch.randn(2, first.HIDDEN, generator=torch.Generator().manual_seed(2))
    logits = output.quant_method.apply(output, hidden)[:, : first.VOCABULARY]
    expect(torch.allclose(logits, hidden @ loaded.T), "a loaded embedding: the logits are not its own")


def check_no_weight() -> None:
    """Offer an embedding without a plain weight: an error of any kind is healthy, a head tied to it is not."""
    output = first.head(first.nvfp4(excluded=["lm_head"]))
    try:
        output.tie_weights(nn.Module())
    except (NotImplementedError, AttributeError, TypeError):
        return
    expect(condition=False, message="a head was tied to an embedding that has no weight")


def probe() -> None:
    """Check the control and the plain head first, then the excluded one."""
    with first.single_rank():
        excluded = first.nvfp4(excluded=["lm_head"])
        if type(first.head(excluded).quant_method) is not UnquantizedLinearMethod:
            raise RuntimeError("ModelOpt gives an excluded head another method; this probe is out of date")
        if not hasattr(base_config.QuantizeMethodBase, "tie_weights"):
            raise RuntimeError("methods of quantization do not tie any more; this probe is out of date")
        check_no_weight()
        first.check_tied("a head without quantization", None)
        first.check_tied("a head that ModelOpt excludes", excluded)
        check_loaded_before()
