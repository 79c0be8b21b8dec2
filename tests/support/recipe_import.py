"""What tests of `recipe import` say of a text: its flags, and the remarks on it."""

from __future__ import annotations

from sparkwright.recipes.imported import import_recipe

DRAFTS = '{"method": "dflash", "model": "org/drafter", "num_speculative_tokens": 15}'
SERVE = f"vllm serve org/Model-FP8 --max-model-len 65536 --speculative-config '{DRAFTS}'"
CONTAINER = "docker run --rm -it --gpus all -v /data/model:/models/m -e FIRST=1 vllm/vllm-openai:v0.30 {}"
COMPOSE = f"""
services:
  cache: {{image: redis}}
  chat:
    image: vllm/vllm-openai:v0.30
    environment: [FIRST=1, HF_TOKEN=secret]
    command: ["org/Model-FP8", "--max-model-len", "65536", "--speculative-config", '{DRAFTS}']
"""
TEMPLATE = f"""
recipe_version: "1"
name: Model FP8
model: org/Model-FP8
container: vllm-node
mods: [mods/fix]
defaults: {{port: 8000, max_model_len: 65536}}
env: {{FIRST: 1}}
command: |
  vllm serve org/Model-FP8 --port {{port}} \\
    --max-model-len {{max_model_len}} \\
    --speculative-config '{DRAFTS.replace("{", "{{").replace("}", "}}")}'
"""
SCRIPT = f"""#!/bin/bash
pip install -U something
export FIRST=1
MODEL=org/Model-FP8
docker stop x > /dev/null 2>&1 && sleep 1
exec vllm serve $MODEL \\
  --max-model-len=${{LENGTH:-65536}} -sc '{DRAFTS}' 2>&1 | tee log  # what was said
"""


def levels(text: str) -> set[tuple[str, str]]:
    """Return level and subject of each remark."""
    return {(one.level, one.what) for one in import_recipe(text)[1]}


def flags(text: str) -> dict[str, object]:
    return import_recipe(f"vllm serve org/model {text}")[0].flags
