#!/usr/bin/env python3
"""Serve a model with `sparkwright serve --peer` on two cards as on two machines, over NCCL's sockets.

The machines are network namespaces of this one, each with a card, joined by two links; the second has an
sshd, to which the environment and the model are copied. NCCL may use neither NVLink nor shared memory. Greedy
answers of both machines together are those of one card alone up to near ties. Needs root, iproute2, OpenSSH,
two CUDA cards, sparkwright with its test requirements, and an interpreter with an installed vLLM::

    python3 tests/gpu/two_hosts.py --python /tmp/vllm/bin/python --out /tmp/two
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from fleet.shapes import dense
from fleet.tensors import write_checkpoint
from pair.scoring import ALLOWED
from serve_kit import Serving
from serve_pair import parser_of, say
from two_hosts_kit import FAST, TwoHosts, two_hosts

from sparkwright.engine.tiny import VOCABULARY, tokenizer, tokenizer_config

# Triton's attention: each new home would compile the PTX of FlashAttention 2 for minutes.
RECIPE = """\
format = 1
name = "tiny"
title = "A tiny model"
model = "{model}"
nodes = {nodes}

[flags]
tensor-parallel-size = {nodes}
max-model-len = 2048
max-num-seqs = 8
attention-backend = "TRITON_ATTN"
enforce-eager = true
enable-flashinfer-autotune = false
gpu-memory-utilization = 0.2

[environment]
NCCL_DEBUG = "INFO"
NCCL_P2P_DISABLE = "1"
NCCL_SHM_DISABLE = "1"
NCCL_NVLS_ENABLE = "0"
TORCH_SYMM_MEM_DISABLE_MULTICAST = "1"
VLLM_ALLREDUCE_USE_SYMM_MEM = "0"
VLLM_USE_FLASHINFER_SAMPLER = "0"
"""
ASK = """\
import json, sys, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=300).read().decode())
"""
REQUESTS, TOKENS = 8, 32


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--python", type=Path, required=True, help="interpreter of an environment with vLLM")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder, "hosts"), card="1") as hosts:
        hosts.python = arguments.python
        model = write_checkpoint(Path(folder, "model"), dense())
        (model / "tokenizer.json").write_text(json.dumps(tokenizer(VOCABULARY)))
        (model / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(2048)))
        for nodes in (1, 2):
            text = RECIPE.format(model=model, nodes=nodes)
            Path(folder, f"tiny-{nodes}.toml").write_text(text)
        alone = answers(hosts, Path(folder, "tiny-1.toml"), arguments.out, peer=False)
        together = answers(hosts, Path(folder, "tiny-2.toml"), arguments.out, peer=True)
    result = {"alone": alone["times"], "together": together["times"], **together["seen"]}
    result |= compared(alone["choices"], together["choices"])
    (arguments.out / "two_hosts.json").write_text(json.dumps(result, indent=1))
    say(json.dumps(result, indent=1))
    sockets = any("NET/Socket" in line and FAST in line for line in result["nccl"])
    return 0 if sockets and not result["wrong"] and result["tokens"] == REQUESTS * TOKENS else 1


def answers(hosts: TwoHosts, recipe: Path, out: Path, *, peer: bool) -> dict[str, Any]:
    """Serve *recipe*, on both machines with *peer*; return answers to fixed prompts, and what was seen."""
    began = time.monotonic()
    this: Serving = hosts.serve(recipe, peer=peer, CUDA_VISIBLE_DEVICES="0")
    this.patience_s = 400.0
    try:
        ready = this.wait_for("serve.ready")
        up = time.monotonic() - began
        source = random.Random(1)
        body = {
            "model": ready["model"], "max_tokens": TOKENS, "temperature": 0, "logprobs": 2,
            "ignore_eos": True, "return_token_ids": True,
            "prompt": [[source.randrange(300, VOCABULARY - 1) for _ in range(40)] for _ in range(REQUESTS)],
        }  # fmt: skip
        asked = time.monotonic()
        words = hosts.inside(0, sys.executable, "-c", ASK, f"{ready['url']}/completions", json.dumps(body))
        reply = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout
        took = time.monotonic() - asked
        logs = Path(ready["log"]).parent
        seen = {"nccl": [
            line[-160:] for log in logs.glob("*.log") for line in log.read_text().splitlines()
            if "NCCL INFO" in line and ("Using network" in line or "via NET" in line or "NET/Socket" in line)
        ][:12]} if peer else {}  # fmt: skip
        this.child.send_signal(signal.SIGINT)
        status, errors = this.end()
        if status:
            raise RuntimeError(errors)
        if peer:
            hosts.wait_until_gone(30)
        return {
            "choices": json.loads(reply)["choices"], "seen": seen,
            "times": {"up_s": round(up, 1), "answers_s": round(took, 2)},
        }  # fmt: skip
    finally:
        this.kill()
        for number, log in enumerate(sorted((hosts.folder / "here").rglob("*.log"))):
            shutil.copy(log, out / f"{recipe.stem}-{number}-{log.name}")


def compared(alone: list[dict[str, Any]], together: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare greedy answers up to each one's first difference, which has to be a near tie of one card's."""
    tokens, ties, wrong = 0, 0, []
    for number, (first, second) in enumerate(zip(alone, together, strict=True)):
        tokens += len(second["token_ids"])
        for at, (one, other) in enumerate(zip(first["token_ids"], second["token_ids"], strict=True)):
            if one != other:
                best, next_best = sorted(first["logprobs"]["top_logprobs"][at].values(), reverse=True)[:2]
                if best - next_best > ALLOWED["auto"]:
                    wrong.append(f"answer {number}, token {at}: {other}, not {one} by {best - next_best:.2f}")
                ties += 1
                break
    return {"tokens": tokens, "near_ties": ties - len(wrong), "wrong": wrong}


if __name__ == "__main__":
    sys.exit(main())
