"""Pictures are judged by their tokens and by what the model sees in them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from chat_kit import judged, observe
from simulator_kit import settings
from verify_kit import SEEDS, context, profile, verdicts

from sparkwright.engine.capabilities import IMAGES
from sparkwright.engine.client.pictures import COLOURS, draw_colour, draw_number
from sparkwright.engine.findings import Verdict
from sparkwright.verify.checks import ALL
from sparkwright.verify.simulator.pictures import look_at

SENT, SEEN = "pictures are in the prompt", "pictures are seen"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_server_passes_whatever_it_is_shown(seed: int) -> None:
    sizes = msgspec.structs.replace(profile(), seed=seed)
    findings = judged(ALL["image"], context(sizes), seed=seed, k=0)
    assert not verdicts(findings)
    assert findings[SEEN].measured == {"colours": 6, "numbers": 4, "colours without pictures": 0}
    assert not [warning for finding in findings.values() for warning in finding.warnings]


def test_a_model_that_takes_no_pictures_is_not_judged() -> None:
    for findings in (
        judged(ALL["image"], context(), images=False),
        judged(ALL["image"], context(lacks={IMAGES: "a text model"})),
    ):
        assert {finding.verdict for finding in findings.values()} == {Verdict.NOT_APPLICABLE}
    assert "not a multimodal model" in judged(ALL["image"], context(), images=False)[SEEN].cause


@pytest.mark.parametrize(
    ("swap", "verdict"), [({"red": "blue", "blue": "red"}, Verdict.FAIL), ({"red": "green"}, Verdict.PASS)]
)
def test_exchanged_colours_fail_and_one_mistake_does_not(swap: dict[str, str], verdict: Verdict) -> None:
    assert _with_answers(lambda expect: swap.get(expect, expect)) is verdict


def test_answers_that_name_every_colour_prove_nothing() -> None:
    assert _with_answers(lambda _: " ".join(COLOURS)) is Verdict.FAIL


def _with_answers(says: Callable[[str], str]) -> Verdict:
    """Return the verdict on sight where each picture is called by *says* of its own name."""
    check, to = ALL["image"], context()
    seen = []
    for cell in check.cells(to):
        found = observe(cell, settings(k=0))
        if cell.tags["kind"] == "with":
            expected = {prompt.name: prompt.expect for prompt in cell.prompts}
            samples = tuple(
                msgspec.structs.replace(s, text=f"It is {says(expected[s.prompt])}.") for s in found.samples
            )
            found = msgspec.structs.replace(found, samples=samples)
        seen.append(found)
    return {finding.name: finding for finding in check.judge(to, seen)}[SEEN].verdict


def test_drawn_pictures_are_seen_by_the_simulator_as_they_are() -> None:
    assert [look_at(draw_colour(name)) for name in COLOURS] == list(COLOURS)
    numbers = ["100", "274", "396", "508", "999"]
    assert [look_at(draw_number(number)) for number in numbers] == numbers
    assert all(len(draw_number(number)) < 4096 for number in numbers)
