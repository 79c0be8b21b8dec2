"""Faults between a publisher and a GitHub release, planted in a stand-in for ``gh``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import target_kit
from kit import Recorder
from target_kit import SECRET, opened, told
from test_publish_targets import PAGE, WHEEL, file_of
from wheelkit import sha256

from sparkwright.base.errors import TamperedError, ToolError, UploadError

GITHUB = "github://owner/wheels-of-ours"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return file_of(tmp_path, 1_500_000)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{target_kit.install_gh(tmp_path / 'bin')}:{os.environ['PATH']}")
    monkeypatch.setenv("GH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("GH_TOKEN", SECRET)
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def plant(state: Path, *faults: str) -> None:
    (state / "faults.json").write_text(json.dumps(faults))


def calls(state: Path) -> list[list[str]]:
    return [json.loads(line) for line in (state / "calls.jsonl").read_text().splitlines()]


def test_gh_is_asked_again_after_a_failure_that_passes(state: Path, wheel: Path) -> None:
    plant(state, "HTTP 503", "HTTP 503")
    opened(GITHUB).put_file(WHEEL, wheel, sha256(wheel))
    plant(state, *["HTTP 503"] * 9)
    with pytest.raises(UploadError, match="503"):
        opened(GITHUB).read(WHEEL)


def test_an_asset_that_was_cut_off_is_replaced(state: Path, wheel: Path) -> None:
    plant(state, "cut")
    with pytest.raises(UploadError):
        opened(GITHUB).put_file(WHEEL, wheel, sha256(wheel))
    assert opened(GITHUB).read(WHEEL) is None
    opened(GITHUB).put_file(WHEEL, wheel, sha256(wheel))
    assert opened(GITHUB).read(WHEEL).data == wheel.read_bytes()
    assert ["release", "delete-asset"] in [call[:2] for call in calls(state)]
    assert not any("--clobber" in call for call in calls(state))


@pytest.mark.parametrize("features", [[], ["no-digest"]])
def test_an_asset_with_other_bytes_is_found(state: Path, wheel: Path, features: list[str]) -> None:
    (state / "features.json").write_text(json.dumps(features))
    plant(state, "flip")
    for _ in range(2):  # after the upload, and by the next run
        with pytest.raises(TamperedError, match="never change"):
            opened(GITHUB).put_file(WHEEL, wheel, sha256(wheel))


def test_an_asset_that_is_too_large_is_not_sent(state: Path, tmp_path: Path) -> None:
    huge = tmp_path / "huge.whl"
    with huge.open("wb") as stream:
        stream.truncate(2 << 30)
    with pytest.raises(UploadError, match="2 GiB"):
        opened(GITHUB).put_file(WHEEL, huge, "0" * 64)
    assert not (state / "calls.jsonl").exists()


def test_a_full_release_is_refused(state: Path, wheel: Path) -> None:
    (state / "releases.json").write_text('["wheels"]')
    one = {"tag": "wheels", "label": "", "size": 1, "state": "uploaded"}
    (state / "assets.json").write_text(json.dumps([{**one, "name": f"{n}.whl"} for n in range(1000)]))
    with pytest.raises(UploadError, match="1000 assets") as raised:
        opened(GITHUB).put_file(WHEEL, wheel, sha256(wheel))
    assert "release=" in raised.value.next_step


def test_the_token_is_in_no_argument_event_or_message(state: Path, heard: Recorder, wheel: Path) -> None:
    opened(GITHUB).put_file(WHEEL, wheel, sha256(wheel))
    opened(GITHUB).replace(PAGE, b"one", expected=None)
    os.environ["GH_TOKEN"] = f"wrong-{SECRET}"
    with pytest.raises(UploadError, match="401") as raised:
        opened(GITHUB).read(PAGE)
    assert "gh auth login" in raised.value.next_step
    assert SECRET not in told(raised, heard)
    assert SECRET not in (state / "calls.jsonl").read_text()


def test_without_gh_the_user_is_asked_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="gh") as raised:
        opened(GITHUB).read(PAGE)
    assert "gh auth login" in raised.value.next_step


def test_the_real_gh_takes_these_arguments(state: Path, wheel: Path) -> None:
    """A call with an argument that it lacks ends before the network, which is not there."""
    program = shutil.which("gh", path="/usr/local/bin:/usr/bin:/bin")
    if program is None:
        pytest.skip("gh is not installed")
    plant(state, "cut")
    with pytest.raises(UploadError):
        opened(GITHUB).put_file(WHEEL, wheel, sha256(wheel))
    opened(GITHUB).put_file(WHEEL, wheel, sha256(wheel))
    opened(GITHUB).replace(PAGE, b"one", expected=None)
    sorted(opened(GITHUB).sizes(""))
    opened(GITHUB).read(PAGE)
    environment = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:1", "GH_PROMPT_DISABLED": "1"}
    shapes = {tuple(word for word in call if word.startswith("-")): call for call in calls(state)}
    assert len(shapes) >= 6
    for call in shapes.values():
        real = [str(wheel) if "#" in word else word for word in call]
        done = subprocess.run(
            [program, *real], env=environment, input=b"{}", capture_output=True, check=False, timeout=120
        )
        assert b"proxyconnect" in done.stderr, (real, done.stderr)
    done = subprocess.run(
        [program, "release", "upload", "x", "y", "--absent"], capture_output=True, check=False
    )
    assert b"unknown flag" in done.stderr
