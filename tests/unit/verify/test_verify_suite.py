"""The suite measures what is missing and nothing else, whatever ends it and whatever ends its servers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from sparkwright.base.errors import EndpointError, ServerError
from sparkwright.engine.cell import Cell, Load, Prompt
from sparkwright.engine.client.endpoint import Endpoint
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, Observation
from sparkwright.verify import suite as suite_module
from sparkwright.verify.check import Context
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.journal import FILE, Manifest, read_journal
from sparkwright.verify.plan import Plan
from sparkwright.verify.profiles import Profile
from sparkwright.verify.results import load_run
from sparkwright.verify.servers import Arms
from sparkwright.verify.suite import run_plan

MANIFEST = Manifest(run="r", created="now", server="none", identity={"wheel": "1"}, options={})
PROFILE = Profile(name="test", checks=("one",), speed=2.0)


class StoppedError(Exception):
    """Raised in tests in the place of a kill between two cells."""


@dataclass
class Asked:
    """A check that plans cells at *places*, and keeps the observations that it was given to judge."""

    name: str
    places: tuple[tuple[str, int], ...]
    seen: list[tuple[str, ...]] = field(default_factory=list)

    def cells(self, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
        del observations
        assert context.facts["main", 0].version == "v"
        prompts = (Prompt(name="p", category="code", text="t"),)
        return tuple(
            Cell(self.name, f"{self.name}{number}", Load(), prompts, arm=arm, boot=boot)
            for number, (arm, boot) in enumerate(self.places)
        )

    def judge(self, context: Context, observations: Sequence[Observation]) -> Sequence[Finding]:
        del context
        self.seen.append(tuple(seen.cell.name for seen in observations))
        figures = {"rate": float("nan"), "most": float("inf"), "count": 2.0, "said": "x"}
        return [Finding(self.name, "n", "d", Verdict.PASS, "c", measured=figures)]


@dataclass
class Fake:
    """A server and its fleet in one: it counts its starts and ends after so many cells."""

    ends_after: int = 1000
    broken: frozenset[str] = frozenset()
    starts: list[tuple[str, int]] = field(default_factory=list)
    running: int = 0
    left: int = 0
    facts: BootFacts = field(default_factory=lambda: BootFacts(version="v"))
    restartable: bool = True
    endpoint: Endpoint = field(default_factory=lambda: Endpoint("http://localhost:9", "m"))

    @property
    def arms(self) -> Arms:
        return {arm: functools.partial(self.start, arm) for arm in ("main", "baseline")}

    @property
    def died(self) -> int | None:
        return 137 if self.left <= 0 else None

    @contextlib.asynccontextmanager
    async def start(self, arm: str, boot: int) -> AsyncIterator[Fake]:
        self.starts.append((arm, boot))
        if arm in self.broken:
            raise ServerError("it does not start", because="of the test")
        assert not self.running, "two servers would share the card"
        self.running, self.left = 1, self.ends_after
        try:
            yield self
        finally:
            self.running = 0


class Measured(list[str]):
    """Names of the cells that were really measured, after *most* of which the run is stopped."""

    most = 1000


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    names = Measured()

    async def measure(server: Fake, cell: Cell, profile: Profile) -> Observation:
        assert profile is PROFILE
        if len(names) >= names.most:
            raise StoppedError
        names.append(cell.name)
        server.left -= 1
        return Observation(cell=cell, died=server.died)

    monkeypatch.setattr(suite_module, "measure", measure)
    return names


def run(folder: Path, fleet: Fake, *checks: Asked) -> tuple[Finding, ...]:
    plan = Plan(checks, Context(PROFILE, load_corpus(), {}), arms=fleet.arms)
    return asyncio.run(run_plan(plan, MANIFEST, folder))


@dataclass
class Growing(Asked):
    """A check that adds a cell after each one, up to a number."""

    most: int = 3

    def cells(self, context: Context, observations: Sequence[Observation]) -> tuple[Cell, ...]:
        (first,) = super().cells(context, observations)
        more = (msgspec.structs.replace(first, name=f"{self.name}{n}") for n in range(1, self.most))
        return (first, *more)[: len(observations) + 1]


def test_cells_that_a_check_adds_follow_its_own_on_the_same_server(tmp_path, measured):
    growing, two = Growing("one", (("main", 0),)), Asked("two", (("main", 0),))
    fleet = Fake()
    run(tmp_path, fleet, growing, two)
    assert measured == ["one0", "one1", "one2", "two0"]
    assert fleet.starts == [("main", 0)]
    assert growing.seen == [("one0", "one1", "one2")]


def test_every_cell_is_measured_once_server_by_server(tmp_path: Path, measured: list[str]) -> None:
    one = Asked("one", (("main", 0), ("baseline", 0), ("main", 0)))
    two = Asked("two", (("main", 1), ("main", 0)))
    fleet = Fake()
    findings = run(tmp_path, fleet, one, two)
    assert measured == ["one0", "one2", "two1", "one1", "two0"]
    assert fleet.starts == [("main", 0), ("baseline", 0), ("main", 1)]
    assert (one.seen, two.seen) == ([("one0", "one1", "one2")], [("two0", "two1")])
    assert [finding.check for finding in findings] == ["one", "two"]


def test_figures_that_json_has_no_number_for_are_kept_in_words(tmp_path: Path, measured: list[str]) -> None:
    (finding,) = run(tmp_path, Fake(), Asked("one", (("main", 0),)))
    assert finding.measured == {"rate": "nan", "most": "inf", "count": 2.0, "said": "x"}
    assert read_journal(tmp_path).findings == (finding,)
    assert measured == ["one0"]


def test_a_run_that_was_stopped_is_gone_on_with(tmp_path: Path, measured: Measured) -> None:
    one = Asked("one", (("main", 0), ("main", 0), ("main", 0), ("main", 1)))
    for number in (1, 2):
        measured.most = number
        with pytest.raises(StoppedError):
            run(tmp_path, Fake(), one)
        assert measured == ["one0", "one1"][:number]
    measured.most = 1000
    fleet = Fake()
    run(tmp_path, fleet, one)
    assert measured == ["one0", "one1", "one2", "one3"]
    assert fleet.starts == [("main", 0), ("main", 1)]
    assert one.seen == [("one0", "one1", "one2", "one3")]


def test_a_finished_run_starts_nothing_and_is_judged_again(tmp_path: Path, measured: list[str]) -> None:
    one = Asked("one", (("main", 0), ("baseline", 0)))
    run(tmp_path, Fake(), one)
    fleet = Fake()
    assert run(tmp_path, fleet, one)
    assert fleet.starts == []
    assert one.seen == [("one0", "one1")] * 2
    assert measured == ["one0", "one1"]


def test_a_server_that_ends_is_started_again_for_what_is_left(tmp_path: Path, measured: list[str]) -> None:
    one = Asked("one", (("main", 0),) * 3)
    fleet = Fake(ends_after=2)
    run(tmp_path, fleet, one)
    assert measured == ["one0", "one1", "one2"]
    assert fleet.starts == [("main", 0)] * 2
    assert read_journal(tmp_path).restarts == 1


def test_a_server_that_always_ends_is_given_up_and_the_rest_goes_on(tmp_path, measured):
    one = Asked("one", (*((("main", 0),) * 5), ("baseline", 0)))
    fleet = Fake(ends_after=1)
    run(tmp_path, fleet, one)
    assert measured == ["one0", "one1", "one2", "one5"]
    assert one.seen == [("one0", "one1", "one2", "one5")]


def test_a_first_server_that_does_not_start_is_an_error(tmp_path: Path, measured: list[str]) -> None:
    with pytest.raises(ServerError, match="does not start"):
        run(tmp_path, Fake(broken=frozenset({"main"})), Asked("one", (("main", 0),)))
    assert measured == []


def test_a_later_one_that_does_not_start_leaves_its_cells_out(tmp_path: Path, measured: list[str]) -> None:
    one = Asked("one", (("main", 0), ("baseline", 0)))
    run(tmp_path, Fake(broken=frozenset({"baseline"})), one)
    assert one.seen == [("one0",)]
    assert read_journal(tmp_path).boots["baseline", 0].facts.refused
    assert measured == ["one0"]


# Servers that fall silent --------------------------------------------------------------------------------


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Failures of plain requests: by the name of the cell before, and of repeated ones by ``again``."""
    canaries: dict[str, str] = {}
    last = ""

    async def measure(_server: Fake, cell: Cell, _profile: Profile) -> Observation:
        nonlocal last
        last = canaries.get(cell.name, "")
        return Observation(cell=cell, canary=last)

    async def canary(*_: object) -> str:
        return canaries.get("again", last)

    monkeypatch.setattr(suite_module, "measure", measure)
    monkeypatch.setattr(suite_module, "canary", canary)
    return canaries


HUNG = "first-token: no token within 60 s"


@pytest.mark.parametrize(("after", "seen"), [(("one1",), "012345"), (("one1", "one3"), "01235")])
def test_a_server_that_falls_silent_is_started_again_once(tmp_path, silent, after, seen):
    one, fleet = Asked("one", (*((("main", 0),) * 5), ("baseline", 0))), Fake()
    silent |= dict.fromkeys(after, HUNG)
    run(tmp_path, fleet, one)
    assert fleet.starts == [("main", 0), ("main", 0), ("baseline", 0)]
    assert one.seen == [tuple(f"one{number}" for number in seen)]


def test_a_server_of_others_that_falls_silent_is_asked_nothing_more(tmp_path, silent):
    one = Asked("one", (("main", 0), ("main", 0), ("main", 1), ("baseline", 0)))
    fleet = Fake(restartable=False)
    silent["one0"] = HUNG
    run(tmp_path, fleet, one)
    assert fleet.starts == [("main", 0), ("baseline", 0)]
    assert one.seen == [("one0", "one3")]


@pytest.mark.parametrize(("first", "again"), [(HUNG, ""), ("count: usage says 9", "count: usage says 9")])
def test_one_plain_request_that_is_lost_or_miscounted_is_no_silence(tmp_path, silent, first, again):
    one, fleet = Asked("one", (("main", 0), ("main", 0))), Fake()
    silent |= {"one0": first, "again": again}
    run(tmp_path, fleet, one)
    assert fleet.starts == [("main", 0)]
    assert one.seen == [("one0", "one1")]


# Checks that fail themselves -----------------------------------------------------------------------------


class Breaking(Asked):
    """Its judgement is an error in our own code."""

    def judge(self, context: Context, observations: Sequence[Observation]) -> Sequence[Finding]:
        super().judge(context, observations)
        raise ZeroDivisionError("float division by zero")


def test_a_check_that_fails_itself_leaves_the_others_verdicts(tmp_path: Path, measured: list[str]) -> None:
    one, two = Breaking("one", (("main", 0),)), Asked("two", (("main", 0),))
    broken, sound = run(tmp_path, Fake(), one, two)
    assert (broken.check, broken.verdict) == ("one", Verdict.INVALID)
    assert "ZeroDivisionError" in broken.cause
    assert len(broken.evidence) == 1
    assert (sound.check, sound.verdict) == ("two", Verdict.PASS)
    assert load_run(tmp_path).verdict is Verdict.INVALID
    (note,) = (one for one in (tmp_path / FILE).read_text().splitlines() if '"kind":"note"' in one)
    assert "in judge" in note
    assert measured == ["one0", "two0"]


# Documents -----------------------------------------------------------------------------------------------


def words_per_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tokens_a_word: float, *checks: str
) -> dict[tuple[str, int], float]:
    """Facts that the journal keeps of each start; no *tokens_a_word* of a server that does not count."""

    async def count(_session: object, _endpoint: object, text: str, *_: object) -> int:
        if not tokens_a_word:
            raise EndpointError("http://localhost:9/tokenize answers with status 404")
        return round(len(text.split()) * tokens_a_word)

    async def measure(_server: Fake, cell: Cell, _profile: Profile) -> Observation:
        return Observation(cell=cell)

    monkeypatch.setattr(suite_module, "count_tokens", count)
    monkeypatch.setattr(suite_module, "measure", measure)
    asked = Asked("one", (("main", 0), ("main", 1), ("baseline", 0)))
    sizes = msgspec.structs.replace(PROFILE, checks=checks)
    plan = Plan((asked,), Context(sizes, load_corpus(), {}), arms=Fake().arms)
    asyncio.run(run_plan(plan, MANIFEST, folder))
    return {place: boot.facts.words_per_token for place, boot in read_journal(folder).boots.items()}


NONE = {("main", 0): -1, ("main", 1): -1, ("baseline", 0): -1}


@pytest.mark.parametrize(
    ("tokens_a_word", "check", "found"),
    [
        (2.0, "context", {**NONE, ("main", 0): pytest.approx(0.5, rel=1e-3)}),  # it is asked once
        (2.0, "sweep", NONE),  # there are no documents
        (0, "context", NONE),
        # No tokenizer gives so many, or so few.
        *((tokens, "context", NONE) for tokens in (1e15, 10.0, 0.3)),
    ],
)
def test_the_server_is_asked_what_its_tokenizer_makes_of_documents(
    tmp_path, monkeypatch, tokens_a_word, check, found
):
    assert words_per_token(tmp_path, monkeypatch, tokens_a_word, check) == found


def test_added_cells_are_measured_where_a_stopped_run_ended(tmp_path: Path, measured: list[str]) -> None:
    run(tmp_path, Fake(), Growing("one", (("main", 0),), most=3))
    run(tmp_path, Fake(), Growing("one", (("main", 0),), most=5))
    assert measured == ["one0", "one1", "one2", "one3", "one4"]
