"""The process behind `memory_budget.py`: boot an engine by a specification, and let it answer one request."""

from __future__ import annotations

from vllm import LLM
from vllm.inputs import TokensPrompt

from pair.parts import greedy, specification


def main() -> None:
    engine = LLM(**specification())
    answer = engine.generate(TokensPrompt(prompt_token_ids=[5] * 32), greedy(4))
    if len(answer[0].outputs[0].token_ids) != 4:
        raise SystemExit("the engine did not answer")


if __name__ == "__main__":
    main()
