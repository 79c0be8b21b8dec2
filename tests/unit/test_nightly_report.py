"""A night's page and Markdown: every judgement in its words, and nothing of upstream's text takes effect."""

import xml.etree.ElementTree as ET

import night_kit
import pytest
from markdown_it import MarkdownIt
from page_kit import PageReader

from sparkwright.base.text import code_span
from sparkwright.nightly.model import Judgement, NightCheck, NightVerdict, Standing, standing_of
from sparkwright.nightly.propose import HeldBack, Proposal, ProposedCommit
from sparkwright.nightly.report import VERDICTS, commit_address, render_html, render_markdown

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


def html(night, *proposals) -> PageReader:
    return PageReader(render_html(night, upstream=UPSTREAM, proposals=proposals))


def markdown(night, *proposals) -> tuple[str, str]:
    """The Markdown, and the HTML that a lenient renderer makes of it."""
    text = render_markdown(night, upstream=UPSTREAM, proposals=proposals)
    return text, MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table").render(text)


@pytest.mark.parametrize("judgement", Judgement)
def test_every_judgement_appears_in_its_words_and_no_other(judgement):
    one = night_kit.night(night_kit.found(night_kit.carry("clamp", judgement)))
    page, (text, _) = html(one), markdown(one)
    assert {one.words for one in Judgement} & set(page.texts("span")) == {judgement.words}
    others = [other for other in Judgement if other.words not in judgement.words]
    assert f" {judgement.words} |" in text
    assert [other for other in others if f" {other.words} |" in text] == []


@pytest.mark.parametrize("judgement", Judgement)
def test_only_red_carries_tell_how_to_search(judgement):
    one = night_kit.night(night_kit.found(night_kit.carry("clamp", judgement)))
    red = standing_of(judgement) is Standing.RED
    assert ("sparkwright bisect" in html(one).text) == red
    assert ("sparkwright bisect" in markdown(one)[0]) == red


@pytest.mark.parametrize("verdict", NightVerdict)
def test_every_verdict_is_the_heading(verdict):
    one = night_kit.night(verdict=verdict)
    assert html(one).texts("h1") == [VERDICTS[verdict]]
    assert markdown(one)[1].startswith(f"<h2>{VERDICTS[verdict]}</h2>")


def test_the_page_loads_nothing_and_has_no_script():
    for one in (night_kit.eventful(), night_kit.hostile()):
        page = html(one, proposal())
        assert page.all("script") == []
        assert page.all("img") == page.all("iframe") == page.all("form") == []
        (csp,) = [tag["content"] for tag in page.all("meta") if tag.get("http-equiv")]
        assert "default-src 'none'" in csp
        assert [tag["href"] for tag in page.all("link")] == ["data:,"]
        names = {name for _, attributes in page.elements for name in attributes}
        assert not [name for name in names if name == "src" or name.startswith("on")]


def test_what_the_page_says_of_an_eventful_night():
    page = html(night_kit.eventful())
    links = [tag["href"] for tag in page.all("a")]
    assert f"https://github.com/vllm-project/vllm/commit/{'8a' * 20}" in links
    assert "https://github.com/vllm-project/vllm/pull/45544" in links
    for said in (
        "[Core] Give clamp a lower bound (#45544)", "A. Contributor", "vllm/clamp.py", "Clamp.low",
        "torch", "2.12.0", "SCALED_MM_ARCHS", "12.1a", "393.2 MiB in 1 min 32 s", "ab" * 32, "2 min 23 s",
        "the index of nightly wheels could not be asked: no network", "its head moved",
        "upstream has no wheel of that commit for aarch64",
    ):  # fmt: skip
        assert said in page.text, said


def test_flaky_tests_of_upstream_are_named_where_there_are_any():
    name = "tests/v1/core/test_cache.py::test_state"
    for flaky in ((name,), ()):
        tests = NightCheck(status="passed", passed=48, flaky=flaky)
        one = night_kit.night(night_kit.found(tests=tests))
        for told in (html(one).text, markdown(one)[0]):
            assert (f"flaky: {name}" in told.replace("`", ""), "flaky" in told) == (bool(flaky), bool(flaky))


def test_strips_have_a_bar_a_night_and_a_text_that_says_the_same():
    good, bad = Judgement.NEEDED, Judgement.CONFLICT
    one = night_kit.carry("clamp", bad, history=night_kit.strip(good, good, bad, bad, bad))
    page = html(night_kit.night(night_kit.found(one)))
    (svg,) = page.all("svg")
    assert svg["role"] == "img"
    assert svg["aria-label"] == "conflict for 3 nights, before that needed for 2 nights"
    assert [tag["class"] for tag in page.all("rect")] == ["good"] * 2 + ["red"] * 3
    heights = [int(tag["height"]) for tag in page.all("rect")]
    assert heights[0] < heights[-1]
    assert "▁▁███" in markdown(night_kit.night(night_kit.found(one)))[0]


def test_links_within_the_page_lead_somewhere_and_ids_are_unique():
    page = html(night_kit.eventful(), proposal(), "1.4.0: nothing")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    inside = [tag["href"][1:] for tag in page.all("a") if tag["href"].startswith("#")]
    assert len(inside) > 5
    assert set(inside) <= set(ids)
    assert {named["aria-labelledby"] for _, named in page.elements if "aria-labelledby" in named} <= set(ids)


def test_hostile_text_stays_text_on_the_page():
    page = html(night_kit.hostile(), EVIL)
    assert page.text.count("<script>alert(1)</script>") > 15
    raw = render_html(night_kit.hostile(), upstream=UPSTREAM, proposals=[EVIL])
    assert "\x1b" not in raw
    assert "\u202e" not in raw
    known = ("#", "https://github.com/vllm-project/")
    assert all(tag["href"].startswith(known) for tag in page.all("a"))


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


def test_markdown_renders_its_tables_and_links():
    _, rendered = markdown(night_kit.eventful(), proposal())
    assert rendered.count("<table>") == 5
    assert rendered.count("<tr>") > 20
    assert f'href="https://github.com/vllm-project/vllm/commit/{"8a" * 20}"' in rendered
    assert "/pull/" not in rendered  # such a link would appear on upstream's pull request every night


def test_proposals_say_what_holds_a_release_back():
    held = HeldBack(carry="clamp", judgement=Judgement.WRONG, since="2026-11-20", keeps="1.2.0")
    for one, there in ((proposal(pins=False, held=(held,)), True), (proposal(), False)):
        page, (text, _) = html(night_kit.night(), one).text, markdown(night_kit.night(), one)
        for shown in (page, text):
            assert ("clamp" in shown) == there
            assert ("2026-11-20" in shown) == there
            assert "sparkwright/1.3.0" in shown


def test_the_same_night_gives_the_same_texts():
    first, second = night_kit.eventful(), night_kit.eventful()
    assert render_html(first, upstream=UPSTREAM) == render_html(second, upstream=UPSTREAM)
    assert markdown(first) == markdown(second)


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
