"""A bisection of the patchset itself: one carry among all is planted, and a probe finds it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomlkit
from kit import write_carry

from sparkwright.pipeline import BuildOptions, open_job

ROOT = Path(__file__).parents[2]
# Its greedy sampling on a CPU is Python; 0.33's is a compiled operator.
SERIES = "0.24"
SAMPLER = "vllm/v1/sample/sampler.py"
# Appended, so that no text of upstream's is needed.
SECOND_BEST = """

Sampler.greedy_sample = staticmethod(lambda logits: logits.topk(2, dim=-1).indices[..., 1])
"""
PROBE = """\
import torch
from probekit import expect
from vllm.v1.sample.sampler import Sampler


def probe():
    logits = torch.tensor([[0.1, 2.0, 1.0], [3.0, 0.0, 1.0]])
    expect(Sampler.greedy_sample(logits).tolist() == [1, 0], "greedy sampling takes another token")
"""

pytestmark = [pytest.mark.slow, pytest.mark.upstream]


def planting_patch() -> tuple[str, str, bytes]:
    """Return the pinned release, the digest of its sdist, and the patch that plants the fault."""
    with open_job(ROOT, BuildOptions(series=SERIES)) as job:
        repository, release = job.repository, job.spec.lock
        before = repository.files(job.pristine.tree, [SAMPLER])[SAMPLER]
        data = repository.blob(before.blob) + SECOND_BEST.encode()
        blob = repository.objects.write("blob", data)
        after = repository.objects.edit(
            job.pristine.tree, {SAMPLER: type(before)(blob=blob, mode=before.mode)}
        )
        assert after is not None
        return (
            release.release.version,
            release.sdist.sha256,
            repository.diff(job.pristine.tree, after, context=0),
        )


def list_carries(checkout: Path, names: list[str]) -> None:
    path = checkout / "patchsets" / f"{SERIES}.toml"
    patchset = tomlkit.parse(path.read_text())
    patchset["carries"] = names
    path.write_text(tomlkit.dumps(patchset))
    for words in (("add", "--all"), ("commit", "--quiet", "--message", "state")):
        identity = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        subprocess.run(["git", *identity, *words], cwd=checkout, check=True)


@pytest.mark.walk
def test_a_carry_that_spoils_sampling_is_found_among_the_whole_patchset(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("carries", "patchsets"):
        shutil.copytree(ROOT / name, checkout / name)
    shutil.copy(ROOT / "upstream.lock", checkout)
    subprocess.run(["git", "init", "--quiet", checkout], check=True)
    (checkout / ".gitignore").write_text(".sparkwright/\n")
    carries = list(tomlkit.parse((ROOT / "patchsets" / f"{SERIES}.toml").read_text())["carries"])
    list_carries(checkout, [])
    version, sdist, patch = planting_patch()
    revision = {"release": version, "sdist-sha256": sdist, "patch": f"{version}.patch"}
    write_carry(checkout / "carries", "second-best", patches={version: patch}, revision=[revision])
    middle = len(carries) // 2
    list_carries(checkout, [*carries[:middle], "second-best", *carries[middle:]])
    probe = tmp_path / "greedy.py"
    probe.write_text(PROBE)
    words = (
        "bisect",
        "--good=HEAD~1",
        "--bad=HEAD",
        f"--judge=probe {probe}",
        f"--series={SERIES}",
        "--json",
        "--root",
        str(checkout),
    )
    done = subprocess.run(
        [sys.executable, "-m", "sparkwright", *words], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["changes"] == ["second-best:added"]
    assert re.search("greedy sampling", found["calibration"]["signature"])
    assert len([step for step in found["steps"] if step["role"] == "search"]) <= 6
