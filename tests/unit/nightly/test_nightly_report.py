"""A night's report: every judgement in its words, and nothing of upstream's text takes effect."""

import xml.etree.ElementTree as ET

import night_kit
import pytest
from kit import make_tree
from markdown_it import MarkdownIt

from sparkwright.base.text import code_span
from sparkwright.git.repository import Repository
from sparkwright.nightly.judging import runners
from sparkwright.nightly.model import Judgement, Standing
from sparkwright.nightly.propose import HeldBack, Proposal, ProposedCommit, commit_address, render_markdown

UPSTREAM = "https://github.com/vllm-project/vllm.git"
EVIL = night_kit.EVIL


def proposal(**changes) -> Proposal:
    told = {
        "target": "1.3.0",
        "branch": "sparkwright/1.3.0",
        "base": "1" * 40,
        "head": "2" * 40,
        "commits": (ProposedCommit(id="2" * 40, subject="Pin vLLM 1.3.0"),),
        "pins": True,
    }
    return Proposal(**{**told, **changes})


def markdown(night, *proposals) -> tuple[str, str]:
    """The Markdown, and the HTML that a lenient renderer makes of it."""
    text = render_markdown(night, upstream=UPSTREAM, proposals=proposals)
    return text, MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table").render(text)


@pytest.mark.parametrize("judgement", Judgement)
def test_every_judgement_appears_in_its_words_and_no_other(judgement):
    one = night_kit.night(night_kit.found(night_kit.carry("clamp", judgement)))
    text, _ = markdown(one)
    others = [other for other in Judgement if other.words not in judgement.words]
    assert f" {judgement.words} |" in text
    assert [other for other in others if f" {other.words} |" in text] == []


@pytest.mark.parametrize("judgement", Judgement)
def test_only_red_carries_tell_how_to_search(judgement):
    one = night_kit.night(night_kit.found(night_kit.carry("clamp", judgement)))
    red = judgement.standing is Standing.RED
    assert ("sparkwright bisect" in markdown(one)[0]) == red


def test_what_is_said_of_an_eventful_night():
    text, rendered = markdown(night_kit.eventful())
    for said in (
        "[Core] Give clamp a lower bound (#45544)", "A. Contributor", "vllm/clamp.py", "Clamp.low",
        "393.2 MiB", "ab" * 32, "2 min 51 s",
        "the index of nightly wheels could not be asked: no network",
        "upstream has no wheel of that commit for aarch64",
    ):  # fmt: skip
        assert said in text, said
    assert f'href="https://github.com/vllm-project/vllm/commit/{"8a" * 20}"' in rendered


def test_hostile_text_stays_text_in_markdown():
    text, rendered = markdown(night_kit.hostile(), EVIL)
    for harmful in ("<script", "<img", "@everyone</", 'javascript:alert(1)"', "<h1"):
        assert harmful not in rendered
    assert "\x1b" not in text
    assert "\u202e" not in text
    # What is not in a code span mentions nobody and names no issue.
    whole = ET.fromstring(f"<all>{rendered.replace('&nbsp;', ' ')}</all>")  # noqa: S314 - made here
    for element in whole.iter():
        shown = [element.text if element.tag != "code" else "", element.tail]
        assert not any("@everyone" in (words or "") or "#7" in (words or "") for words in shown)
    links = [element.get("href") for element in whole.iter("a")]
    assert links
    assert all(link.startswith("https://github.com/vllm-project/vllm/commit/") for link in links)


@pytest.mark.parametrize("text", ["a`b", "``", "`", "x|y", "\\|", "a\nb", "trailing `", "*_~<>&"])
def test_a_code_span_is_one_span_in_text_and_in_a_table(text):
    reader = MarkdownIt("commonmark").enable("table")
    (block,) = [token for token in reader.parse(code_span(text)) if token.type == "inline"]
    (span,) = block.children
    assert span.type == "code_inline"
    assert span.content.replace("¦", "|") == " ".join(text.split())
    table = reader.parse(f"| a | b |\n|---|---|\n| {code_span(text)} | last |")
    cells = [token for token in table if token.type == "inline"]
    assert cells[-1].content == "last"
    assert len(cells) == 4


def test_proposals_say_what_holds_a_release_back():
    held = HeldBack(carry="clamp", judgement=Judgement.WRONG, since="2026-11-20", keeps="1.2.0")
    for one, there in ((proposal(pins=False, held=(held,)), True), (proposal(), False)):
        shown, _ = markdown(night_kit.night(), one)
        assert ("clamp" in shown) == there
        assert ("2026-11-20" in shown) == there
        assert "sparkwright/1.3.0" in shown


@pytest.mark.parametrize(
    ("upstream", "commit"),
    [
        ("git@github.com:vllm-project/vllm.git", "8a" * 20),
        ("file:///srv/vllm.git", "8a" * 20),
        ("javascript:alert(1)//https://x", "8a" * 20),
        ("https://[broken", "8a" * 20),
        (UPSTREAM, "8a8a8a8a8"),
        (UPSTREAM, '"><script>' + "8" * 30),
    ],
)
def test_only_a_whole_commit_at_an_https_address_becomes_a_link(upstream, commit):
    assert commit_address(upstream, commit) == ""
    assert commit_address(UPSTREAM, "8a" * 20).endswith("/commit/" + "8a" * 20)


# The model runners that are the default of some model, by the text of upstream's configuration


CHOICE = "vllm/config/vllm.py"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "def use_v2_model_runner():\n    return arch in DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES\n",
            {"v1", "v2"},
        ),
        ("def use_v2_model_runner():\n    return True\n", {"v2"}),
        ("V1 = True\n", {"v1"}),
        (None, {"v1"}),
    ],
)
def test_it_is_v1_until_v2_may_be_chosen(repository: Repository, text: str | None, found: set[str]) -> None:
    files = {"vllm/__init__.py": ""} | ({} if text is None else {CHOICE: text})
    assert runners(repository, make_tree(repository, files)) == found
