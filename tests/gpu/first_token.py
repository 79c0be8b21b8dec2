#!/usr/bin/env python3
"""Measure the time from an engine's start to its first sampled token, with FlashInfer's kernels or without.

Runs one engine after another in processes of their own, each with an empty cache of FlashInfer's, and counts
the compilers that ran and the files that FlashInfer wrote. Needs a CUDA GPU, an installed vLLM, nvcc, ninja.

    first_token.py --companion flashinfer_jit_cache-….whl --out OUT
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from pair.models import write_models
from pair.sessions import session
from serve_pair import parser_of, say

COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "ninja", "cc1plus", "nvlink"})
POLL_S = 0.02
# Each arm: name, companion, sampler of FlashInfer. The first one only fills the caches of others: files in
# memory, Triton's kernels.
ARMS = {"warm-up": (False, False), "with": (True, True), "without": (False, True), "with-again": (True, True)}


def main() -> int:
    """Run the arms; the exit status is 0 if the arms with a companion compiled nothing of FlashInfer's."""
    parser = parser_of(__doc__)
    parser.add_argument("--companion", type=Path, required=True, help="the wheel")
    parser.add_argument("--limit", type=float, default=320.0, help="seconds for all arms together")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    site = Path(tempfile.mkdtemp(prefix="companion-"))
    with zipfile.ZipFile(arguments.companion) as wheel:
        wheel.extractall(site)
    models = Path(tempfile.mkdtemp(prefix="models-"))
    write_models(models)
    began, results = time.monotonic(), []
    for name, (companion, sampler) in ARMS.items():
        left = arguments.limit - (time.monotonic() - began)
        if left < 20:
            continue
        arm = (name, site if companion else None, sampler)
        results.append(run_arm(arm, models, arguments.out, left))
        say(json.dumps(results[-1]))
        (arguments.out / "first_token.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    kept = [one for one in results if one["companion"]]
    return 0 if kept and all(one["ok"] and not one["modules"] for one in kept) else 1


def run_arm(arm: tuple[str, Path | None, bool], models: Path, out: Path, limit: float) -> dict[str, Any]:
    """Return times, compilers and new files of an engine: name, unpacked companion, if FlashInfer samples."""
    name, site, sampler = arm
    cache = Path(tempfile.mkdtemp(prefix=f"flashinfer-{name}-"))
    environment = {
        **os.environ,
        "FLASHINFER_WORKSPACE_BASE": str(cache),
        "VLLM_USE_FLASHINFER_SAMPLER": "1" if sampler else "0",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if site is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    spec = {"model": str(models / "target"), "result": str(cache / "result.json")}
    words = [sys.executable, __file__, "--engine", json.dumps(spec)]
    began = time.monotonic()
    seen: dict[int, str] = {}
    with session(words, out / f"{name}.log", environment) as child:
        while child.poll() is None and time.monotonic() - began < limit:
            seen.update(compilers(child.pid))
            time.sleep(POLL_S)
    status = child.kill().status
    took = time.monotonic() - began
    answer = Path(spec["result"])
    times = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
    answer.unlink(missing_ok=True)
    files = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    shutil.rmtree(cache, ignore_errors=True)
    return {
        "arm": name, "companion": site is not None, "sampler": sampler,
        "ok": status == 0 and bool(times), "status": status, "seconds": round(took, 2), **times,
        "compilers": {one: list(seen.values()).count(one) for one in sorted(set(seen.values()))},
        "modules": sorted({Path(file).stem for file in files if file.endswith(".so")}),
        "new_files": len(files),
    }  # fmt: skip


def compilers(session: int) -> dict[int, str]:
    """Return the compilers that run in that session now, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        if name in COMPILERS and int(rest.split()[3]) == session:
            found[int(entry.name)] = name
    return found


def engine(spec: dict[str, Any]) -> None:
    """Start an engine, sample one token by top-k and top-p, then a few more; write the times."""
    began = time.monotonic()
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    imported = time.monotonic()
    llm = LLM(
        model=spec["model"], skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", seed=0,
        max_model_len=2048, max_num_seqs=8, gpu_memory_utilization=0.3, enforce_eager=True,
        enable_flashinfer_autotune=False,
    )  # fmt: skip
    started = time.monotonic()
    prompt = TokensPrompt(prompt_token_ids=list(range(3, 51)))
    waits, tokens = [], []
    for top_k, top_p in ((20, 0.9), (20, 0.9), (-1, 0.9), (20, 1.0)):
        before = time.monotonic()
        params = SamplingParams(
            temperature=1.0, top_k=top_k, top_p=top_p, max_tokens=1, ignore_eos=True, detokenize=False
        )
        outputs = llm.generate([prompt], params, use_tqdm=False)
        waits.append(round(time.monotonic() - before, 4))
        tokens.append(list(outputs[0].outputs[0].token_ids))
    times = {
        "import_s": round(imported - began, 2),
        "engine_s": round(started - imported, 2),
        "first_token_s": waits[0],
        "later_s": waits[1:],
        "start_to_first_token_s": round(started - imported + waits[0], 2),
        "tokens": tokens,
    }
    Path(spec["result"]).write_text(json.dumps(times), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        engine(json.loads(sys.argv[2]))
    else:
        sys.exit(main())
