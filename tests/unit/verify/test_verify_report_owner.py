"""An owner's report has what was measured, and nothing personal."""

import json
from dataclasses import replace
from typing import Any

import pytest
from report_kit import healthy, hostile, unhealthy
from securesystemslib.signer import CryptoSigner

from sparkwright.base.errors import ConfigError
from sparkwright.engine.observations import FailureKind
from sparkwright.publish.owner_report import sign_report
from sparkwright.recipes.recipe import recipes
from sparkwright.verify.checks import ALL
from sparkwright.verify.journal import Run
from sparkwright.verify.profiles import PROFILES
from sparkwright.verify.report.figures import cells, levels
from sparkwright.verify.report.owner import owner_figures, owner_machine

HEAD = {
    "made": "2026-11-20", "tool": "0.1.0", "run": "1" * 64, "profile": "full", "complete": True,
    "recipe": {"name": "own", "digest": "a" * 16},
}  # fmt: skip
PERSONAL = ("spark-01", "somebody", "10.1.2.3", "6.14.0-mine", "GPU-5f0c", "/runs/2026-11-21")
CLIENT: dict[str, Any] = {
    "client": "aarch64, 20 cores, Linux-6.14.0-mine-aarch64-with-glibc2.39", "memory": "119 GiB",
    "host": "spark-01", "url": "http://10.1.2.3:8000", "title": "somebody's", "user": "somebody",
}  # fmt: skip
CARD = {"card": "12.1", "card-name": "NVIDIA GB10", "driver": "580.95.05", "uuid": "GPU-5f0c"}


def of(run: Run, **more: str) -> Run:
    return replace(run, manifest={**run.manifest, **CLIENT, **more})


def report(run: Run) -> dict[str, Any]:
    machine = {"machine": owner_machine(run)}
    signed = sign_report({**HEAD, **machine, **owner_figures(run)}, CryptoSigner.generate_ed25519())
    found: dict[str, Any] = json.loads(signed.report.data.partition(b"\n")[2])
    return found


@pytest.mark.parametrize("made", [healthy, unhealthy])
def test_figures_are_those_of_the_page_and_nothing_personal_is_in_it(made: Any) -> None:
    run = of(made(), **CARD)
    found = report(run)
    assert found["machine"] == {
        "kind": "card", "platform": "aarch64", "cores": 20, "memory-gib": 119, "card": "NVIDIA GB10",
        "capability": "12.1", "driver": "580.95.05",
    }  # fmt: skip
    assert found["verdict"] == str(run.verdict)
    told = [(one["c"], one["tok-s"][0], one["tokens-per-step"]) for one in found["levels"]]
    shown = [(one.concurrency, one.tok_s, one.acceptance) for one in levels(cells(run), run.speed)]
    assert told == [pytest.approx(one, rel=1e-5) for one in shown]
    assert all(one["tok-s"][1] <= one["tok-s"][0] <= one["tok-s"][2] for one in found["levels"])
    failed = sum(len(seen.failed) for seen in run.observations)
    assert sum(found["failures"].values()) == failed
    assert (failed > 0) == (made is unhealthy)
    assert not [word for word in PERSONAL if word in json.dumps(found)]


def test_without_a_card_the_machine_says_what_served() -> None:
    assert owner_machine(of(healthy()))["kind"] == "cpu"
    assert owner_machine(of(healthy(), simulator="k=7"))["kind"] == "simulator"


@pytest.mark.parametrize(
    ("told", "card"), [("NVIDIA <b>GB10</b>\x1b", "NVIDIA bGB10b"), ("", "unknown"), ("/", "unknown")]
)
def test_a_card_is_named_in_letters_and_digits(told: str, card: str) -> None:
    assert owner_machine(of(healthy(), **{**CARD, "card-name": told}))["card"] == card


def test_words_of_a_server_are_signed_in_no_report() -> None:
    with pytest.raises(ConfigError):
        report(of(hostile(), **CARD))


@pytest.mark.parametrize(
    "client", ["", "aarch64", "mips, 4 cores, x", "aarch64, many cores", "aarch64, 99999 cores"]
)
def test_a_machine_that_the_journal_does_not_describe_is_refused(client: str) -> None:
    with pytest.raises(ConfigError):
        report(of(healthy(), client=client))


def test_every_name_of_ours_has_a_place_in_a_report() -> None:
    described = {
        **HEAD, "machine": owner_machine(of(healthy(), **CARD)), **owner_figures(of(healthy())),
        "checks": dict.fromkeys(ALL, "pass"), "failures": dict.fromkeys(FailureKind, 1),
    }  # fmt: skip
    key = CryptoSigner.generate_ed25519()
    for name in recipes():
        for profile in PROFILES:
            recipe = {"name": name, "use": "single", "digest": "a" * 16}
            assert sign_report({**described, "recipe": recipe, "profile": profile}, key).report.failures
