"""The process behind `lossless_pair.py`: one engine, greedy requests at each level, a JSON line for each.

Started as ``python -m pair.lossless_engine SPEC``. The engine core runs in this process
(``VLLM_ENABLE_V1_MULTIPROCESSING=0``). An engine without speculation also scores the tokens of others.
"""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path
from typing import Any

import torch
import vllm
from fleet.engine import counters
from vllm import LLM
from vllm.inputs import TokensPrompt

from pair.models import pair_arguments
from pair.parts import greedy, leave, models_of, specification, weights_of, writer
from pair.scoring import MAX_MODEL_LEN, TOKENS, prompts


def arguments(spec: dict[str, Any]) -> dict[str, Any]:
    found = pair_arguments(spec, max_model_len=MAX_MODEL_LEN)
    kv = spec["kv"]
    if kv != "auto":
        found["kv_cache_dtype"] = kv
    if spec.get("attention"):
        found["attention_backend"] = spec["attention"]
    speculative = found.pop("speculative_config")
    if spec["drafter_kind"] == "none":
        return found
    if spec["drafter_kind"] != "planted":  # of synthetic acceptance, which looks at no token
        del speculative["rejection_sample_method"], speculative["synthetic_acceptance_length"]
    if spec.get("draft_kv"):
        speculative["kv_cache_dtype"] = spec["draft_kv"]
    if spec.get("draft_attention"):
        speculative["attention_backend"] = spec["draft_attention"]
    return found | {"speculative_config": speculative}


def fill(worker: Any) -> None:
    """Give every engine the same weights with activations of ordinary size."""
    models = models_of(worker.model_runner)
    with torch.inference_mode():
        for name, weight in weights_of(models):
            _fill(name, weight)
        if "drafter" in models:
            models["drafter"].model._build_fused_kv_buffers()  # copies of the weights
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _fill(name: str, tensor: torch.Tensor) -> None:
    if tensor.dim() == 1:
        tensor.fill_(0.0 if name.endswith("bias") else 1.5 if "q_norm" in name or "k_norm" in name else 1.0)
        return
    source = torch.Generator(device=tensor.device).manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(tensor.shape, generator=source, device=tensor.device, dtype=torch.float32)
    values *= 0.05 if "embed" in name else tensor.shape[-1] ** -0.5
    if "lm_head" in name:
        rows = values[: len(TOKENS) // 2].clone()
        values.zero_()
        for index, token in enumerate(TOKENS):
            values[token] = rows[index // 2] * (1 if index % 2 else -1)
    tensor.copy_(values)


def generated(engine: LLM, level: int) -> list[list[int]]:
    """Return the tokens of the level's requests, sent together."""
    asked = prompts(level)
    outputs = engine.generate(
        [TokensPrompt(prompt_token_ids=ids) for ids, _ in asked],
        [greedy(length) for _, length in asked],
        use_tqdm=False,
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def gaps(engine: LLM, level: int, told: list[list[int]]) -> list[list[float]]:
    """Return for each token of *told* how far its log probability is below the best one's.

    Each request is computed as one prompt, without its last token, which cannot be followed by another.
    """
    wanted = greedy(1, prompt_logprobs=1)
    asked = prompts(level)
    texts = [[*ids, *tokens][: MAX_MODEL_LEN - 1] for (ids, _), tokens in zip(asked, told, strict=True)]
    outputs = engine.generate([TokensPrompt(prompt_token_ids=text) for text in texts], wanted, use_tqdm=False)
    found = []
    for (ids, _), text, output in zip(asked, texts, outputs, strict=True):
        row = []
        for place in range(len(ids), len(text)):
            given = output.prompt_logprobs[place]
            best = max(one.logprob for one in given.values())
            row.append(best - given[text[place]].logprob)
        found.append(row)
    return found


def main(spec: dict[str, Any]) -> None:
    """Boot, generate each level, and, without speculation, score what the cases of ``score`` generated."""
    write, started = writer(spec), time.monotonic()
    engine = LLM(
        **arguments(spec),
        max_num_seqs=65,
        max_num_batched_tokens=4096,
        enable_prefix_caching=False,
        disable_log_stats=False,
    )
    write("boot", vllm=vllm.__version__, torch=torch.__version__, seconds=time.monotonic() - started)
    engine.collective_rpc(fill)
    folder = Path(spec["folder"])
    own: dict[int, list[list[int]]] = {}
    for level in spec["levels"]:
        before, began = counters(engine), time.monotonic()
        own[level] = generated(engine, level)
        seconds = round(time.monotonic() - began, 2)
        after = counters(engine)
        write(
            "level", c=level, seconds=seconds, tokens=sum(map(len, own[level])),
            drafts=after.get("drafted", 0) - before.get("drafted", 0),
            accepted=after.get("accepted", 0) - before.get("accepted", 0),
        )  # fmt: skip
    part = folder / f"{spec['run']}.part"
    part.write_text(json.dumps(own), encoding="utf-8")
    part.rename(part.with_suffix(".json"))  # another engine waits for the whole file
    for name in spec["score"]:
        file = folder / f"{name}.json"
        deadline = time.monotonic() + spec["wait"]
        while not file.is_file() and not (folder / f"{name}.ended").is_file() and time.monotonic() < deadline:
            time.sleep(0.2)
        if not file.is_file():
            continue
        told = json.loads(file.read_text(encoding="utf-8"))
        for level in spec["levels"]:
            tokens = told[str(level)]
            write("score", of=name, c=level, gaps=gaps(engine, level, tokens),
                  same=[one == other for one, other in zip(tokens, own[level], strict=True)])  # fmt: skip
    write("end")
    leave()


if __name__ == "__main__":
    main(specification())
