"""An output head that ModelOpt leaves unquantized can be tied to the embedding.

The probe builds the layers of a model with tied embeddings, `VocabParallelEmbedding` and
`ParallelLMHead`, from a real ModelOpt configuration and ties them as the models do. Which
quantization method each layer gets is upstream's decision. One rank is assumed in place of a
process group, and the GPU kernel of the quantized head is never built.

Healthy: the head excluded from quantization ends up with the embedding's very parameter, so what is
loaded into the embedding is what the head multiplies with.
Controls, true of every tree: a head without any quantization can be tied, and a head that stores
its weight in another form (packed, converted or under another name) refuses.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest import mock

import torch
from probekit import expect
from torch import nn
from vllm.model_executor import parameter
from vllm.model_executor.layers import vocab_parallel_embedding
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import modelopt
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

VOCABULARY = 100  # padded by upstream to a multiple of 64
HIDDEN = 32


@contextmanager
def single_rank() -> Iterator[None]:
    """Answer for the process group that is not there, and for the kernel a GPU would choose."""
    group = {"get_tensor_model_parallel_rank": 0, "get_tensor_model_parallel_world_size": 1}
    kernel = mock.Mock()
    kernel.input_quant_key.return_value = None
    with ExitStack() as stack:
        for module in (parameter, vocab_parallel_embedding):
            for name, answer in group.items():
                stack.enter_context(mock.patch.object(module, name, return_value=answer))
        stack.enter_context(mock.patch.object(modelopt, "init_nvfp4_linear_kernel", return_value=kernel))
        yield


def nvfp4(*, excluded: list[str]) -> QuantizationConfig:
    """Return what upstream makes of an NVFP4 checkpoint that leaves *excluded* unquantized."""
    quantization = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": excluded,
    }
    return modelopt.ModelOptNvFp4Config.from_config({"quantization": quantization})


def embedding(config: QuantizationConfig | None = None) -> VocabParallelEmbedding:
    """Build the input embedding of a model."""
    return VocabParallelEmbedding(VOCABULARY, HIDDEN, quant_config=config, prefix="model.embed_tokens")


def head(config: QuantizationConfig | None = None) -> ParallelLMHead:
    """Build the output head of a model."""
    return ParallelLMHead(VOCABULARY, HIDDEN, quant_config=config, prefix="lm_head")


def can_tie(output: ParallelLMHead, source: nn.Module) -> bool:
    """Tie *output* to *source* and return whether upstream has an implementation for it."""
    try:
        tied = output.tie_weights(source)
    except NotImplementedError:
        return False
    # The models assign the result to `self.lm_head`, so it must be the head itself.
    expect(tied is output, "tie_weights does not return the head that it tied")
    return True


def check_tied(what: str, config: QuantizationConfig | None) -> None:
    """Tie before loading, as the models do, then load the embedding and compute logits."""
    source, output = embedding(config), head(config)
    expect(can_tie(output, source), f"{what}: tie_weights is not implemented")
    expect(output.weight is source.weight, f"{what}: the head does not hold the embedding's parameter")

    random = torch.Generator().manual_seed(0)
    loaded = torch.randn(VOCABULARY, HIDDEN, generator=random)
    source.weight.weight_loader(source.weight, loaded)
    hidden = torch.randn(3, HIDDEN, generator=random)
    logits = output.quant_method.apply(output, hidden)[:, :VOCABULARY]
    expect(torch.allclose(logits, hidden @ loaded.T), f"{what}: the logits are not the embedding's")


def check_refused(what: str, output: ParallelLMHead, source: nn.Module) -> None:
    """Sharing would load and compute garbage here, so an error is the healthy answer."""
    expect(not can_tie(output, source), f"{what}: tied to a weight that it cannot compute with")


def with_weight(**form: nn.Parameter) -> ParallelLMHead:
    """Build a head of the excluded kind whose weight is kept in *form* instead."""
    output = head(nvfp4(excluded=["lm_head"]))
    del output.weight
    for name, value in form.items():
        output.register_parameter(name, value)
    return output


def stored(width: int, dtype: torch.dtype) -> nn.Parameter:
    """Return an empty weight for the padded vocabulary."""
    return nn.Parameter(torch.empty(head().num_embeddings_padded, width, dtype=dtype), requires_grad=False)


def probe() -> None:
    """Check each way in which a head may meet an embedding."""
    with single_rank():
        excluded = nvfp4(excluded=["lm_head"])
        if type(head(excluded).quant_method) is not UnquantizedLinearMethod:
            raise RuntimeError("ModelOpt gives an excluded head another method; this probe is out of date")

        check_tied("a head without quantization", None)
        source = embedding()
        check_refused("a head in NVFP4", head(nvfp4(excluded=[])), source)
        packed, converted = stored(HIDDEN // 2, torch.float32), stored(HIDDEN, torch.float8_e4m3fn)
        check_refused("a head of another width", with_weight(weight=packed), source)
        check_refused("a head of another type", with_weight(weight=converted), source)
        check_refused("a head under another name", with_weight(qweight=stored(HIDDEN, torch.float32)), source)
        check_refused("an embedding under another name", head(excluded), nn.Module())
        check_tied("a head that ModelOpt excludes", excluded)
