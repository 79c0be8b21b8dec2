"""Chats: templates, history, characters, calls, structured output, sampling, reasoning and pictures."""

import re
from collections.abc import Callable

import pytest
from chat_kit import judged, judged_with, observe
from msgspec.structs import replace
from simulator_kit import settings
from verify_kit import by_name, changed, context, every, follow, profile, verdicts

from sparkwright.engine.cell import REQUIRED, Load
from sparkwright.engine.client.payload import COLOURS
from sparkwright.engine.findings import IMAGES, TOOLS, Finding, Verdict
from sparkwright.engine.observations import FailureKind, RequestFailure, Sample, ToolCall
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.flaws import (
    broken_characters,
    forced_flaw,
    misfit,
    reasoning_mark,
    role_mark,
    tool_flaw,
)
from sparkwright.verify.checks.thinking import thought_tokens
from sparkwright.verify.checks.traffic import TOOLS_OFFERED, TURNS

SIZES = profile(max_tokens=256)
# Conversations -------------------------------------------------------------------------------------------


def test_each_turn_sends_the_answers_before_it_and_the_same_ones_give_the_same_cells() -> None:
    check, to, server = ALL["traffic"], context(SIZES), settings()
    seen = [observe(cell, server) for cell in check.cells(to)]
    (second,) = check.cells(to, seen)[len(seen) :]
    assert (second,) == check.cells(to, seen)[len(seen) :]
    answers = {sample.prompt: sample.answer for sample in seen[0].samples}
    for before, prompt in zip(seen[0].cell.prompts, second.prompts, strict=True):
        assert [message.role for message in prompt.history] == ["user", "assistant"]
        assert [message.content for message in prompt.history] == [before.text, answers[before.name]]
    other = every(seen[0], slice(1), text="Another answer.")
    assert check.cells(to, [other, *seen[1:]])[-1].key != second.key
    whole = follow(check, to, lambda cell: observe(cell, server))
    assert sum(one.cell.tags["kind"] == "talk" for one in whole) == TURNS


def test_a_turn_without_answers_ends_the_conversation_and_counts() -> None:
    check, to = ALL["traffic"], context(SIZES)
    seen = [observe(cell, settings()) for cell in check.cells(to)]
    without = changed(seen, 0, samples=())
    assert check.cells(to, without)[len(without) :] == ()
    findings = by_name(check.judge(to, without))
    assert findings["answers are in the chat template"].verdict is Verdict.INVALID
    assert findings["tool calls are whole"].verdict is Verdict.PASS


# What a server lacks -------------------------------------------------------------------------------------


def test_what_a_server_lacks_is_not_sent_and_not_applicable() -> None:
    to = context(SIZES, lacks={TOOLS: "no parser"})
    check = ALL["traffic"]
    assert not [cell.name for cell in check.cells(to) if cell.load.tools]
    findings = judged(check, to, tool_parser=False)
    assert {name for name, one in findings.items() if one.verdict is Verdict.NOT_APPLICABLE} == {
        "tool calls are whole",
        "demanded tool calls come",
    }
    assert {one.verdict for one in findings.values()} == {Verdict.PASS, Verdict.NOT_APPLICABLE}


@pytest.mark.parametrize(
    ("text", "asked", "verdict", "says"),
    [
        ("It is sunny.", 200, Verdict.INCONCLUSIVE, "no tool in 7 answers, though each prompt asks for it$"),
        ("It is sunny.", 55, Verdict.INCONCLUSIVE, "55 tokens at the most, so that the chat template"),
        ("", 200, Verdict.FAIL, "20 tokens without any text or call"),
    ],
)
def test_a_model_that_calls_nothing(text: str, asked: int, verdict: Verdict, says: str) -> None:
    plain = {"text": text, "tool_calls": (), "tool_chars": 0, "finish_reason": "stop"}
    plain |= {"prompt_tokens": asked, "output_tokens": 20}
    findings = judged_with(
        ALL["traffic"], context(SIZES), settings(), lambda one: replace(one, **plain), "tools"
    )
    finding = findings["tool calls are whole"]
    assert finding.verdict is verdict
    assert re.search(says, finding.cause), finding.cause


def test_made_up_models_are_not_judged_by_their_words() -> None:
    findings = judged(ALL["traffic"], context(SIZES, made_up=True), "template-missing")
    assert not verdicts(findings)
    assert "made up" in findings["answers are in the chat template"].cause


# Flaws ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("find", "text", "found"),
    [
        (role_mark, "Rice.<|im_end|>\n<|im_start|>user\nMore", True),
        (role_mark, "Rice.\nuser\nMore?\nassistant\nYes.", True),
        (role_mark, "Rice.\nAssistant: yes", True),
        (role_mark, "<start_of_turn>model\nRice", True),
        (role_mark, "Ask your assistant: she knows the system.", False),
        (role_mark, "The user is right: rice takes 15 minutes.", False),
        (reasoning_mark, "ok\n</think>\nRice", True),
        (reasoning_mark, "<|channel|>analysis", True),
        (reasoning_mark, "I think <b>so</b>.", False),
    ],
)
def test_marks_of_roles_and_of_reasoning(find: Callable[[str], str], text: str, *, found: bool) -> None:
    assert bool(find(text)) is found


@pytest.mark.parametrize(
    ("text", "cut", "found"),
    [
        ("Zürich 🙂 東京 łódź", False, ""),
        ("Z\ufffd\ufffdrich", False, "2 replacement"),
        ("Zürich \ufffd", True, ""),
        ("Z\ufffdrich \ufffd", True, "1 replacement"),
        ("Zürich \ufffd", False, "1 replacement"),
        ("Zürich".encode().decode("latin-1"), False, "Latin-1"),
        ("it\u2019s".encode().decode("cp1252"), False, "Latin-1"),
        ("São Paulo à la carte, Ângela", False, ""),
    ],
)
def test_broken_characters(text: str, cut: bool, found: str) -> None:  # noqa: FBT001
    said = broken_characters(text, cut=cut)
    assert found in said
    assert bool(said) is bool(found)


GOOD = '{"city": "Oslo", "days": 3, "unit": "celsius"}'


@pytest.mark.parametrize(
    ("name", "arguments", "finish", "text", "found"),
    [
        ("get_weather", GOOD, "tool_calls", "", ""),
        ("get_weather", GOOD[:-2], "length", "", ""),
        ("get_weather", GOOD[:-2], "tool_calls", "", "truncated JSON"),
        ("get_weather", GOOD + "}", "tool_calls", "", "broken JSON"),
        ("get_weather", GOOD.replace("3", '"3"'), "tool_calls", "", "'3' is not of type 'integer'"),
        ("get_wether", GOOD, "tool_calls", "", "which was not offered"),
        ("get_weather", GOOD, "stop", "", "finish reason 'stop'"),
        ("get_weather", GOOD, "tool_calls", "<tool_call>\n{", "left in the text"),
    ],
)
def test_flaws_of_calls(name: str, arguments: str, finish: str, text: str, found: str) -> None:
    sample = Sample(
        prompt="p", category="c", started=0, ended=1, text=text, finish_reason=finish,
        tool_calls=(ToolCall(name=name, arguments=arguments),),
    )  # fmt: skip
    flaw = tool_flaw(sample, {tool.name: tool for tool in TOOLS_OFFERED})
    assert found in flaw
    assert bool(flaw) is bool(found)


WEATHER = ToolCall(name="get_weather", arguments=GOOD)
REMINDER = ToolCall(name="set_reminder", arguments='{"text": "Tea", "hours": 2}')


@pytest.mark.parametrize(
    ("choice", "calls", "tokens", "found"),
    [
        (REQUIRED, (WEATHER, REMINDER), 40, ""),
        (REQUIRED, (), 40, "no call, though the request demands a call: “It is sunny.”"),
        (REQUIRED, (), 64, "no call, though"),
        (REQUIRED, (ToolCall(name="get_weather", arguments=GOOD[:-2]),), 64, ""),
        (REQUIRED, (ToolCall(name="get_weather", arguments=GOOD[:-2]),), 63, "truncated JSON"),
        ("get_weather", (WEATHER,), 40, ""),
        ("get_weather", (REMINDER,), 40, "calls of set_reminder, though the request demands a call of get_w"),
        ("get_weather", (WEATHER, WEATHER), 40, "calls of get_weather, get_weather, though"),
        ("get_weather", (WEATHER, WEATHER), 64, ""),
    ],
)
@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_flaws_of_demanded_calls(choice, calls, tokens, found, finish):
    sample = Sample(
        prompt="p", category="c", started=0, ended=1, text="It is sunny." * (not calls),
        output_tokens=tokens, finish_reason=finish, tool_calls=calls,
    )  # fmt: skip
    load = Load(max_tokens=64, tools=TOOLS_OFFERED, tool_choice=choice)
    flaw = forced_flaw(sample, {tool.name: tool for tool in TOOLS_OFFERED}, load)
    assert found in flaw
    assert bool(flaw) is bool(found)


def test_demanded_calls_that_are_all_cut_decide_nothing() -> None:
    cut = {"output_tokens": 256, "tool_calls": ()}
    findings = judged_with(
        ALL["traffic"], context(SIZES), settings(), lambda one: replace(one, **cut), "forced"
    )
    finding = findings["demanded tool calls come"]
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert finding.cause.startswith("all 7 answers were cut")


def test_output_that_fits_no_schema_is_named() -> None:
    described = "answer", {"type": "object", "required": ["name"]}
    assert misfit('{"name": 1}', *described) == ""
    assert "'name' is a required property" in misfit("{}", *described)
    assert "broken JSON" in misfit("Sure: {}", *described)
    assert "truncated JSON" in misfit('{"name": "Zo', *described)


# Sampled chats -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parted", "at", "verdict"), [(2, 30, Verdict.PASS), (5, 30, Verdict.INCONCLUSIVE), (5, 1, Verdict.FAIL)]
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


# Reasoning -----------------------------------------------------------------------------------------------

OFF, ON, WITHIN = "no reasoning where it is off", "reasoning has its field", "reasoning keeps its budget"


def test_a_model_that_does_not_think_is_not_judged() -> None:
    findings = judged(ALL["thinking"], context())
    assert {finding.verdict for finding in findings.values()} == {Verdict.NOT_APPLICABLE}
    assert "the model does not think" in findings[ON].cause


def thought(change: Callable[[Sample], Sample], kind: str = "", *faults: str) -> dict[str, Finding]:
    return judged_with(ALL["thinking"], context(), settings(*faults, reasoning=True), change, kind)


@pytest.mark.parametrize(
    ("kind", "name", "says"), [("off", OFF, "no answer in"), ("on", ON, "they are empty")]
)
def test_empty_answers_are_no_answers(kind: str, name: str, says: str) -> None:
    finding = thought(lambda one: replace(one, text="", reasoning_chars=0), kind)[name]
    assert finding.verdict is Verdict.FAIL
    assert says in finding.cause


def test_a_template_without_a_switch_may_think_always() -> None:
    findings = thought(lambda one: replace(one, prompt_tokens=50), "", "thinking-not-off")
    assert findings[OFF].verdict is Verdict.NOT_APPLICABLE
    assert findings[ON].verdict is findings[WITHIN].verdict is Verdict.PASS


@pytest.mark.parametrize(("status", "verdict"), [(400, Verdict.NOT_APPLICABLE), (500, Verdict.FAIL)])
def test_a_budget_that_is_refused_is_not_judged_and_one_that_breaks_the_server_is(status, verdict):
    failure = RequestFailure(kind=FailureKind.STATUS, detail="no such limit", status=status)
    findings = thought(lambda one: replace(one, failure=failure, chunks=()), "budget")
    assert findings[WITHIN].verdict is verdict
    assert findings[ON].verdict is Verdict.PASS


def test_reasoning_without_token_ids_is_measured_by_its_characters() -> None:
    sample = Sample(
        prompt="p", category="c", started=0, ended=1, text="abcdefgh", reasoning_chars=6, output_tokens=100
    )
    assert thought_tokens(sample) == 75


# Pictures ------------------------------------------------------------------------------------------------

SEEN = "pictures are seen"


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
