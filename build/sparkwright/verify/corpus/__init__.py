"""The prompts: this project's own by category, and long documents generated from a seed.

Read `collection` first; the prompts are in the TOML files beside it. Nothing is downloaded.
"""

from __future__ import annotations

from sparkwright.verify.corpus.collection import (
    CATEGORIES,
    FACTS,
    WORDS_PER_TOKEN,
    Corpus,
    holds,
    load_corpus,
)

__all__ = ["CATEGORIES", "FACTS", "WORDS_PER_TOKEN", "Corpus", "holds", "load_corpus"]
