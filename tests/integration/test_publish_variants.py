"""Wheel variants in an index: uv's preview takes them for the card, every other client the plain wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wheelkit
from packaging.version import Version
from test_publish_clients import pip_download, uv

from sparkwright.base.errors import WheelError
from sparkwright.native.model import Target
from sparkwright.publish import publish, wheels_in
from sparkwright.wheel import AssemblyPlan, assemble, kernels_record, local_version
from sparkwright.wheel.record import parse_record
from sparkwright.wheel.variant import label_of, make_variant

NATIVE = local_version("0.24.0", "spark", "1a2b3c4d", revision=4, arch="sm121a")
PLAIN = local_version("0.24.0", "spark", "5e6f7a8b", revision=4)
NAME = f"vllm-{NATIVE}-cp38-abi3-manylinux_2_28_x86_64"
INFO = f"vllm-{NATIVE}.dist-info"
# The first version that was tried; the preview's format has changed before.
SUPPORTED = Version("0.13.8")


def build(folder: Path, version: str, arch: str = "") -> Path:
    upstream = wheelkit.upstream_wheel(folder / "upstream", "x86_64")
    record = {"kernels.json": kernels_record(Target("x86_64", arch), "t", compiled={}, upstream={})}
    plan = AssemblyPlan(
        upstream, wheelkit.sha256(upstream), version, {"vllm/core.py": b"x = 1\n"}, record if arch else {}
    )
    return assemble(plan, folder / "dist").path


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A native wheel and its variant, and an older one with upstream's kernels."""
    folder = tmp_path_factory.mktemp("variants")
    publish([build(folder, PLAIN), build(folder, NATIVE, "12.1a")], folder / "dist", variants=True)
    return folder / "dist"


def test_the_variant_is_the_wheel_and_one_more_file(dist: Path, tmp_path: Path) -> None:
    plain = wheelkit.unpack(dist / f"{NAME}.whl")
    variant = wheelkit.unpack(dist / f"variants/{NAME}-sm121a.whl")
    metadata = json.loads(variant.pop(f"{INFO}/variant.json"))
    assert metadata["variants"] == {"sm121a": {"nvidia": {"sm_arch": ["121_real"]}}}
    record = parse_record(variant.pop(f"{INFO}/RECORD"))
    assert set(record) == {*variant, f"{INFO}/variant.json", f"{INFO}/RECORD"}
    assert variant == {name: data for name, data in plain.items() if name != f"{INFO}/RECORD"}
    again = make_variant(dist / f"{NAME}.whl", "sm121a", tmp_path)
    assert wheelkit.sha256(again) == wheelkit.sha256(dist / f"variants/{NAME}-sm121a.whl")


def test_the_index_lists_the_variants_of_a_version_with_its_wheels(dist: Path) -> None:
    page = json.loads((dist / "simple/vllm/index.json").read_bytes())
    files = {file["filename"]: file for file in page["files"]}
    assert set(files) == {
        f"{NAME}.whl", f"{NAME}-sm121a.whl", f"vllm-{NATIVE}-variants.json",
        f"vllm-{PLAIN}-cp38-abi3-manylinux_2_28_x86_64.whl",
    }  # fmt: skip
    assert page["versions"] == [PLAIN, NATIVE]
    variants = dist / "variants" / f"vllm-{NATIVE}-variants.json"
    assert files[variants.name]["hashes"] == {"sha256": wheelkit.sha256(variants)}
    assert "core-metadata" not in files[variants.name]
    assert files[f"{NAME}-sm121a.whl"]["core-metadata"] == files[f"{NAME}.whl"]["core-metadata"]
    assert (dist / f"variants/{NAME}-sm121a.whl.metadata").read_bytes() == wheelkit.metadata(NATIVE)


def test_they_stay_listed_and_go_with_their_wheel(tmp_path: Path) -> None:
    wheel = build(tmp_path, NATIVE, "12.1a")
    first = publish([wheel], tmp_path / "dist", variants=True)
    assert publish([wheel], tmp_path / "dist").written == ()
    assert "variants" not in {path.name for path in wheels_in(tmp_path / "dist")}
    last = publish([], tmp_path / "dist")
    assert f"variants/vllm-{NATIVE}-variants.json" in last.removed
    assert set(first.written) - {"simple/index.html", "simple/index.json"} == set(last.removed)
    assert (tmp_path / f"dist/variants/{NAME}-sm121a.whl").is_file(), "wheels are never removed"


@pytest.mark.parametrize("arch", ["", "9.0a", "10.0a"])
def test_other_wheels_have_none(tmp_path: Path, arch: str) -> None:
    wheel = build(tmp_path, PLAIN, arch)
    assert label_of(wheel) == ""
    publish([wheel], tmp_path / "dist", variants=True)
    assert not (tmp_path / "dist/variants").exists()
    with pytest.raises(WheelError, match="no variant 'sm90a'"):
        make_variant(wheel, "sm90a", tmp_path)


def test_pip_and_stable_uv_take_the_plain_wheel(dist: Path, tmp_path: Path) -> None:
    index = (dist / "simple").as_uri()
    platform = ("--platform", "manylinux_2_28_x86_64")
    assert pip_download(index, "vllm", tmp_path / "pip", *platform) == [f"{NAME}.whl"]
    installed(index, tmp_path / "uv", "12.1", preview=False)
    assert not (tmp_path / "uv" / INFO / "variant.json").exists()


def installed(index: str, target: Path, capability: str, *, preview: bool) -> None:
    """Have uv install vllm into *target* as if the machine had a card of that *capability*, or none."""
    forced = {
        "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": capability,
        "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": "13.0",
    }
    options = ["--preview-features", "wheel-variants"] if preview else []
    subprocess.run(
        [Path(sys.executable).with_name("uv"), "--no-config", "--no-cache", "pip", "install", *options,
         "--no-deps", "--target", target, "--index-url", index, "--python-version", "3.12",
         "--python-platform", "x86_64-manylinux_2_28", "vllm"],
        check=True, capture_output=True, text=True, env={**os.environ, **(forced if capability else {})},
    )  # fmt: skip


@pytest.mark.parametrize("capability", ["12.1", "12.0", "9.0", ""])
def test_uvs_preview_takes_the_variant_on_the_card_and_nowhere_else(
    dist: Path, tmp_path: Path, capability: str
) -> None:
    version = Version(uv("--version").split()[1])
    if version < SUPPORTED:
        pytest.skip(f"uv {version} has no preview of wheel variants that was tried")
    installed((dist / "simple").as_uri(), tmp_path, capability, preview=True)
    assert (tmp_path / INFO / "METADATA").read_bytes() == wheelkit.metadata(NATIVE)
    assert (tmp_path / INFO / "variant.json").exists() == (capability == "12.1")
