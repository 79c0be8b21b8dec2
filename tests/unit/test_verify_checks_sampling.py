"""Sampled chats are judged by the seed, by the temperature and by their text."""

import pytest
from chat_kit import observe
from msgspec.structs import replace
from simulator_kit import settings
from verify_kit import by_name, changed, context

from sparkwright.engine.findings import Verdict
from sparkwright.verify.checks import ALL


@pytest.mark.parametrize(
    ("parted", "at", "verdict"),
    [(2, 30, Verdict.PASS), (5, 30, Verdict.INCONCLUSIVE), (5, 1, Verdict.FAIL)],
)
def test_answers_that_rounding_parts_late_are_not_called_ignored_seeds(parted, at, verdict):
    """*parted* answers to the second request of a seed differ from token *at* on."""
    check, to = ALL["sampling"], context()
    seen = [observe(cell, settings(k=0)) for cell in check.cells(to)]
    (again,) = (number for number, one in enumerate(seen) if one.cell.name == "seed A again")
    first, rest = seen[again].samples[:parted], seen[again].samples[parted:]
    other = [replace(s, text=f"{s.text}!", token_ids=(*s.token_ids[:at], *[7] * 9)) for s in first]
    finding = by_name(check.judge(to, changed(seen, again, samples=(*other, *rest))))[
        "a seed gives one answer"
    ]
    assert finding.verdict is verdict, finding.cause
    assert bool(finding.warnings) is (verdict is Verdict.PASS)
