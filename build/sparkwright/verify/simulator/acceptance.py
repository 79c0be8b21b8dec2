"""Acceptance of drafted tokens: categories of prompts, and a table of chances for each."""

from __future__ import annotations

import re
from typing import Final

from sparkwright.verify.simulator.model import mix, unit

# Chance that the first drafted token is accepted, and the factor from each position to the next, given that
# all before it were accepted. With seven drafted tokens the mean acceptance lengths lie between 2.4 and 4.2,
# in the order that published figures for this machine have.
CATEGORIES: Final = {
    "code": (0.86, 0.93),
    "math": (0.88, 0.945),
    "reasoning": (0.875, 0.94),
    "prose": (0.70, 0.87),
    "dialogue": (0.73, 0.88),
    "extraction": (0.855, 0.925),
}

# Words that indicate a category; ``*`` stands for any ending, ``_`` for a space.
_CATEGORY_WORDS: Final = {
    "code": "code function python rust c++ javascript typescript sql class method program script regex bash "
    "bug api algorithm implement* refactor* compil* unit_test* def loop recursi* decorator iterator struct "
    "tests thread* postgresql index* buffer cmake* header library dockerfile yaml_workflow",
    "math": "solve calculat* comput* equation* integral derivative probability sum prove angle* triangle* "
    "how_many remainder digit* fraction* average prime* divisible polynomial matrix end_with_'answer slope "
    "greatest_common work_this_out",
    "reasoning": "reason* logic* deduc* infer* puzzle step_by_step conclu* premise* therefore argument* "
    "if_and_only_if contradict* which_of hypothes* assumption* weigh* evidence prisoner* trade-off* decide "
    "propos* rank* cause* estimate state somebody suppose guarantee* possible strategy compare",
    "prose": "story essay poem describ* novel scene paragraph* narrat* portrait memoir landscape legend tale "
    "write_about chapter vivid* write_a review_of write_the words",
    "dialogue": "i i'm i've my me we we're our",
    "extraction": "json extract* field* csv yaml xml schema pars* key* list_all entities record* invoice "
    "structured toml array null object* table",
}


def _expression(word: str) -> str:
    return re.escape(word).replace(r"\*", r"\w*").replace("_", r"\s+")


_PATTERNS: Final = {
    name: re.compile(r"(?<!\w)(?:" + "|".join(map(_expression, words.split())) + r")(?!\w)", re.IGNORECASE)
    for name, words in _CATEGORY_WORDS.items()
}
_LONG_PROMPT = 1200  # characters; a longer prompt is a document with its question below it


def category_of(text: str) -> str:
    """Return the category that most words of *text* belong to; a long one is judged by its last paragraph."""
    if len(text) > _LONG_PROMPT:
        text = text.rstrip().rpartition("\n\n")[2]
    scores = {name: len(pattern.findall(text)) for name, pattern in _PATTERNS.items()}
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] else "reasoning"


def acceptance_table(category: str, k: int) -> tuple[float, ...]:
    """Return the chance of acceptance at each of *k* positions, given that all before it were accepted."""
    first, fall = CATEGORIES[category]
    return tuple(first * fall**position for position in range(k))


def accepted_tokens(chances: tuple[float, ...], factor: float, state: int) -> int:
    """Return the number of accepted draft tokens; the first rejected one ends it.

    Args:
        chances: by position; see `acceptance_table`.
        factor: scale that faults apply, 1 when healthy.
        state: source of the draws, such as a hash of seed, request and step.
    """
    for position, chance in enumerate(chances):
        if unit(mix(state, position)) >= chance * factor:
            return position
    return len(chances)
