"""Every check: healthy servers pass, faults are named, and what is missing never passes."""

import dataclasses
from typing import Any

import pytest
from chat_kit import judged
from verify_kit import (
    SEEDS,
    Server,
    boot_facts,
    by_name,
    context,
    costly,
    crash_from,
    judge,
    profile,
    run,
    verdicts,
)

from sparkwright.engine.findings import (
    BASELINE,
    GPU,
    IMAGES,
    LOG,
    PREFIX_CACHE,
    SPECULATION,
    TOOLS,
    Verdict,
)
from sparkwright.verify.check import Context
from sparkwright.verify.checks import ALL
from sparkwright.verify.checks.common import load_texts
from sparkwright.verify.corpus import load_corpus
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import profile_of
from sparkwright.verify.profiles import PROFILES, Profile

LONGEST = 4096
# Sizes, facts of the start, and settings of the simulator whose answers a check of chats is given.
CHATS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "traffic": ({"max_tokens": 256}, {}, {"k": 0}),
    "sampling": ({}, {}, {"k": 0}),
    "thinking": ({}, {}, {"reasoning": True}),
    "image": ({}, {}, {"k": 0}),
    "limit": ({}, {"max_model_len": LONGEST}, {"max_model_len": LONGEST, "k": 0}),
}
SIZES: dict[str, dict[str, Any]] = {"context": {"contexts": (1_600, 3_300)}}
TEXTS = {"name", "definition", "threshold"}
CAPABILITIES = {BASELINE, GPU, IMAGES, LOG, PREFIX_CACHE, SPECULATION, TOOLS}
MET = ("boot", "coherence", "context", "crash", "sweep")


def to(check: str, seed: int = 0) -> Context:
    sizes, facts, _ = CHATS.get(check, (SIZES.get(check, {}), {}, {}))
    return context(profile(seed=seed, **sizes), boot_facts(**facts))


@pytest.mark.parametrize("check", CHATS)
@pytest.mark.parametrize("seed", costly(SEEDS))
def test_healthy_chats_pass_without_a_warning_whatever_is_drawn(check: str, seed: int) -> None:
    findings = judged(ALL[check], to(check, seed), seed=seed, **CHATS[check][2])
    assert not verdicts(findings)
    assert not [warning for finding in findings.values() for warning in finding.warnings]


@pytest.mark.parametrize("check", MET)
@pytest.mark.parametrize("seed", costly(SEEDS))
def test_a_healthy_server_passes(check: str, seed: int) -> None:
    assert not verdicts(judge(ALL[check], to(check), Server(seed=seed)))


@pytest.mark.parametrize("check", sorted({*ALL} - {"bands", "boot"}))
def test_nothing_seen_is_not_a_pass(check: str) -> None:
    there = dataclasses.replace(to(check), corpus=load_corpus())
    assert Verdict.PASS not in {finding.verdict for finding in ALL[check].judge(there, [])}


@pytest.mark.parametrize("check", MET)
def test_the_first_finding_fails_where_the_server_ends_and_none_passes_on_what_is_missing(check: str) -> None:
    there, made = to(check), run(ALL[check], to(check), Server())
    ended = by_name(ALL[check].judge(there, crash_from(made, made[0].cell.name, log=("EngineDeadError",))))
    first = next(iter(ended.values()))
    assert first.verdict is Verdict.FAIL
    assert f"the server ended in {made[0].cell.name}" in first.cause
    whole = ALL[check].judge(there, made)
    for finding in ALL[check].judge(there, made[:-1]):
        missing = made[-1].cell.key in finding.evidence
        assert not (missing and finding.verdict is Verdict.PASS), finding.name
    assert len(whole) == len(ended)


def test_every_conclusion_has_its_texts_and_every_check_a_row_of_the_table() -> None:
    texts = load_texts()
    assert {name for name, one in texts.items() if "measures" in one} == {*ALL, "capacity"}
    for one in texts.values():
        conclusions = {key: value for key, value in one.items() if isinstance(value, dict)}
        for value in conclusions.values():
            assert {"name", "definition"} <= value.keys() <= {*TEXTS, "needs", "lenient"}
            assert set(value.get("needs", ())) <= CAPABILITIES


def test_braces_of_texts_are_filled() -> None:
    for name in MET:
        for finding in ALL[name].judge(to(name), []):
            assert not {"{", "}"} & {*finding.name, *finding.definition, *finding.threshold}


def test_every_profile_runs_the_checks_that_it_names() -> None:
    for name, sizes in PROFILES.items():
        assert set(sizes.checks) <= set(ALL)
        assert len(set(sizes.checks)) == len(sizes.checks) > 0
        assert sizes.checks[0] == "boot"
        assert profile_of(VerifyOptions(profile=name)).checks == sizes.checks


def test_options_override_the_sizes_that_are_given_instead_of_a_profile() -> None:
    sizes = Profile(name="small", checks=("boot", "sweep"), levels=(1, 2), speed=7.0)
    assert profile_of(VerifyOptions(simulator=True), sizes) == sizes
    changed = profile_of(VerifyOptions(simulator=True, levels=(4,), checks=("boot",)), sizes)
    assert (changed.levels, changed.checks, changed.speed) == ((4,), ("boot",), 7.0)
