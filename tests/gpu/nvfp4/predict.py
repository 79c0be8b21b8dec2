"""The process that predicts over one kind of cache: ``python -m nvfp4.predict SPEC``.

Every document's log probabilities are taken twice: at all places of a prompt that is prefilled in chunks, and
in decode along the text, from prompts that the prefix cache has or has not. They are written as arrays.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from vllm import LLM, SamplingParams

from nvfp4.train import VOCABULARY

CHUNK = 512  # tokens of a step


def dense(flat: Any, first: int) -> np.ndarray:
    """Return places x vocabulary out of vLLM's flat log probabilities, from place *first* on."""
    places = range(first, len(flat.start_indices))
    found = np.full((len(places), VOCABULARY), np.nan, dtype=np.float32)
    tokens, values = np.asarray(flat.token_ids), np.asarray(flat.logprobs, dtype=np.float32)
    for row, place in enumerate(places):
        some = slice(flat.start_indices[place], flat.end_indices[place])
        found[row, tokens[some]] = values[some]
    return found


def prompts(documents: list[list[int]], length: int) -> list[dict[str, list[int]]]:
    """Return the first *length* tokens of each document."""
    return [{"prompt_token_ids": document[:length]} for document in documents]


def main() -> None:
    """Predict and write."""
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    began = time.monotonic()
    model = LLM(
        model=spec["model"],
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=0,
        max_model_len=spec["prompt"] + spec["decode"] + 16,
        max_num_seqs=len(spec["documents"]),
        max_num_batched_tokens=CHUNK,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        kv_cache_dtype=spec["cache"],
        attention_backend=spec["backend"],
        gpu_memory_utilization=0.2,
        kv_cache_memory_bytes=2 << 30,
        enforce_eager=True,
        async_scheduling=False,
        max_logprobs=VOCABULARY,
        enable_flashinfer_autotune=False,
        logits_processors=["nvfp4.forced:Forced"],
    )
    booted = time.monotonic() - began
    documents, length = spec["documents"], spec["prompt"]
    whole = SamplingParams(
        max_tokens=1, temperature=0.0, prompt_logprobs=VOCABULARY, detokenize=False, flat_logprobs=True
    )
    outputs = model.generate(prompts(documents, length), whole, use_tqdm=False)
    arrays = {"prompt": np.stack([dense(output.prompt_logprobs, 1) for output in outputs])}
    assert model.reset_prefix_cache()
    for turn in ("cold", "warm"):
        wanted = [
            SamplingParams(
                max_tokens=spec["decode"],
                temperature=0.0,
                ignore_eos=True,
                logprobs=VOCABULARY,
                detokenize=False,
                flat_logprobs=True,
                extra_args={"forced": document[length : length + spec["decode"]]},
            )
            for document in documents
        ]
        outputs = model.generate(prompts(documents, length), wanted, use_tqdm=False)
        arrays[turn] = np.stack([dense(output.outputs[0].logprobs, 0) for output in outputs])
        arrays[f"{turn}_tokens"] = np.asarray([list(output.outputs[0].token_ids) for output in outputs])
        arrays[f"{turn}_cached"] = np.asarray([output.num_cached_tokens or 0 for output in outputs])
    arrays["seconds"] = np.asarray([booted, time.monotonic() - began])
    np.savez(spec["out"], **arrays)


if __name__ == "__main__":
    main()
