"""A stored reference, recorded and compared with, against simulated servers."""

import json
from pathlib import Path

import pytest
from test_cli_verify import simulator, verify

pytestmark = pytest.mark.slow
QUICK = ("--speed", "400")
ALONE = ("--checks", "reference", "--reference")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a reference of the simulated model."""
    folder = tmp_path_factory.mktemp("reference")
    with simulator(folder, *QUICK, "--seed", "1") as url:
        done = verify("--url", url, "--checks", "reference", "--out", "good", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "64 answers, 4096 tokens: compare servers with them by --reference" in done.stdout
    return folder / "good"


@pytest.mark.parametrize(("fault", "status"), [((), 0), (("--fault", "wrong-layer=0.6"), 83)])
def test_a_server_of_the_checkpoint_passes_and_one_with_a_wrong_layer_fails(
    reference: Path, tmp_path: Path, fault: tuple[str, ...], status: int
) -> None:
    with simulator(tmp_path, *QUICK, "--seed", "2", *fault) as url:
        done = verify(*ALONE, reference, "--url", url, "--out", "run", cwd=tmp_path)
    assert done.returncode == status, done.stderr + done.stdout
    told = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert told["run"]["reference"]
    assert {finding["check"] for finding in told["findings"]} == {"reference"}
    assert ("probabilities are" in done.stdout + done.stderr) is bool(status)


def test_another_model_is_refused_and_nothing_is_left(reference: Path, tmp_path: Path) -> None:
    with simulator(tmp_path, *QUICK, "--model", "org/Other-8B") as url:
        done = verify(*ALONE, reference, "--url", url, "--out", "run", cwd=tmp_path)
    assert done.returncode == 10
    assert (
        "the reference is of simulated/Qwen3.6-27B-NVFP4, and the server serves org/Other-8B" in done.stderr
    )
    assert not (tmp_path / "run").exists()


def test_the_check_joins_others_by_an_option_and_a_run_without_answers_is_refused(
    reference: Path, tmp_path: Path
) -> None:
    with simulator(tmp_path, *QUICK, "--seed", "3") as url:
        asked = ("--url", url, "--profile", "demo", "--checks", "coherence", "--reference", reference)
        done = verify(*asked, "--out", "run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told = json.loads((tmp_path / "run" / "verdict.json").read_text())
        assert {finding["check"] for finding in told["findings"]} == {"coherence", "reference"}
        part = tmp_path / "part"
        part.mkdir()
        (part / "journal.jsonl").write_bytes((reference / "journal.jsonl").read_bytes()[:-40])
        refused = verify(*asked[:-1], part, "--out", "other", cwd=tmp_path)
    assert refused.returncode == 10
    assert "holds no reference that can be used" in refused.stderr
