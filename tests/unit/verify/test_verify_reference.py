"""A stored reference: how a run records it, the refusal of another model, and the verdicts on answers."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from verify_kit import all_but_one, context, profile

from sparkwright.base.errors import ConfigError
from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import BootFacts, MetricsSnapshot, Observation, Sample, TokenLogprobs
from sparkwright.verify.checks.reference import Reference, load_reference, reference_check, require_same_model
from sparkwright.verify.journal import Concluded, Journal, Manifest, Measured
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of, profile_of

NAME = "org/Model-27B"
TOKENS = 24
WORDS = 12


def answered(
    cell: Cell,
    seed: int = 0,
    *,
    noise: float = 0.01,
    error: Callable[[Cell], float] = lambda _: 0.0,
    more_tokens: int = 0,
) -> Observation:
    """Greedy answers to *cell*, by logits that follow from prompt and position."""
    rounding, samples = random.Random(f"{cell.name} {seed}"), []
    for prompt in cell.prompts:
        ids, logprobs = [], []
        for position in range(TOKENS):
            draw = random.Random(f"{prompt.name} {position} {ids}")
            logits = {f"token_id:{word}": draw.gauss(0, 4) for word in range(WORDS)}
            wrong = {token: draw.gauss(0, error(cell)) for token in logits}
            logits = {token: x + wrong[token] + rounding.gauss(0, noise) for token, x in logits.items()}
            total = math.log(sum(map(math.exp, logits.values())))
            top = {t: x - total for t, x in sorted(logits.items(), key=lambda entry: -entry[1])[:8]}
            token = next(iter(top))
            ids.append(int(token.partition(":")[2]))
            logprobs.append(TokenLogprobs(token, top[token], top))
        samples.append(
            Sample(
                prompt=prompt.name, category=prompt.category, started=1, ended=2,
                prompt_tokens=len(prompt.text) + more_tokens, output_tokens=TOKENS, token_ids=tuple(ids),
                logprobs=tuple(logprobs),
            )
        )  # fmt: skip
    counters = {"generation_tokens": 0.0, "requests": 0.0, "running": 0.0, "waiting": 0.0, "start_s": 1.0}
    before, after = (MetricsSnapshot(at=at, **counters) for at in (0, 1))
    return Observation(cell=cell, samples=tuple(samples), before=before, after=after)


RECORDING = reference_check(None)


def recorded(**server: Any) -> list[Observation]:
    return [answered(cell, **server) for cell in RECORDING.cells(context(profile()))]


def made() -> Reference:
    seen = recorded()
    answers, again = (tuple(o for o in seen if o.cell.load.concurrency == level) for level in (1, 8))
    return Reference(answers, again, NAME)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return made()


def judged(reference: Reference, seed: int = 1, **server: Any) -> list[Finding]:
    check, where = reference_check(reference), context(profile())
    return check.judge(where, [answered(cell, seed, **server) for cell in check.cells(where)])


def verdicts(findings: Sequence[Finding]) -> list[Verdict]:
    return [finding.verdict for finding in findings]


FAIL, PASS, INVALID = Verdict.FAIL, Verdict.PASS, Verdict.INVALID


def of_kind(kind: str, error: float) -> Callable[[Cell], float]:
    return lambda cell: error if kind in {"", cell.tags["kind"]} else 0.0


@pytest.mark.parametrize(
    ("server", "expected", "says", "silent"),
    [
        *(({"seed": seed, "error": of_kind("", 0.3)}, (FAIL, None, PASS), "raw prompts: probabilities", "-")
          for seed in range(3)),
        ({"error": of_kind("raw", 0.2)}, (FAIL, None, None), "beyond 0.0050", "chat"),
        ({"error": of_kind("long", 1.5)}, (FAIL, FAIL, None), "long prompts: probabilities", "raw"),
        ({"more_tokens": 1}, (None, None, INVALID), "another tokenizer or chat template", "-"),
    ],
    ids=[*["wrong weights"] * 3, "a small error", "long prompts", "another tokenizer"],
)  # fmt: skip
def test_each_error_fails_what_it_shows_in(reference, server, expected, says, silent):
    findings = judged(reference, **server)
    for finding, verdict in zip(findings, expected, strict=True):
        assert verdict in {None, finding.verdict}
    worst = findings[0] if expected[0] else findings[2]
    assert says in worst.cause
    assert f"{silent} prompts" not in worst.cause


def test_a_reference_that_is_far_from_itself_raises_the_limit() -> None:
    noisy = made()
    noisy = replace(noisy, again=tuple(answered(one.cell, 5, noise=0.4) for one in noisy.again))
    assert judged(noisy, noise=0.4)[0].verdict is not Verdict.FAIL
    assert judged(made(), noise=0.4)[0].verdict is Verdict.FAIL


def test_missing_cells_never_pass(reference: Reference) -> None:
    check, where = reference_check(reference), context(profile())
    seen = [answered(cell, 1) for cell in check.cells(where)]
    assert not any(PASS in verdicts(check.judge(where, some)) for some in all_but_one(seen))


def test_a_reference_adds_the_check_to_the_profile() -> None:
    assert profile_of(VerifyOptions(reference="file")).checks[-1] == "reference"
    assert "reference" not in profile_of(VerifyOptions()).checks
    assert profile_of(VerifyOptions(reference="file", checks=("reference",))).checks == ("reference",)


def test_the_file_of_a_reference_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="none"):
        plan_of(VerifyOptions(url="http://server", reference=str(tmp_path / "none")))


def cells_with(max_model_len: int) -> tuple[Cell, ...]:
    facts = {("main", 0): BootFacts(max_model_len=max_model_len)}
    return RECORDING.cells(replace(context(profile()), facts=facts))


def test_prompts_are_raw_chats_and_documents_that_fit() -> None:
    cells = cells_with(8192)
    assert [cell.name for cell in cells] == [
        f"{kind} c={c}" for c in (1, 8) for kind in ("raw", "chat", "long")
    ]
    assert [len(cell.prompts) for cell in cells[:3]] == [16, 8, 8]
    assert [cell.load.chat for cell in cells[:3]] == [False, True, False]
    longest = max(len(prompt.text.split()) for prompt in cells[2].prompts)
    short = max(len(prompt.text.split()) for prompt in cells_with(1024)[2].prompts)
    assert 1500 < longest < 2500
    assert short < 600


def test_answers_are_recorded_if_all_of_them_have_probabilities() -> None:
    seen = recorded()
    (finding,) = RECORDING.judge(context(profile()), seen)
    assert (finding.verdict, finding.measured) == (PASS, {"answers": 64, "tokens": 64 * TOKENS})
    bare = tuple(msgspec.structs.replace(one, logprobs=()) for one in seen[0].samples)
    seen[0] = msgspec.structs.replace(seen[0], samples=bare)
    (finding,) = RECORDING.judge(context(profile()), seen)
    assert finding.verdict is Verdict.INVALID
    assert not any(PASS in verdicts(RECORDING.judge(context(profile()), some)) for some in all_but_one(seen))


def written(folder: Path, seen: Sequence[Observation]) -> Path:
    """A run that recorded *seen*."""
    manifest = Manifest("run", "2026-11-27T10:00:00+00:00", "server", {"main-model": NAME}, {}, {})
    with Journal(folder, manifest) as journal:
        for number, one in enumerate(seen):
            journal.write(Measured(id=str(number), observation=one))
        journal.write(Concluded(findings=tuple(RECORDING.judge(context(profile()), seen))))
    return folder


def test_a_run_that_recorded_answers_is_a_reference(tmp_path: Path, reference: Reference) -> None:
    found = load_reference(written(tmp_path / "run", recorded()))
    assert (found.answers, found.again, found.model) == (reference.answers, reference.again, NAME)
    assert found.created.startswith("2026")
    assert found.digest == load_reference(tmp_path / "run").digest
    other = load_reference(written(tmp_path / "other", recorded(seed=1)))
    assert other.digest != found.digest


def test_a_run_that_recorded_less_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no reference") as caught:
        load_reference(written(tmp_path / "part", recorded()[1:]))
    assert caught.value.because == "its check 'reference' did not pass"
    manifest = Manifest("run", "", "server", {}, {}, {})
    Journal(tmp_path / "none", manifest).close()
    with pytest.raises(ConfigError) as caught:
        load_reference(tmp_path / "none")
    assert caught.value.because == "it has no check 'reference'"


@pytest.mark.parametrize("model", [NAME, "/models/Model-27B/"])
def test_the_same_model_elsewhere_is_not(reference: Reference, model: str) -> None:
    require_same_model(reference, model, "http://server")
    require_same_model(replace(reference, model=""), "another", "http://server")
