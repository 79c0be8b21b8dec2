"""Drafting of two servers: where it differs, their steps are not alike and cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkwright.engine.observations import BootFacts

_Drafting = frozenset[tuple[str, int]]


def unlike_drafting(facts: Mapping[tuple[str, int], BootFacts], arms: Sequence[str]) -> str:
    """Return the reason for which steps of the two *arms* cannot be compared; empty if they draft alike.

    Args:
        facts: facts of each start by arm and number; starts that failed have no version.
        arms: the server under test, and the one that it is compared with.
    """
    main, baseline = (_drafting(facts, arm) for arm in arms)
    if not main or not baseline or main == baseline:
        return ""
    return (
        f"a step drafts {_words(main)}, on the baseline {_words(baseline)}: times of such steps are not"
        " comparable, and the rates below decide"
    )


def _drafting(facts: Mapping[tuple[str, int], BootFacts], arm: str) -> _Drafting:
    known = [one for (of, _), one in facts.items() if of == arm and one.version]
    return frozenset(
        (one.speculative_method, one.speculative_tokens) if one.speculative_tokens > 0 else ("", 0)
        for one in known
    )


def _words(found: _Drafting) -> str:
    return " or ".join(
        f"{tokens} tokens by {method}" if tokens else "nothing" for method, tokens in sorted(found)
    )
