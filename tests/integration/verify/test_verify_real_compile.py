"""`sparkwright verify --checks compile` at a real vLLM, which some seeded requests end on a CPU."""

import re
from pathlib import Path

import pytest
from real_kit import SEEDED, make_server, show, verify

pytestmark = [pytest.mark.walk, pytest.mark.upstream]

SIZES = ("--profile", "cpu", "--checks", "compile")


def test_nothing_is_compiled_after_the_warm_up(tmp_path: Path) -> None:
    server = make_server(SEEDED)
    run = verify(tmp_path / "run", "--recipe", server.recipe, "--python", server.tree.python, *SIZES)
    show("repaired", run)
    findings = {one["name"]: one["verdict"] for one in run.findings}
    assert findings["nothing is compiled after the warm-up"] == "pass", run.told


def test_seeded_requests_that_end_the_releases_engine_are_named(tmp_path: Path) -> None:
    server = make_server()
    run = verify(tmp_path / "run", "--recipe", server.pieces, "--python", server.tree.python, *SIZES)
    causes = run.causes("fail")
    show("seeded", run)
    print("", *causes, sep="\n  ")  # noqa: T201
    assert run.verdict["verdict"] == "fail", run.told
    assert any(re.search(r"sampled c=4 first.*a request with a seed whose prompt", cause) for cause in causes)
