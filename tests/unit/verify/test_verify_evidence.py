"""A passed run of `sparkwright verify` is attached to its wheel, with what a policy asks about it."""

import json
from pathlib import Path

import pytest

from sparkwright.base.errors import MissingEvidenceError
from sparkwright.cli.verify import _attach
from sparkwright.engine.findings import Finding, Verdict
from sparkwright.publish.evidence import ChannelPolicy, require_evidence
from sparkwright.verify.journal import Run
from sparkwright.verify.options import VerifyOptions
from sparkwright.verify.results import Results

STABLE = ChannelPolicy(requires=("verify",), expires_days=1, capability="12.1")
DIGEST = "a" * 64


def attached(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verdict: Verdict, **options: object
) -> list[Path]:
    """Return the evidence that a run of that verdict leaves."""
    monkeypatch.setenv("SPARKWRIGHT_DIST", str(folder))
    manifest: dict[str, object] = {
        "title": "t",
        "wheel": {"name": "vllm-0.24.0-py3-none-any.whl", "sha256": DIGEST},
        "card": options.pop("card", "12.1"),
        "wheel-runtime": options.pop("runtime", ""),
    }
    match options.pop("of", "a wheel"):
        case "an address":
            del manifest["wheel"]
        case "an interpreter":
            manifest["wheel"] = "vLLM 0.24.0 of an environment"
    finding = Finding(check="boot", name="it starts", verdict=verdict, cause="", definition="")
    run = Run(manifest=manifest, facts={}, observations=(), findings=(finding,))
    _attach(Results(run, folder / "run-1", ()), VerifyOptions(**{"profile": "full", **options}))  # type: ignore[arg-type]
    return sorted(folder.glob("evidence/*/*.json"))


def test_a_whole_run_on_the_card_is_what_stable_asks_for(tmp_path, monkeypatch):
    (path,) = attached(tmp_path, monkeypatch, Verdict.PASS)
    assert (path.parent.name, path.name) == (DIGEST, "verify-run-1.json")
    (found,) = require_evidence(
        tmp_path / "vllm-0.24.0-py3-none-any.whl", DIGEST, "stable", STABLE, tmp_path / "evidence"
    )
    assert found.detail["capability"] == "12.1"


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.INVALID])
def test_what_did_not_pass_is_no_evidence(tmp_path, monkeypatch, verdict):
    assert attached(tmp_path, monkeypatch, verdict) == []


@pytest.mark.parametrize(
    "options", [{"of": "an address"}, {"of": "an interpreter"}, {"against": "other.whl"}]
)
def test_a_run_of_something_else_is_not_attached(tmp_path, monkeypatch, options):
    assert attached(tmp_path, monkeypatch, Verdict.PASS, **options) == []


@pytest.mark.parametrize(
    "options", [{"profile": "smoke"}, {"checks": ("boot",)}, {"levels": (1,)}, {"card": "9.0"}, {"card": ""}]
)
def test_less_than_the_whole_run_or_another_card_is_not_accepted(tmp_path, monkeypatch, options):
    (path,) = attached(tmp_path, monkeypatch, Verdict.PASS, **options)
    assert json.loads(path.read_bytes())["verdict"] == "passed"
    with pytest.raises(Exception, match="its policy requires evidence that is missing"):
        require_evidence(
            tmp_path / "vllm-0.24.0-py3-none-any.whl", DIGEST, "stable", STABLE, tmp_path / "evidence"
        )


def test_a_run_with_other_packages_than_the_promoted_ones_is_not_accepted(tmp_path, monkeypatch):
    wheel, folder = tmp_path / "vllm-0.24.0-py3-none-any.whl", tmp_path / "evidence"
    attached(tmp_path, monkeypatch, Verdict.PASS)  # unlocked: with what the index had that day
    with pytest.raises(MissingEvidenceError, match="other packages than the locked runtime"):
        require_evidence(wheel, DIGEST, "stable", STABLE, folder, runtime="b" * 64)
    attached(tmp_path, monkeypatch, Verdict.PASS, runtime="b" * 64)
    (found,) = require_evidence(wheel, DIGEST, "stable", STABLE, folder, runtime="b" * 64)
    assert found.detail["runtime"] == "b" * 64
    with pytest.raises(MissingEvidenceError, match="other packages than the locked runtime"):
        require_evidence(wheel, DIGEST, "stable", STABLE, folder)  # promoted without its runtime
