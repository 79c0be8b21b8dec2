"""A tiny Qwen3 target and a DFlash drafter for it, generated: configurations and a tokenizer, no weights.

`models` writes them, `tokenizer` makes the vocabulary. Standard library only, so that programs on other
machines can use it from a copy of the sources.
"""

from sparkwright.engine.tiny.models import write_tiny_models

__all__ = ["write_tiny_models"]
