"""The process behind `memory_budget.py`: boot an engine by a specification, and let it answer one request."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def main() -> None:
    engine = LLM(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    prompt = TokensPrompt(prompt_token_ids=[5] * 32)
    answer = engine.generate(prompt, SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False))
    if len(answer[0].outputs[0].token_ids) != 4:
        raise SystemExit("the engine did not answer")


if __name__ == "__main__":
    main()
