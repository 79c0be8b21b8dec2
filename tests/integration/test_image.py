"""The image's files: their linter accepts them and finds planted faults, and the script builds by them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "ci" / "Containerfile"


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("hadolint")
    return subprocess.run(
        [program, "--no-color", path], check=False, capture_output=True, text=True, cwd=path.parent
    )


def test_hadolint_accepts_the_containerfile():
    done = lint(FILE)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        ("WORKDIR /var/lib/sparkwright", "WORKDIR var/lib", "DL3000"),
        ("USER 10001:10001", "USER root", "DL3002"),
        ("-r /build/runtime.txt", "-r /build/runtime.txt | tee log", "DL4006"),
        ("EXPOSE 8000", "EXPOSE 800000", "DL3011"),
        ("FROM base AS environments", "FROM base AS base", "DL3024"),
    ],
)
def test_hadolint_finds_a_planted_fault(tmp_path, right, wrong, rule):
    text = FILE.read_text()
    assert right in text
    path = tmp_path / "Containerfile"
    path.write_text(text.replace(right, wrong, 1))
    done = lint(path)
    assert done.returncode == 1
    assert rule in done.stdout


def test_the_image_is_not_root_s_says_what_it_is_and_watches_its_engine():
    text = re.sub(r"\\\n", " ", FILE.read_text())
    last = text[text.rindex("\nFROM ") :]
    words = [line.split(maxsplit=1) for line in last.splitlines() if line and not line.startswith("#")]
    found = dict(word for word in words if len(word) == 2)
    assert found["USER"] == "10001:10001"
    assert json.loads(found["ENTRYPOINT"])[:2] == ["sparkwright", "serve"]
    assert "--watch" in found["ENTRYPOINT"]
    assert ":8000/health" in found["HEALTHCHECK"]
    for label in ("source", "revision", "version", "created", "licenses"):
        assert f"org.opencontainers.image.{label}=" in found["LABEL"]
    assert "dev.sparkwright.wheel=" in found["LABEL"]
    assert "--require-hashes" in text


ENGINE = """\
#!/bin/bash
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
build*) exit 0 ;;
*" -u") echo "$USER_ID" ;;
*importlib*) echo 0.24.0+spark.5 ;;
run*) exit "$STATUS" ;;
esac
"""


COMPANION = "flashinfer_jit_cache_sm121a-0.6.12+cu130.k3f0c2a91-py3-none-manylinux_2_28_aarch64.whl"


@pytest.mark.parametrize(
    ("status", "uid", "good"), [("0", "10001", True), ("1", "10001", False), ("0", "0", False)]
)
def test_the_script_builds_with_the_wheel_s_runtime_and_tries_the_image(tmp_path, status, uid, good):
    engine = tmp_path / "podman"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    wheel = tmp_path / "vllm-0.24.0+spark.5-cp38-abi3-manylinux_2_28_aarch64.whl"
    wheel.write_bytes(b"")
    (tmp_path / COMPANION).write_bytes(b"")
    calls = tmp_path / "calls"
    environment = {**os.environ, "ENGINE": str(engine), "CALLS": str(calls), "STATUS": status, "USER_ID": uid}
    done = subprocess.run(
        [ROOT / "ci" / "image.sh", wheel], check=False, capture_output=True, text=True, env=environment
    )
    assert (done.returncode == 0) == good, done.stderr
    build = calls.read_text().splitlines()[0]
    assert f"WHEEL={wheel.name}" in build
    assert "RUNTIME=0.24-aarch64.requirements.txt" in build
    assert "VERSION=0.24.0+spark.5" in build
    assert f"COMPANION={COMPANION} " in build


@pytest.mark.parametrize(
    "beside", ["", COMPANION.replace("0.6.12", "0.6.11"), COMPANION.replace("aarch", "x_")]
)
def test_the_script_refuses_a_wheel_without_its_companion(tmp_path, beside):
    wheel = tmp_path / "vllm-0.24.0+spark.5-cp38-abi3-manylinux_2_28_aarch64.whl"
    wheel.write_bytes(b"")
    if beside:
        (tmp_path / beside).write_bytes(b"")
    engine = tmp_path / "podman"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    calls = tmp_path / "calls"
    known = {"ENGINE": str(engine), "CALLS": str(calls), "STATUS": "0", "USER_ID": "10001"}
    script = [ROOT / "ci" / "image.sh", wheel]
    done = subprocess.run(script, check=False, capture_output=True, text=True, env={**os.environ, **known})
    assert done.returncode == 1
    assert "no flashinfer_jit_cache_sm…-0.6.12+…_aarch64.whl beside it" in done.stderr
    assert "companion --series 0.24 --platform aarch64 --arch 12.1a" in done.stderr
    assert not calls.exists()
    without = {**os.environ, **known, "COMPANION": "none"}
    done = subprocess.run(script, check=False, capture_output=True, text=True, env=without)
    assert done.returncode == 0, done.stderr
    assert "--build-arg COMPANION= " in calls.read_text()


def test_the_script_refuses_a_wheel_without_a_locked_runtime(tmp_path):
    wheel = tmp_path / "vllm-0.1.0-cp38-abi3-manylinux_2_28_aarch64.whl"
    wheel.write_bytes(b"")
    environment = {**os.environ, "ENGINE": shutil.which("true") or "true"}
    done = subprocess.run(
        [ROOT / "ci" / "image.sh", wheel], check=False, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1
    assert "no locked runtime" in done.stderr
