"""What pip and uv get from servers that were published to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import target_kit
import wheelkit
from test_publish_targets import credentials
from wheelkit import sha256

from sparkwright.publish import publish
from sparkwright.publish.targets import open_target
from sparkwright.wheel import AssemblyPlan, assemble, local_version

VERSIONS = [local_version("0.24.0", "spark", "aaaaaaaa", revision=number) for number in (9, 10)]
_ALONE = ("--no-deps", "--only-binary", ":all:")
INSTALL = {
    "pip": ("pip", "--isolated", "install", *_ALONE, "--platform", "manylinux_2_28_aarch64"),
    "uv": ("uv", "pip", "install", *_ALONE, "--no-cache", "--python-platform", "aarch64-manylinux_2_28"),
}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of two builds."""
    folder = tmp_path_factory.mktemp("dist")
    upstream = wheelkit.upstream_wheel(folder / "upstream", "aarch64")
    for version in VERSIONS:
        plan = AssemblyPlan(upstream, wheelkit.sha256(upstream), version, {"vllm/core.py": b"x = 1\n"})
        assemble(plan, folder / "dist")
    publish(sorted((folder / "dist").glob("*.whl")), folder / "dist")
    return folder / "dist"


def send(dist: Path, address: str) -> None:
    """Publish the folder *dist* to *address*, wheels first."""
    target = open_target(address)
    files = [at for at in dist.rglob("*") if at.is_file() and not at.name.startswith(".")]
    for at in sorted(files, key=lambda at: "simple" in at.parts):
        path = at.relative_to(dist).as_posix()
        if "simple" in at.parts:
            target.replace(path, at.read_bytes(), expected=None)
        else:
            target.put_file(path, at, sha256(at))


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_pip_and_uv_install_the_newest_build_from_a_server(
    kind: str, dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials(monkeypatch)
    (tmp_path / "server").mkdir()
    serving = target_kit.s3_server if kind == "s3" else target_kit.web_server
    with serving(tmp_path / "server") as server:
        address, index = str(tmp_path / "server"), f"{server}/simple"
        if kind == "s3":
            address, index = f"s3://wheels/p?endpoint={server}", f"{server}/wheels/p/simple"
        send(dist, address)
        if kind == "s3":
            target_kit.make_public(server)
        environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
        for name, argv in INSTALL.items():
            into = str(tmp_path / name)
            done = subprocess.run(
                [sys.executable, "-m", *argv, "--target", into, "--index-url", index, "vllm"],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            assert (tmp_path / name / f"vllm-{VERSIONS[1]}.dist-info").is_dir()
