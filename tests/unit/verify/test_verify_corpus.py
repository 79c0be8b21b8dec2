"""The prompts are ours, many, different and, where they have a right answer, right."""

import math
import re
from fractions import Fraction

import pytest

from sparkwright.verify.corpus import CATEGORIES, WORDS_PER_TOKEN, holds, load_corpus

NAMES = {
    "comb": math.comb,
    "lcm": math.lcm,
    "sqrt": math.sqrt,
    "Fraction": Fraction,
    "abs": abs,
    "pow": pow,
    "sum": sum,
    "next": next,
    "range": range,
}
ENTRIES = [(category, entry) for category in CATEGORIES for entry in load_corpus().entries[category]]


def test_each_category_has_two_dozen_different_prompts():
    entries = load_corpus().entries
    assert tuple(entries) == CATEGORIES
    for category in CATEGORIES:
        assert len(entries[category]) >= 24
        assert len({entry.name for entry in entries[category]}) == len(entries[category])
    beginnings = [entry.text.strip()[:40] for _, entry in ENTRIES]
    assert len(set(beginnings)) == len(beginnings)


@pytest.mark.parametrize("entry", [e for c, e in ENTRIES if c == "math"], ids=lambda entry: entry.name)
def test_math_answers_are_right_and_not_in_the_question(entry):
    value = eval(entry.working, {"__builtins__": {}} | NAMES)  # noqa: S307 - our own file
    assert float(entry.expect) == pytest.approx(float(value), abs=1e-9 if "." not in entry.expect else 0.005)
    assert not holds(entry.expect, entry.text)
    assert "Answer: <" in entry.text


def test_a_fact_is_one_word_that_no_question_holds():
    facts = load_corpus().facts()
    assert len({fact.name for fact in facts}) == len({fact.text for fact in facts}) == len(facts) >= 12
    for fact in facts:
        assert fact.expect.isalpha()
        assert not any(holds(fact.expect, other.text) for other in facts)


def test_a_prompt_begins_with_a_nonce_that_nothing_else_has():
    corpus = load_corpus()
    prompts = [
        *corpus.prompts("code", 100, 0, "sweep"),
        *corpus.prompts("code", 100, 0, "crash"),
        *corpus.prompts("code", 100, 1, "sweep"),
        *corpus.prompts("prose", 30, 0, "sweep"),
    ]
    assert len({prompt.name for prompt in prompts}) == len(prompts)
    nonces = [prompt.text.split("\n")[0] for prompt in prompts]
    assert all(re.fullmatch(r"\[[0-9a-f]{12}\]", nonce) for nonce in nonces)
    assert len(set(nonces)) == len(nonces)


def test_prompts_are_the_same_for_the_same_question():
    corpus = load_corpus()
    assert corpus.prompts("math", 60, 3, "a") == corpus.prompts("math", 60, 3, "a")
    orders = [[p.name.split("/")[1] for p in corpus.prompts("math", 20, seed, "a")] for seed in (1, 2)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("tokens", [120, 400, 16_000, 33_000])
def test_a_document_has_its_length_and_hides_its_code_once(tokens):
    for seed in range(5):
        prompt = load_corpus().document(tokens, seed)
        words = len(prompt.text.split())
        assert words == pytest.approx(tokens * WORDS_PER_TOKEN, abs=30)
        (name,) = re.findall(rf"The code for (\w+) is {prompt.expect}\.", prompt.text)
        assert prompt.text.count(prompt.expect) == 1
        assert f"What is the code for {name}?" in prompt.text[-400:]


@pytest.mark.parametrize(
    ("expect", "text", "held"),
    [
        ("12", "Answer: 12", True),
        ("12", "so x = **12**.", True),
        ("12", "\\boxed{12}", True),
        ("12", "it is 12.00 euros", True),
        ("12", "112 or 120 or 12.5 or 0.12", False),
        ("12", "a12b", False),
        ("12", "from 3-12", True),
        ("-251", "y = \u2212251", True),
        ("-251", "y = 251", False),
        ("251", "y = -251", False),
        ("1344", "1,344 rolls", True),
        ("344", "1,344 rolls", False),
        ("59.90", '{"total": 59.9}', True),
        ("HL-2291-B", '{"number": "HL-2291-B"}', True),
        ("HL-2291-B", "hl-2291-b", True),
        ("HL-2291-B", "HL-2291-BX", False),
        ("09:30", '[["09:30", "16:00"]]', True),
        ("2023-11-21T22:47", '"start": "2023-11-21T22:47:00Z"', True),
        ("714233", "The code is 714233, and the notes", True),
        ("12", "", False),
    ],
)
def test_answers_are_compared_as_what_they_are(expect, text, held):
    assert holds(expect, text) is held


def test_notes_have_their_length_and_begin_with_a_nonce():
    corpus = load_corpus()
    notes = corpus.notes(2000, 1, "a")
    assert len(notes.split()) == pytest.approx(2000 * WORDS_PER_TOKEN, abs=30)
    assert len({corpus.notes(2000, seed, salt)[:14] for seed in range(5) for salt in "ab"}) == 10
    assert "?" not in notes


def test_tasks_are_right_and_different():
    tasks = load_corpus().tasks(60, 7, "x")
    assert len({task.name for task in tasks}) == len({task.text for task in tasks}) == 60
    for task in tasks:
        if task.category == "math":
            left, sign, right = task.text.split()[-3:]
            value = int(left) + int(right) * (1 if sign == "+" else -1)
            assert int(task.expect) == value
        else:
            name = re.search(r"What is the code for (\w+)\?", task.text)[1]
            assert f"The code for {name} is {task.expect}." in task.text
    assert {task.category for task in tasks} == {"math", "extraction"}
