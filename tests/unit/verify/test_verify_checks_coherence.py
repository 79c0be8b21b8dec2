"""Coherence: what no good text has, and what many good texts have."""

import pytest
from msgspec.structs import replace
from verify_kit import Bench, Server, changed, context, every, judge, token_id, verdicts

from sparkwright.engine.observations import Chunk, Observation
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.flaws import flaw

COHERENCE = ALL["coherence"]
TEXT = "answers are text"
LOOP = "answers do not loop"
KNOWN = "known facts are right"
BENCH = Bench(COHERENCE)
healthy, judged = BENCH.healthy, BENCH.judged

GOOD = {
    "short": "Yes.",
    "prose": "The harbour was quiet when she came down the stairs, and the boats lay still under the grey "
    "morning. Nobody had told her that the ferry would not run, nor that the old pilot had left in the night "
    "with all that he had. She sat down on a bollard and waited for the sun.",
    "code": "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\n"
    "for i in range(10):\n    print(add(i, 1), sub(i, 1))\n\nassert add(2, 3) == 5 and sub(2, 3) == -1\n",
    "json": '[{"name": "Ada", "born": 1815}, {"name": "Alan", "born": 1912}, {"name": "Grace", "born": 1906},'
    ' {"name": "Edsger", "born": 1930}, {"name": "Barbara", "born": 1939}]',
    "table": "\n".join(f"| {i} | {i * i} | {i**3} |" for i in range(40)),
    "numbers": " ".join(str(i) for i in range(200)),
    "formulas": "Let \u03b1 = 2 and \u03b2 = 3, so \u03b1 \u03b2 = 6, and \u03b2 \u03b1 = 6 too. " * 2
    + "Then the sum over all terms is 12, which is twice the product, as was to be shown.",
    "refrain": "Row, row, row your boat, gently down the stream. " * 3 + "Life is but a dream, and so we go "
    "home again, tired and glad, to tell the children what we saw by the river under the tall trees.",
    "chinese": "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u3002" * 3,
    "names": "The town of \u041c\u043e\u0441\u043a\u0432\u0430 lies on a river, and \u6771\u4eac by the sea; "
    "both are large, and neither is quiet. Travellers say that the trains of both are beautiful, each in its "
    "own way, and that one should see the stations early in the morning before the crowds arrive there.",
}


@pytest.mark.parametrize("name", GOOD)
def test_good_texts_have_no_flaw(name: str) -> None:
    assert flaw(GOOD[name], tokens=len(GOOD[name]) // 4) is None


SCRIPTS = ["stone", "\u0434\u043e\u043c", "\u6771\u4eac", "\u05e9\u05dc\u05d5", "\u0e1a\u0e49\u0e32"]

BAD = {
    "marks": ("one token", "!" * 200),
    "marks apart": ("one token", "! " * 200),
    "word": ("one token", "the " * 100),
    "start, then marks": ("one token", "Sure, here it is " + "!" * 200),
    "nothing": ("empty", "  \n"),
    "loop": ("repetition", "To begin, we look at the first. " + "and then we go on with the next one, " * 20),
    "long loop": ("repetition", " ".join(f"w{i % 40}" for i in range(400))),
    "replacement": ("garbage", "The answer is \ufffd\ufffd\ufffd " + GOOD["prose"][:200] + "\ufffd" * 8),
    "control": ("garbage", GOOD["prose"] + "\x01\x02\x03" * 6),
    "alphabets": ("garbage", " ".join(f"{SCRIPTS[i % 5]}" + "aeiou"[: i % 4] for i in range(80))),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_texts_are_told_by_kind(name: str) -> None:
    kind, text = BAD[name]
    found = flaw(text, tokens=max(40, len(text) // 4))
    assert found.kind == kind


def test_ids_tell_where_letters_do_not_and_letters_where_ids_do_not() -> None:
    """Unseen tokens look like one word to the eye; tokenizers join marks in more ways than one."""
    found = flaw("\u2026" * 3, token_ids=[7] * 100, tokens=100)
    assert found.kind == "one token"
    found = flaw("!!!!" * 50, token_ids=list(range(50)), tokens=50)
    assert found.shown.startswith("200 of 200 characters")


def with_text(observation: Observation, number: int, text: str) -> Observation:
    ids = tuple(token_id(word) for word in text.split())
    return every(observation, slice(number, number + 1), text=text, token_ids=ids)


def test_one_answer_without_text_fails_and_is_named() -> None:
    observations = list(healthy())
    observations[1] = with_text(observations[1], 3, "! " * 96)
    finding = judged(observations)[TEXT]
    assert finding.verdict == "fail"
    assert finding.cause.startswith("loaded c=12: 1 of 12 answers, first to ")
    assert ": one token: " in finding.cause


def with_facts(start: str, right: int) -> list[Observation]:
    """Healthy observations, but for the facts in one cell: as many are right, and the others good English."""
    observations = list(healthy())
    number = BENCH.at(start)
    cell = observations[number].cell
    wrong = {prompt.name: prompt.expect for prompt in cell.prompts[right:]}
    samples = tuple(
        replace(sample, text=sample.text.replace(wrong.get(sample.prompt, "\0"), "Nobody knows."))
        for sample in observations[number].samples
    )
    return changed(observations, number, samples=samples)


@pytest.mark.parametrize(("right", "verdict"), [(12, "pass"), (8, "pass"), (7, "fail"), (2, "fail")])
def test_a_small_model_may_miss_some_facts(right: int, verdict: str) -> None:
    found = judged(with_facts("facts loaded", right))[KNOWN]
    assert found.verdict == verdict
    assert found.measured["facts loaded c=12 right"] == right


def test_made_up_weights_are_asked_for_no_facts() -> None:
    to = context(made_up=True)
    found = judge(COHERENCE, to, Server())
    assert [cell.name for cell in COHERENCE.cells(to)] == ["alone c=1", "loaded c=12"]
    assert verdicts(found) == {}
    assert found[KNOWN].cause.startswith("not judged")
    assert not found[KNOWN].evidence


def test_one_loop_warns() -> None:
    observations = list(healthy())
    observations[1] = with_text(observations[1], 3, "so we go on " * 24)
    finding = judged(observations)[LOOP]
    assert finding.verdict == "pass"
    assert len(finding.warnings) == 1


def test_arguments_of_a_tool_are_no_prose() -> None:
    first, *rest = healthy()[0].samples
    called = replace(first, text="", chunks=(Chunk(1, 40, "tool"), Chunk(2, 8, "tool")))
    observations = changed(healthy(), 0, samples=(called, *rest))
    assert judged(observations)[TEXT].verdict == "pass"
