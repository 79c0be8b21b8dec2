"""A stored reference: its file, the refusal of another model, and the verdicts on a server's answers."""

from __future__ import annotations

import gzip
import hashlib
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from verify_kit import all_but_one, context, profile

from sparkwright.base.errors import ConfigError, EndpointError, NewerFormatError
from sparkwright.engine.cell import Cell
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.engine.observations import MetricsSnapshot, Observation, Sample, TokenLogprobs
from sparkwright.verify.checks.reference import reference_check
from sparkwright.verify.make_reference import cells_of
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.plan import plan_of, profile_of
from sparkwright.verify.reference import (
    ModelIdentity,
    Reference,
    load_reference,
    reference_digest,
    require_same_model,
    trimmed,
    write_reference,
)

NAME = "org/Model-27B"
TOKENS = 24
WORDS = 12
SEEDS = range(20)


def answered(
    cell: Cell,
    seed: int = 0,
    *,
    noise: float = 0.01,
    error: Callable[[Cell], float] = lambda _: 0.0,
    more_tokens: int = 0,
) -> Observation:
    """Greedy answers to *cell*, by logits that follow from prompt and position.

    Args:
        cell: the cell.
        seed: of the rounding.
        noise: deviation of logits by rounding.
        error: the same of an error by the kind of prompts, equal at each time.
        more_tokens: tokens of prompts beyond those of the reference.
    """
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


def made(**identity: Any) -> Reference:
    seen = [trimmed(answered(cell)) for cell in cells_of(32, 8192, 0)]
    levels = (1, 8)
    answers, again = (tuple(o for o in seen if o.cell.load.concurrency == level) for level in levels)
    told = {"model": NAME, "tokens": "abc", "max_model_len": 8192, **identity}
    return Reference(identity=ModelIdentity(**told), answers=answers, again=again)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return made()


def judged(reference: Reference, seed: int = 1, **server: Any) -> list[Finding]:
    check, where = reference_check(reference), context(profile())
    return check.judge(where, [answered(cell, seed, **server) for cell in check.cells(where)])


def verdicts(findings: Sequence[Finding]) -> list[Verdict]:
    return [finding.verdict for finding in findings]


# The check ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_server_passes(reference: Reference, seed: int) -> None:
    findings = judged(reference, seed + 1)
    assert verdicts(findings) == [Verdict.PASS] * 3, [finding.cause for finding in findings]
    assert findings[0].measured["tokens compared"] > 1000


def test_a_server_that_is_farther_than_the_reference_from_itself_is_said_to_be(reference: Reference) -> None:
    findings = judged(reference, error=lambda _: 0.05)
    assert verdicts(findings) == [Verdict.PASS] * 3
    assert "farther from the reference's than its server is from itself" in findings[0].warnings[0]
    assert not any(judged(reference, seed)[0].warnings for seed in range(5))


def of_kind(kind: str, error: float) -> Callable[[Cell], float]:
    return lambda cell: error if kind in {"", cell.tags["kind"]} else 0.0


FAIL, PASS, INVALID = Verdict.FAIL, Verdict.PASS, Verdict.INVALID


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
def test_each_error_fails_what_it_shows_in(
    reference: Reference, server: dict[str, Any], expected: tuple[Verdict | None, ...], says: str, silent: str
) -> None:
    findings = judged(reference, **server)
    for finding, verdict in zip(findings, expected, strict=True):
        assert verdict in {None, finding.verdict}
    worst = findings[0] if expected[0] else findings[2]
    assert says in worst.cause
    assert f"{silent} prompts" not in worst.cause


def test_a_reference_that_is_far_from_itself_raises_the_limit() -> None:
    noisy = made()
    again = tuple(answered(one.cell, 5, noise=0.4) for one in noisy.again)
    noisy = msgspec.structs.replace(noisy, again=again)
    assert judged(noisy, noise=0.4)[0].verdict is not Verdict.FAIL
    assert judged(made(), noise=0.4)[0].verdict is Verdict.FAIL


def test_missing_cells_never_pass(reference: Reference) -> None:
    check, where = reference_check(reference), context(profile())
    seen = [answered(cell, 1) for cell in check.cells(where)]
    assert not any(PASS in verdicts(check.judge(where, some)) for some in all_but_one(seen))


def test_without_a_reference_it_is_not_applicable() -> None:
    assert verdicts(reference_check(None).judge(context(), [])) == [Verdict.NOT_APPLICABLE]


def test_a_reference_adds_the_check_to_the_profile() -> None:
    assert profile_of(VerifyOptions(reference="file")).checks[-1] == "reference"
    assert "reference" not in profile_of(VerifyOptions()).checks
    assert profile_of(VerifyOptions(reference="file", checks=("reference",))).checks == ("reference",)


def test_a_reference_does_not_go_with_a_comparison_of_speed_and_its_file_must_be_there(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        plan_of(VerifyOptions(recipe="smoke", against="simulator", simulator=True, reference="file"))
    with pytest.raises(ConfigError, match="none cannot be used"):
        plan_of(VerifyOptions(url="http://server", reference=str(tmp_path / "none")))


# The prompts -------------------------------------------------------------------------------------------


def test_prompts_are_raw_chats_and_documents_that_fit() -> None:
    cells = cells_of(32, 8192, 0)
    assert [cell.name for cell in cells] == [
        f"{kind} c={c}" for c in (1, 8) for kind in ("raw", "chat", "long")
    ]
    assert [len(cell.prompts) for cell in cells[:3]] == [16, 8, 8]
    assert [cell.load.chat for cell in cells[:3]] == [False, True, False]
    longest = max(len(prompt.text.split()) for prompt in cells[2].prompts)
    short = max(len(prompt.text.split()) for prompt in cells_of(32, 1024, 0)[2].prompts)
    assert 1500 < longest < 2500
    assert short < 600


# The file ----------------------------------------------------------------------------------------------


def test_a_reference_comes_back_as_it_was_written(reference: Reference, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "reference.json.gz"
    digest = write_reference(reference, path)
    assert load_reference(path) == reference
    assert reference_digest(path) == digest
    first = path.read_bytes()
    assert write_reference(reference, path) == digest
    assert path.read_bytes() == first
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(first))
    assert load_reference(plain) == reference


def test_a_file_from_before_a_field_was_added_is_read(reference: Reference, tmp_path: Path) -> None:
    """Fields of requests and answers are added in time; the digest is of what was written."""
    path = tmp_path / "reference.json.gz"
    write_reference(reference, path)
    content = msgspec.json.decode(gzip.decompress(path.read_bytes()))["content"]
    for observation in (*content["answers"], *content["again"]):
        del observation["cell"]["load"]["tools"], observation["samples"][0]["due"]
    older = msgspec.json.encode(content)
    digest = hashlib.sha256(older).hexdigest()
    file = {"format": 1, "digest": digest, "content": msgspec.Raw(older)}
    path.write_bytes(gzip.compress(msgspec.json.encode(file)))
    assert load_reference(path) == reference
    assert reference_digest(path) == digest


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"\x1f\x8bnonsense",
        lambda data: gzip.compress(gzip.decompress(data).replace(b"token_id:3", b"token_id:4", 1)),
        lambda data: gzip.compress(b'{"format": 1}'),
        lambda data: gzip.compress(b"[]"),
    ],
)
def test_a_damaged_file_is_refused(
    reference: Reference, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "reference.json.gz"
    write_reference(reference, path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"reference\.json\.gz is no reference that can be used"):
        load_reference(path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    path.write_text('{"format": 2, "more": 1}')
    with pytest.raises(NewerFormatError):
        load_reference(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_reference(tmp_path / "none")


# The model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("identity", "because"),
    [
        ({"model": "org/Model-8B"}, "the reference is of org/Model-27B, and the server serves org/Model-8B"),
        ({"tokens": "def"}, "their tokenizers differ"),
        ({"max_model_len": 512}, "takes 512 at the most"),
    ],
)
def test_another_model_is_refused(reference: Reference, identity: dict[str, Any], because: str) -> None:
    found = ModelIdentity(**{"model": NAME, "tokens": "abc", "max_model_len": 32_768, **identity})
    with pytest.raises(EndpointError, match="cannot be compared") as caught:
        require_same_model(reference, found, "http://server")
    assert because in caught.value.because


@pytest.mark.parametrize(
    "identity",
    [{}, {"model": "/models/Model-27B/"}, {"tokens": ""}, {"max_model_len": -1}, {"version": "0.33"}],
)
def test_the_same_model_elsewhere_is_not(reference: Reference, identity: dict[str, Any]) -> None:
    found = ModelIdentity(**{"model": NAME, "tokens": "abc", "max_model_len": 32_768, **identity})
    require_same_model(reference, found, "http://server")
