"""The index as real clients read it: pip, uv and pypi-simple, from a server and from files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import wheelkit
from static_server import served

from sparkwright.publish.index import publish
from sparkwright.wheel.assemble import AssemblyPlan, assemble
from sparkwright.wheel.names import local_version

PLATFORM = "manylinux_2_28_aarch64"
VERSIONS = [local_version("0.24.0", "spark", digit * 8, revision=3) for digit in "ab"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions for one platform and one for another, published."""
    folder = tmp_path_factory.mktemp("publish")
    return published(folder, [("aarch64", VERSIONS[0]), ("aarch64", VERSIONS[1]), ("x86_64", VERSIONS[0])])


def published(folder: Path, builds: list[tuple[str, str]]) -> Path:
    """An index over *builds*, each a machine and a version."""
    for machine, version in builds:
        upstream = wheelkit.upstream_wheel(folder / "upstream", machine)
        plan = AssemblyPlan(upstream, wheelkit.sha256(upstream), version, {"vllm/core.py": b"x = 1\n"})
        assemble(plan, folder / "dist")
    publish(folder / "dist")
    return folder / "dist"


@pytest.fixture(scope="module")
def address(dist: Path) -> Iterator[str]:
    """The index on a plain static server."""
    with served(dist) as (root, _):
        yield f"{root}/simple"


def pip_download(index: str, wanted: str, target: Path, *options: str) -> list[str]:
    subprocess.run(
        [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "download", "--no-deps",
         "--no-cache-dir", "--only-binary=:all:", "--platform", PLATFORM, "--index-url", index, "-d", target,
         *options, wanted],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [path.name for path in target.iterdir()]


def test_pip_downloads_from_a_server(address: str, tmp_path: Path) -> None:
    names = pip_download(address, f"vllm=={VERSIONS[1]}", tmp_path)
    assert names == [f"vllm-{VERSIONS[1]}-cp38-abi3-{PLATFORM}.whl"]


def test_pip_refuses_a_wheel_that_was_changed_after_publishing(dist: Path, tmp_path: Path) -> None:
    copy = tmp_path / "dist"
    shutil.copytree(dist, copy)
    wheel = copy / f"vllm-{VERSIONS[0]}-cp38-abi3-{PLATFORM}.whl"
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        pip_download((copy / "simple").as_uri(), f"vllm=={VERSIONS[0]}", tmp_path / "out")
    assert "DO NOT MATCH THE HASHES" in caught.value.stderr


def uv(*arguments: str | Path, stdin: str = "") -> str:
    program = shutil.which("uv") or Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [program, "--no-config", "--no-cache", "--no-python-downloads", *arguments],
        input=stdin, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_uv_resolves_to_our_digest(dist: Path, address: str, scheme: str) -> None:
    index = address if scheme == "http" else (dist / "simple").as_uri()
    out = uv(
        "pip", "compile", "-", "--no-deps", "--generate-hashes", "--index-url", index,
        "--python-platform", "aarch64-manylinux_2_28", "--python-version", "3.12",
        stdin=f"vllm=={VERSIONS[0]}",
    )  # fmt: skip
    assert f"vllm=={VERSIONS[0]}" in out
    for platform in (PLATFORM, "manylinux_2_28_x86_64"):
        wheel = dist / f"vllm-{VERSIONS[0]}-cp38-abi3-{platform}.whl"
        assert f"sha256:{wheelkit.sha256(wheel)}" in out


def test_uv_installs_what_the_wheel_holds(address: str, tmp_path: Path) -> None:
    uv(
        "pip", "install", "--no-deps", "--target", tmp_path, "--index-url", address,
        "--python-platform", "aarch64-manylinux_2_28", "--python", sys.executable, f"vllm=={VERSIONS[1]}",
    )  # fmt: skip
    assert (tmp_path / "vllm/core.py").read_bytes() == b"x = 1\n"
    assert (tmp_path / f"vllm-{VERSIONS[1]}.dist-info/sparkwright/providers.json").is_file()


def test_pypi_simple_reads_the_page(dist: Path, address: str) -> None:
    from pypi_simple import ProjectPage

    data = (dist / "simple/vllm/index.html").read_text()
    page = ProjectPage.from_html("vllm", data, base_url=f"{address}/vllm/")
    assert page.repository_version == "1.4"
    assert [package.version for package in page.packages] == [VERSIONS[0], VERSIONS[0], VERSIONS[1]]
    for package in page.packages:
        wheel = dist / package.filename
        assert package.url.startswith(address.removesuffix("simple"))
        assert "%2Bspark" in package.url
        assert package.digests == {"sha256": wheelkit.sha256(wheel)}
        assert package.requires_python == "<3.15,>=3.10"
        assert package.has_metadata
        assert package.metadata_digests == {"sha256": wheelkit.sha256(Path(f"{wheel}.metadata"))}


def test_beside_upstreams_index_a_pinned_release_gives_the_highest_revision(tmp_path: Path) -> None:
    versions = [local_version("0.24.0", "spark", "f" * 8, revision=number) for number in (2, 10)]
    ours = (published(tmp_path / "ours", [("aarch64", version) for version in versions]) / "simple").as_uri()
    theirs = (
        published(tmp_path / "theirs", [("aarch64", "0.24.0"), ("aarch64", "0.25.0")]) / "simple"
    ).as_uri()
    newest = f"vllm-{versions[1]}-cp38-abi3-{PLATFORM}.whl"
    assert pip_download(theirs, "vllm==0.24.0", tmp_path / "pip", "--extra-index-url", ours) == [newest]
    assert pip_download(theirs, "vllm", tmp_path / "any", "--extra-index-url", ours) == [
        f"vllm-0.25.0-cp38-abi3-{PLATFORM}.whl"
    ]
    out = uv(
        "pip", "compile", "-", "--no-deps", "--index", ours, "--default-index", theirs,
        "--python-platform", "aarch64-manylinux_2_28", stdin="vllm==0.24.0",
    )  # fmt: skip
    assert f"vllm=={versions[1]}\n" in out
