"""Triton kernels compiled for a GB10 in the environment of probes: planted ones, and latent attention's."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.git.repository import open_repository
from sparkwright.probe.environment import environment_key, prepare_environment
from sparkwright.probe.launches import LIMIT, KernelSurvey
from sparkwright.store.paths import Store, open_store

PLATFORM = """
from collections import namedtuple


class DeviceCapability(namedtuple("DeviceCapability", "major minor")):
    pass
"""
KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def doubled(x):
    return x + x


@triton.jit
def product(left, right, out, SIZE: tl.constexpr, DEPTH: tl.constexpr, LOOPS: tl.constexpr):
    rows, deep = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    total = tl.zeros([SIZE, SIZE], tl.float32)
    for step in range(LOOPS):
        a = tl.load(left + rows[:, None] * DEPTH * LOOPS + deep[None, :] + step * DEPTH)
        b = tl.load(right + (deep[:, None] + step * DEPTH) * SIZE + rows[None, :])
        total += tl.dot(a, b)
    tl.store(out + rows[:, None] * SIZE + rows[None, :], doubled(total))


@triton.autotune([triton.Config({"DEPTH": 64}, num_stages=stages) for stages in (2, 5)], key=[])
@triton.jit
def tuned(left, right, out, SIZE: tl.constexpr, DEPTH: tl.constexpr, LOOPS: tl.constexpr):
    rows, deep = tl.arange(0, SIZE), tl.arange(0, DEPTH)
    total = tl.zeros([SIZE, SIZE], tl.float32)
    for step in range(LOOPS):
        a = tl.load(left + rows[:, None] * DEPTH * LOOPS + deep[None, :] + step * DEPTH)
        b = tl.load(right + (deep[:, None] + step * DEPTH) * SIZE + rows[None, :])
        total += tl.dot(a, b)
    tl.store(out + rows[:, None] * SIZE + rows[None, :], total)


@triton.jit
def forgotten(out):
    tl.store(out, 1)


def multiply(stages):
    a = torch.zeros(128, 512, dtype=torch.bfloat16, device="cuda")
    out = torch.zeros(128, 128, device="cuda")
    product[(1,)](a, a, out, SIZE=128, DEPTH=64, LOOPS=8, num_stages=stages)


def multiply_tuned():
    a = torch.zeros(128, 512, dtype=torch.bfloat16, device="cuda")
    tuned[(1,)](a, a, torch.zeros(128, 128, device="cuda"), SIZE=128, LOOPS=8)
"""
TESTS = """
import pytest
import torch
from vllm.planted import multiply


@pytest.mark.parametrize("stages", [4, 3])
def test_multiply(stages):
    multiply(stages)
    assert torch.zeros(1, device="cuda").item() == 1  # nothing was run
"""
LAUNCHES = """
from functools import partial


def cases(tree):
    from vllm import planted

    yield "healthy", partial(planted.multiply, 2)
    yield "tuned", planted.multiply_tuned
    if (tree / "vllm" / "broken.py").is_file():
        yield "planted", partial(planted.multiply, 5)
        yield "odd", lambda: 1 / 0
"""


@pytest.fixture(scope="module")
def prepared() -> Path:
    """The environment of probes, which is made once and shared."""
    return prepare_environment(open_store()).parents[1]


@pytest.fixture
def survey(prepared: Path, tmp_path: Path) -> Iterator[KernelSurvey]:
    """A survey with a store of its own, but for the environment."""
    store = Store(tmp_path / "store")
    store.environments.mkdir(parents=True)
    (store.environments / environment_key()).symlink_to(prepared)
    launches = tmp_path / "launches.py"
    launches.write_text(LAUNCHES, encoding="utf-8")
    repository = open_repository(store.git)
    yield KernelSurvey(store, repository, launches=launches, jobs=1)
    repository.close()


def planted(survey: KernelSurvey, folder: Path, *more: str) -> str:
    """Return id of a tree with two kernels, their test, and empty modules called *more*."""
    files = {
        "vllm/__init__.py": "",
        "vllm/platforms/__init__.py": "",
        "vllm/platforms/interface.py": PLATFORM,
        "vllm/platforms/cuda.py": "class CudaPlatformBase:\n    pass\n",
        "vllm/planted.py": KERNELS,
        "tests/test_planted.py": TESTS,
        **{f"vllm/{name}.py": "" for name in more},
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for words in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    tree = subprocess.run(["git", "write-tree"], cwd=folder, check=True, capture_output=True, text=True)
    pack = subprocess.run(
        ["git", "pack-objects", "--revs", "--stdout", "-q"],
        cwd=folder, check=True, capture_output=True, input=tree.stdout.encode(),
    )  # fmt: skip
    subprocess.run(["git", "unpack-objects", "-q"], cwd=survey.store.git, check=True, input=pack.stdout)
    return tree.stdout.strip()


@pytest.mark.walk  # compiles by Triton; test_probe_launches.py judges planted launches
def test_planted_launches_are_found_and_their_healthy_twin_is_stored(survey, tmp_path, monkeypatch):
    tree = planted(survey, tmp_path / "tree")
    healthy = survey.survey(tree, "0.33.0")
    assert healthy.fresh == len(healthy.launches)
    assert healthy.faults() == []
    by_origin = {one.origin: one for one in healthy.launches.values() if not one.tuning}
    assert by_origin["healthy"].shared <= LIMIT
    assert by_origin["healthy"].registers > 0
    assert by_origin["healthy"].helpers == ("vllm.planted.doubled",)
    assert set(by_origin) == {"healthy", "upstream's test_planted.py"}
    tuned = [one for one in healthy.launches.values() if one.tuning]
    assert sorted(one.shared > LIMIT for one in tuned) == [False, True]  # tuning takes the one that fits
    assert healthy.left() == {"no launch of it is known": ["vllm.planted.forgotten"]}
    assert len(healthy.compiled()) == 3

    broken = survey.survey(planted(survey, tmp_path / "tree", "broken"), "0.33.0")
    fault, odd = sorted(broken.faults(), reverse=True)
    assert fault.startswith("vllm.planted.product: ")
    assert fault.endswith(f" bytes of shared memory, more than {LIMIT} (planted)")
    assert odd == "odd could not be asked for: ZeroDivisionError: division by zero"
    assert broken.fresh == 1  # the others were compiled for the first tree

    monkeypatch.setattr("sparkwright.probe.launches.run_limited", None)  # no child is started
    again = survey.survey(tree, "0.33.0")
    assert (again.fresh, again.launches) == (0, healthy.launches)
