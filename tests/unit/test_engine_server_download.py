"""The time in which files of a model's cache grow, where that is, and files of FlashInfer's compilers."""

from __future__ import annotations

from pathlib import Path

import pytest
from preflight_kit import recipe

from sparkwright.engine.server import download as downloads
from sparkwright.engine.server.compiling import FlashInferBuild
from sparkwright.engine.server.download import Download, download_folders

BLOCK = b"x" * 8192


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a block a minute as a download: as much as the real rate asks for would fill the disk."""
    monkeypatch.setattr(downloads, "_LEAST_BYTES_PER_S", 10)


def test_seconds_count_while_files_grow_and_no_others(tmp_path: Path) -> None:
    part = tmp_path / "blobs" / "a.incomplete"
    part.parent.mkdir()
    part.write_bytes(BLOCK)
    download = Download([tmp_path, tmp_path / "absent"])
    assert download.look(5.0) == 0, "what was here before is no download"
    part.write_bytes(BLOCK * 2)
    assert download.look(6.0) == 0, "looks that follow each other closely are one"
    assert download.look(15.0) == 15.0
    assert download.look(25.0) == 0, "it stands still"
    part.rename(part.with_suffix(""))
    assert download.look(35.0) == 0, "it has another name, and no more bytes"
    (tmp_path / "blobs" / "b.incomplete").write_bytes(BLOCK)
    assert download.look(38.0) == 23.0, "a pause between two bursts is of the download"
    assert download.seconds == 38.0
    assert download.bytes >= 3 * len(BLOCK)


def trickling(folder: Path) -> Download:
    """A block a minute for an hour."""
    download = Download([folder])
    for minute in range(1, 61):
        (folder / str(minute)).write_bytes(BLOCK)
        for second in range(0, 60, 3):
            download.look(minute * 60.0 + second)
    return download


def test_bursts_of_a_slow_download_are_one_and_a_long_pause_counts_for_the_boot(tmp_path: Path) -> None:
    download = trickling(tmp_path)
    assert download.seconds == 3600.0
    (tmp_path / "late").write_bytes(BLOCK)
    assert download.look(36_000.0) == 300.0


def test_a_download_that_trickles_counts_for_the_boot_but_for_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_LEAST_BYTES_PER_S", 1000)
    download = trickling(tmp_path)
    assert download.bytes == 60 * len(BLOCK)
    assert download.seconds <= download.bytes / 1000


def test_a_cache_that_shrinks_is_no_download(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(BLOCK)
    download = Download([tmp_path])
    (tmp_path / "old").unlink()
    assert download.look(5.0) == 0
    assert download.bytes == 0


def test_a_length_without_bytes_is_no_download(tmp_path: Path) -> None:
    download = Download([tmp_path])
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(1 << 30)
    assert download.look(5.0) == 0


def test_compilers_go_on_where_files_come_that_were_not_there(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "flashinfer" / "0.6" / "121a" / "moe"
    cache.mkdir(parents=True)
    (cache / "old.o").touch()
    build = FlashInferBuild({"FLASHINFER_WORKSPACE_BASE": str(tmp_path)})
    assert not build.look(5.0), "what was here before was not compiled now"
    (cache / "a.o").touch()
    assert not build.look(6.0), "looks that follow each other closely are one"
    assert build.look(10.0)
    (cache / "a.o").write_bytes(BLOCK)
    (cache / "moe.lock").touch()
    assert not build.look(15.0), "no new file of a kernel"
    (cache / "a.o").unlink()
    assert not build.look(20.0)
    (cache / "a.o").touch()
    assert not build.look(25.0), "it began again"


def test_without_folders_nothing_is_looked_at() -> None:
    assert Download(()).look(100.0) == 0


def test_models_are_fetched_into_the_cache_that_variables_or_a_flag_name(tmp_path: Path) -> None:
    served = recipe("org/m", drafter="org/d")
    names = ("models--org--m", "models--org--d")
    assert download_folders(served, {"HF_HOME": "/h"}) == tuple(Path("/h/hub", one) for one in names)
    named = recipe("org/m", flags={"download-dir": str(tmp_path)})
    assert download_folders(named, {"HF_HOME": "/h"}) == (tmp_path / "models--org--m",)
    assert download_folders(recipe(tmp_path), {}) == (), "a folder is here already"
