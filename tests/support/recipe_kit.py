"""Recipes in words, as rows of a table name them."""

from typing import Any

from sparkwright.recipes.recipe import Recipe
from sparkwright.serve.settings import value_of

DFLASH = {"method": "dflash", "num_speculative_tokens": 7}
WORDS: dict[str, dict[str, Any]] = {
    "dflash": {"speculative": DFLASH},
    "mtp": {"speculative": {"method": "mtp", "num_speculative_tokens": 3}},
    "ngram": {"speculative": {"method": "ngram", "num_speculative_tokens": 3}},
    "v1": {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "0"}},
    "v2": {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"}},
    **{trait: {"traits": (trait,)} for trait in ("hybrid", "mla", "tied-embeddings")},
}


def made(**changes: Any) -> Recipe:
    """Return a recipe for a GB10."""
    fields = {"format": 1, "name": "made", "title": "Made up", "model": "some/model", "capability": "12.1"}
    return Recipe(**(fields | changes))


def of(words: str) -> dict[str, Any]:
    """Return a recipe's fields: words as `--flag=value`, `draft.key=value`, `VARIABLE=text`, or `WORDS`."""
    found: dict[str, Any] = {"flags": {}, "speculative": {}, "environment": {}}
    for word in words.split():
        name, given, text = word.partition("=")
        if not given:
            for field, value in WORDS[word].items():
                found[field] = {**found[field], **value} if field in found else value
        elif name in {"weights", "on"}:
            found["capability" if name == "on" else name] = text
        elif name.startswith(("--", "draft.")):
            field, key = ("flags", name[2:]) if name[0] == "-" else ("speculative", name[6:])
            found[field][key] = value_of(text)
        else:
            found["environment"][name] = text
    return found
