"""Measure how far a model's predictions move when its KV cache is FP8 or NVFP4 instead of 16 bits.

The model is trained here (`train`), the text is Python source that it has not seen. Divergences are taken
place by place over the whole vocabulary, against the same engine with a 16-bit cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from nvfp4.record import Recorder
from nvfp4.serve import environment, processes
from nvfp4.train import LENGTH, train

__all__ = ["divergence", "run"]

DOCUMENTS = 16
PROMPT, DECODE = LENGTH - 320, 256
CACHES = ("auto", "fp8", "nvfp4")
SECONDS = 150
PERPLEXITY = 1.10  # an NVFP4 cache's, at most, against 16 bits


def divergence(ours: np.ndarray, plain: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return what distinguishes two predictions (… x vocabulary, log probabilities) of *targets* (…).

    Kullback-Leibler divergence of *ours* from *plain* in nats, share of places where the likeliest token is
    the same, and perplexities.
    """
    ours, plain = ours.astype(np.float64), plain.astype(np.float64)
    weight = np.exp(plain)
    difference = np.where(weight > 0, plain - ours, 0.0)
    kl = (weight * difference).sum(-1)
    chosen = [np.take_along_axis(one, targets[..., None], -1) for one in (ours, plain)]
    return {
        "kl": float(kl.mean()),
        "kl_99": float(np.quantile(kl, 0.99)),
        "same_first": float((ours.argmax(-1) == plain.argmax(-1)).mean()),
        "perplexity": float(np.exp(-chosen[0].mean())),
        "plain_perplexity": float(np.exp(-chosen[1].mean())),
        "places": int(kl.size),
    }


def run(spec: dict[str, Any], record: Recorder) -> None:
    """Train, predict over each cache, compare."""
    with tempfile.TemporaryDirectory(prefix="nvfp4-quality-") as folder:
        scratch = Path(folder)
        trained = train(scratch / "model", spec["seed"], spec["train_seconds"], spec["device"])
        held = trained.pop("held")
        record.write("trained", **trained)
        record.check("it has learned", trained["loss"] < 0.8 * trained["first_loss"], str(trained))
        documents = [list(text[: PROMPT + DECODE]) for text in held[:DOCUMENTS]]
        if spec["device"] == "cpu":
            record.write("fact", name="quality", value="the engines need a card")
            return
        record.check("documents", len(documents) == DOCUMENTS, str(len(documents)))
        began = time.monotonic()
        commands = {}
        for cache in CACHES:
            given = {
                "model": str(scratch / "model"),
                "cache": cache,
                "backend": "TRITON_ATTN",
                "documents": documents,
                "prompt": PROMPT,
                "decode": DECODE,
                "out": str(scratch / f"{cache}.npz"),
            }
            file = scratch / f"{cache}.json"
            file.write_text(json.dumps(given), encoding="utf-8")
            commands[f"quality-{cache}"] = (
                [sys.executable, "-m", "nvfp4.predict", str(file)],
                environment("v1", scratch),
            )
        for name, status in processes(commands, Path(spec["out"]), len(CACHES), SECONDS).items():
            record.check(f"{name}: came to its end", status == 0, f"exit status {status}")
        record.write("fact", name="seconds for the engines", value=round(time.monotonic() - began, 1))
        found = {
            cache: dict(np.load(scratch / f"{cache}.npz"))
            for cache in CACHES
            if (scratch / f"{cache}.npz").exists()
        }
    compare(found, np.asarray(documents), record)
    if "auto" in found:
        plain = found["auto"]["prompt"]
        targets = np.asarray(documents)[:, 1:PROMPT]
        loss = -float(np.take_along_axis(plain, targets[..., None], -1).mean())
        detail = f"loss of unseen text {loss:.3f}, at the end of training {trained['loss']:.3f}"
        record.check("vLLM computes the model that was trained", loss < trained["loss"] + 1, detail)


def compare(found: dict[str, dict[str, np.ndarray]], documents: np.ndarray, record: Recorder) -> None:
    """All caches against 16 bits, prefill and decode, and each against itself with a warm prefix cache."""
    targets = {"prompt": documents[:, 1:PROMPT], "cold": documents[:, PROMPT:], "warm": documents[:, PROMPT:]}
    for cache, arrays in found.items():
        for turn in ("cold", "warm"):
            same = np.array_equal(arrays[f"{turn}_tokens"], targets[turn])
            record.check(f"{cache}, {turn}: decoded along the text", same)
        cached = int(arrays["warm_cached"].min())
        record.check(
            f"{cache}: prefixes were cached", cached >= PROMPT - 32, f"at least {cached} of {PROMPT}"
        )
        again = divergence(arrays["warm"], arrays["cold"], targets["cold"])
        record.write("quality", cache=cache, against="itself, prefix not cached", step="decode", **again)
        record.check(
            f"{cache}: the same from cached prefixes", again["kl"] < 2e-3, f"divergence {again['kl']:.1e}"
        )
        for part in ("prompt", "cold"):
            if cache == "auto" or "auto" not in found:
                continue
            moved = divergence(arrays[part], found["auto"][part], targets[part])
            name = "prefill in chunks" if part == "prompt" else "decode"
            record.write("quality", cache=cache, against="16 bits", step=name, **moved)
            if cache == "nvfp4":
                ratio = moved["perplexity"] / moved["plain_perplexity"]
                detail = f"{moved['perplexity']:.4f} against {moved['plain_perplexity']:.4f}"
                record.check(f"perplexity of {name}", ratio < PERPLEXITY, detail)
