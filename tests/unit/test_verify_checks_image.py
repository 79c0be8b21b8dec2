"""Pictures are judged by their tokens and by what the model sees in them."""

import pytest
from chat_kit import judged, judged_with
from msgspec.structs import replace
from simulator_kit import settings
from verify_kit import context

from sparkwright.engine.client.payload import COLOURS
from sparkwright.engine.findings import IMAGES, Verdict
from sparkwright.verify.checks import ALL

SENT, SEEN = "pictures are in the prompt", "pictures are seen"


def test_every_picture_of_a_healthy_server_is_right() -> None:
    findings = judged(ALL["image"], context(), k=0)
    assert findings[SEEN].measured == {"colours": 6, "colours without pictures": 0}


def test_a_model_that_takes_no_pictures_is_not_judged() -> None:
    for findings in (
        judged(ALL["image"], context(), images=False),
        judged(ALL["image"], context(lacks={IMAGES: "a text model"})),
    ):
        assert {finding.verdict for finding in findings.values()} == {Verdict.NOT_APPLICABLE}
    assert "not a multimodal model" in judged(ALL["image"], context(), images=False)[SEEN].cause


SWAPPED, ONE_WRONG = {"red": "blue", "blue": "red"}, {"red": "green"}


@pytest.mark.parametrize(
    ("says", "verdict"),
    [
        (lambda name: SWAPPED.get(name, name), Verdict.FAIL),
        (lambda name: ONE_WRONG.get(name, name), Verdict.PASS),
        (lambda _: " ".join(COLOURS), Verdict.FAIL),  # which proves nothing
    ],
    ids=["exchanged colours", "one mistake", "every colour"],
)
def test_answers_are_judged_by_the_colours_that_they_name(says, verdict):
    check, to = ALL["image"], context()
    expected = {prompt.name: prompt.expect for cell in check.cells(to) for prompt in cell.prompts}
    findings = judged_with(
        check,
        to,
        settings(k=0),
        lambda one: replace(one, text=f"It is {says(expected[one.prompt])}."),
        "with",
    )
    assert findings[SEEN].verdict is verdict
