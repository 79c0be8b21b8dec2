"""Long context: acceptance at length, cold and cached, and needles."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from verify_kit import SEEDS, Bench, Server, boot_facts, changed, context, every, judge, profile, run

from sparkwright.engine.cell import Cell
from sparkwright.verify.checks import ALL
from sparkwright.verify.corpus import WORDS_PER_TOKEN

LONG = ALL["context"]
SIZES = profile(contexts=(1_600, 3_300))  # the check does not care, and the kit's documents stay small
HOLD = "acceptance holds at 3300 tokens"
CACHE = "the cache keeps acceptance at 3300 tokens"
READ = "documents of 3300 tokens are read"
SERVED = "long prompts are served"
BENCH = Bench(LONG, SIZES)
healthy, judged, named = BENCH.healthy, BENCH.judged, BENCH.at


def test_documents_are_sized_by_the_servers_own_tokenizer() -> None:
    def words(per_token: float) -> list[int]:
        cells = LONG.cells(context(SIZES, facts=boot_facts(words_per_token=per_token)))
        return [len(cell.prompts[0].text.split()) for cell in cells]

    alike, half, unknown = words(1.0), words(0.5), words(-1)
    assert half[1] == pytest.approx(alike[1] / 2, abs=3)
    assert unknown[1] == pytest.approx(WORDS_PER_TOKEN * alike[1], abs=3)


def test_lengths_that_are_a_guess_are_said_and_so_is_what_they_came_to() -> None:
    healthy_ones = list(healthy())
    assert judged(healthy_ones)[SERVED].warnings == ()
    guessed = context(SIZES, facts=boot_facts(words_per_token=-1))
    assert LONG.judge(guessed, run(LONG, guessed, Server()))[0].warnings == (
        "documents are sized by an estimate: the server did not count their tokens",
        "documents of 1600 tokens came to 1282",
        "documents of 3300 tokens came to 2642",
    )


def lost(tokens: int, to: float, *, cached_only: bool = False) -> Callable[[Cell, float, bool], float]:
    def factor(cell: Cell, at_s: float, cached: bool) -> float:  # noqa: FBT001
        return to if int(cell.tags["tokens"]) >= tokens and (cached or not cached_only) else 1.0

    return factor


def test_a_weak_drafter_that_is_lost_fails_as_well() -> None:
    """Its mean acceptance length falls from 2.0 to 1.0, which is more than 0.4 of it."""
    weak = Server(seed=1, factor=lambda cell, *_: 0.62 if cell.tags["cache"] == "control" else 0.02)
    finding = judge(LONG, context(SIZES), weak)[HOLD]
    assert finding.verdict == "fail"
    assert float(str(finding.measured["MAL ratio"]).split()[0]) > 0.4


def test_acceptance_that_falls_a_little_warns() -> None:
    finding = judge(LONG, context(SIZES), Server(seed=1, factor=lost(3300, 0.85)))[HOLD]
    assert finding.verdict == "pass"
    assert "may be as low as" in finding.warnings[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_acceptance_that_is_lost_from_the_cache_alone_fails(seed: int) -> None:
    found = judge(LONG, context(SIZES), Server(seed=seed, factor=lost(3300, 0.3, cached_only=True)))
    assert found[CACHE].verdict == "fail"
    assert found[CACHE].cause.startswith("cached against cold: at 3300 tokens from the cache")
    assert found[HOLD].verdict == "pass"
    assert found["the cache keeps acceptance at 1600 tokens"].verdict == "pass"


def test_a_cache_that_finds_nothing_is_invalid() -> None:
    server = Server(seed=1)
    observations = []
    for cell in LONG.cells(context(SIZES)):
        server.cached_prompts.clear()
        observations.append(server.measure(cell))
    finding = judged(observations)[CACHE]
    assert finding.verdict == "invalid"
    assert finding.cause.startswith("cache not exercised: 0% of the prompt tokens of 3300 cached")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cache": {"enable_prefix_caching": "False"}}, "has no prefix cache"),
        ({"prefix_hits": -1.0, "prefix_queries": -1.0}, "no counters of the prefix cache"),
    ],
)
def test_a_server_without_a_cache_is_undecided(changes: dict[str, object], words: str) -> None:
    at = named("3300 cached")
    before, after = (replace(one, **changes) for one in (healthy()[at].before, healthy()[at].after))
    finding = judged(changed(healthy(), at, before=before, after=after))[CACHE]
    assert finding.verdict == "inconclusive"
    assert words in finding.cause


SILENT = {"text": "I do not know."}


def test_documents_are_judged_by_the_codes_that_are_read() -> None:
    observations, cached, cold = list(healthy()), named("3300 cached"), named("3300 cold")
    unread = judged([*observations[:cached], every(observations[cached], **SILENT)])[READ]
    assert unread.verdict == "fail"
    assert unread.cause.startswith("3300 cached: 0 of 4 codes were found, and 8 of 8 after short")
    observations[cold] = every(observations[cold], slice(1), **SILENT)
    missed = judged(observations)[READ]
    assert missed.verdict == "pass"
    assert missed.warnings[0].startswith("3300 cold: 1 of 4 codes")
    unable = judged([every(one, **SILENT) for one in healthy()])[READ]
    assert unable.verdict == "inconclusive"  # a model that cannot answer at any length


def test_a_length_beyond_the_server_is_said_and_not_sent() -> None:
    to = context(SIZES, facts=boot_facts(max_model_len=2_500))
    found = judge(LONG, to, Server(seed=1))
    beyond = found["documents of 3300 tokens are served"]
    assert "3300 tokens were not tried: the server takes 2500 at the most" in beyond.cause
    assert beyond.verdict == "not-applicable"
    assert found[SERVED].verdict == "pass"
    assert HOLD not in found
    assert found["acceptance holds at 1600 tokens"].verdict == "pass"


@pytest.mark.parametrize("came", [0, 82, 2_500, 4_100])
def test_documents_of_another_length_decide_nothing(came: int) -> None:
    """By the server's own count; 0 where it counts nothing."""
    found = judged(
        [every(o, prompt_tokens=came) if o.cell.tags["tokens"] == "3300" else o for o in healthy()]
    )
    for name in (SERVED, HOLD, CACHE, READ):
        assert found[name].verdict == "inconclusive"
        assert "documents of 3300 tokens" in found[name].cause
    assert found["acceptance holds at 1600 tokens"].verdict == "pass"


def test_a_drafter_that_brings_nothing_short_or_cold_is_told_in_words() -> None:
    inert = judge(LONG, context(SIZES), Server(factor=lambda *_: 0.0))
    for finding in inert.values():
        assert "nan" not in finding.cause
    assert inert[HOLD].verdict == inert[CACHE].verdict == "inconclusive"
