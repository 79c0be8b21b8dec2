"""Which of many builds pip and uv take without a pinned version: series, platforms, kernels, yanks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wheelkit
from test_publish_clients import pip_download, uv

from sparkwright.publish.index import publish
from sparkwright.wheel.assemble import AssemblyPlan, assemble
from sparkwright.wheel.names import local_version


def version(release: str, revision: int, digest: str = "84110ebb", **marks: Any) -> str:
    return local_version(release, "spark", digest, revision=revision, **marks)


# The newest build for aarch64 of each series; digests that would be in another order, if they had one.
OLDER = version("0.24.0", 12, "00000001")
NATIVE = version("0.24.1", 11, "1a2b3c4d", arch="sm121a")
# Of one build, with FlashAttention from upstream's wheel.
MIXED = version("0.24.1", 11, "1a2b3c4d", arch="sm121a", compiled=5) + ".stock.fa2"
NEWER = version("0.33.0", 2, "00000001")
BUILDS = [
    ("aarch64", version("0.24.0", 4, "ffffffff")),
    ("aarch64", OLDER),
    ("aarch64", version("0.24.1", 11, "ffffffff")),
    ("aarch64", NATIVE),
    ("aarch64", MIXED),
    ("x86_64", version("0.24.1", 13, "ffffffff")),
    ("aarch64", version("0.33.0", 1, "ffffffff")),
    ("aarch64", NEWER),
    ("x86_64", version("0.33.0", 3, "ffffffff")),
    ("aarch64", version("0.33.0", 0, "ffffffff")),  # a working state
    ("aarch64", version("0.33.0", 99, "ffffffff", card="sm100a")),  # for another card
    ("aarch64", version("0.33.1.dev12+gabcdef123", 1)),  # not stable: of a commit after the release
]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("selection")
    for machine, name in BUILDS:
        upstream = wheelkit.upstream_wheel(folder / "upstream", machine)
        plan = AssemblyPlan(upstream, wheelkit.sha256(upstream), name, {"vllm/core.py": b"x = 1\n"})
        assemble(plan, folder / "dist")
    publish(folder / "dist")
    return folder / "dist"


def taken(index: str, tmp_path: Path, wanted: str = "vllm") -> set[str]:
    """The version that pip downloads, that uv resolves to and that uv would install, for aarch64."""
    (name,) = pip_download(index, wanted, tmp_path / "pip")
    platform = ("--python-platform", "aarch64-manylinux_2_28")
    compiled = uv("pip", "compile", "-", "--no-deps", "--index-url", index, *platform, stdin=wanted)
    installed = uv(
        "pip", "install", "--dry-run", "--no-deps", "--target", tmp_path / "uv", "--index-url", index,
        *platform, "--python-version", "3.12", wanted,
    )  # fmt: skip
    resolved = next(line for line in compiled.splitlines() if line.startswith("vllm=="))
    planned = next(line for line in installed.splitlines() if "+ vllm==" in line)
    return {name.split("-")[1], resolved.removeprefix("vllm=="), planned.partition("==")[2]}


def test_the_newest_stable_build_of_the_newest_series(dist: Path, tmp_path: Path) -> None:
    assert taken((dist / "simple").as_uri(), tmp_path) == {NEWER}


@pytest.mark.parametrize(("wanted", "expected"), [("vllm==0.24.*", NATIVE), ("vllm==0.24.0", OLDER)])
def test_a_release_of_an_older_series_by_its_number(
    dist: Path, tmp_path: Path, wanted: str, expected: str
) -> None:
    assert taken((dist / "simple").as_uri(), tmp_path, wanted) == {expected}


def test_partly_compiled_kernels_come_between_upstreams_and_compiled_ones(dist: Path, tmp_path: Path) -> None:
    index = (dist / "simple").as_uri()
    assert taken(index, tmp_path / "a", f"vllm!={NEWER},<=0.24.1,!={NATIVE}") == {MIXED}
    assert taken(index, tmp_path / "b", "vllm<=0.24.1") == {NATIVE}
