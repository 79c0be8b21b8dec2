"""The index's pages: what they list, how they change, what is refused."""

from __future__ import annotations

import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import wheelkit
from kit import Recorder

from sparkwright.base.errors import ArchiveError, PublishError, WheelError
from sparkwright.publish.index import BEGINNING, PublishedFile, all_pages, publish, wheels_in


def wheel(folder: Path, version: str, project: str = "vllm", requires: str = ">=3.10") -> Path:
    """The smallest wheel that an index can list."""
    distribution = project.replace("-", "_")
    info = f"{distribution}-{version}.dist-info"
    files = {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.4\nName: {project}\nVersion: {version}\nRequires-Python: {requires}\n\n"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n\n",
    }
    return wheelkit.pack(
        folder / f"{distribution}-{version}-py3-none-any.whl", wheelkit.with_record(files, info)
    )


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".publish.lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def listed(folder: Path) -> list[str]:
    """The names of the files on the page of vllm, in its order."""
    return re.findall(">(vllm-.*?)</a>", (folder / "simple/vllm/index.html").read_text())


def test_pages_list_each_wheel_once_in_the_order_of_versions(tmp_path: Path) -> None:
    for version in ("0.10.0", "0.9.0+spark.1", "0.9.0"):
        wheel(tmp_path, version)
    wheel(tmp_path, "1", "Other-Project")
    index = publish(tmp_path)
    assert [(file.project, file.version) for file in index.files] == [
        ("other-project", "1"), ("vllm", "0.9.0"), ("vllm", "0.9.0+spark.1"), ("vllm", "0.10.0"),
    ]  # fmt: skip
    assert [name.split("-")[1] for name in listed(tmp_path)] == ["0.9.0", "0.9.0+spark.1", "0.10.0"]
    root = (tmp_path / "simple/index.html").read_text()
    assert re.findall('href="(.*?)"', root) == ["other-project/", "vllm/"]


def test_html_is_escaped() -> None:
    file = PublishedFile("p", "1+x", 'p-1+x-"&.whl', "0" * 64, 1, "<3.15,>=3.10", "1" * 64)
    page = all_pages([file])["p/index.html"].decode()
    assert 'href="../../p-1%2Bx-%22%26.whl#sha256=000' in page
    assert 'data-requires-python="&lt;3.15,&gt;=3.10"' in page
    assert page.count(f'metadata="sha256={"1" * 64}"') == 2
    assert ">p-1+x-&quot;&amp;.whl</a>" in page


def test_publishing_again_changes_nothing_and_elsewhere_gives_the_same_bytes(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    wheel(here, "1")
    wheel(here, "2")
    shutil.copytree(here, there)
    publish(here)
    written = {path: path.stat().st_ino for path in here.rglob("*")}
    publish(here)
    assert {path: path.stat().st_ino for path in here.rglob("*")} == written
    publish(there)
    assert snapshot(here) == snapshot(there)


def test_stale_pages_vanish(tmp_path: Path) -> None:
    old, other = wheel(tmp_path, "1"), wheel(tmp_path, "1", "other")
    keep = wheel(tmp_path, "2")
    publish(tmp_path)
    old.unlink()
    other.unlink()
    publish(tmp_path)
    assert not (tmp_path / "simple/other").exists()
    assert old.name not in (tmp_path / "simple/vllm/index.html").read_text()
    assert keep.name in (tmp_path / "simple/vllm/index.html").read_text()


def test_a_wheel_whose_metadata_says_otherwise_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    wheel(tmp_path, "1")
    publish(tmp_path)
    before = snapshot(tmp_path / "simple")
    lying = wheel(tmp_path, "2")
    wheelkit.spoil(lying, tmp_path, lambda files: files.update({
        "vllm-2.dist-info/METADATA": b"Metadata-Version: 2.4\nName: vllm\nVersion: 3\n\n"
    }))  # fmt: skip
    with pytest.raises(PublishError) as caught:
        publish(tmp_path)
    assert "vllm 3" in caught.value.because
    assert snapshot(tmp_path / "simple") == before


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "vllm-1-py3-none-any.whl"
    bad.write_bytes(b"not a zip")
    with pytest.raises(ArchiveError):
        publish(tmp_path)
    bad.rename(tmp_path / "vllm.whl")
    with pytest.raises(WheelError):
        publish(tmp_path)


def test_half_written_wheels_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".vllm-1-py3-none-any.whl.x7.whl").write_bytes(b"half")
    assert wheels_in(tmp_path) == ()


def test_readers_see_whole_pages_whose_files_are_there(tmp_path: Path) -> None:
    wheel(tmp_path, "1")
    publish(tmp_path)
    done = threading.Event()
    seen: set[int] = set()
    missing: list[str] = []

    def read() -> None:
        while not done.is_set():
            files = listed(tmp_path)
            missing.extend(name for name in files if not (tmp_path / f"{name}.metadata").exists())
            seen.add(len(files))

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for count in range(2, 13):
            wheel(tmp_path, str(count))
            publish(tmp_path)
        done.set()
        reading.result()
    assert len(seen) > 1
    assert not missing


# What is not ours --------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["simple/other/index.html", "simple/vllm/mine.html", "x.whl.metadata"])
def test_what_others_put_there_stays(tmp_path: Path, other: str) -> None:
    wheel(tmp_path, "1")
    stale = wheel(tmp_path, "2", "stale")
    publish(tmp_path)
    path = tmp_path / other
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"somebody else's")
    stale.unlink()
    for _ in range(2):
        publish(tmp_path)
        assert path.read_bytes() == b"somebody else's"
    assert not (tmp_path / "simple/stale").exists()


@pytest.mark.parametrize("name", ["simple/index.html", "simple/vllm/index.html"])
def test_a_page_that_others_wrote_is_not_replaced(tmp_path: Path, name: str) -> None:
    wheel(tmp_path, "1")
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"somebody else's")
    before = snapshot(tmp_path)
    for _ in range(2):
        with pytest.raises(PublishError) as caught:
            publish(tmp_path)
        assert str(path) in caught.value.because
        assert snapshot(tmp_path) == before
    path.unlink()
    publish(tmp_path)


def test_a_page_of_ours_that_was_edited_is_written_again(tmp_path: Path) -> None:
    wheel(tmp_path, "1")
    publish(tmp_path)
    before = snapshot(tmp_path)
    for path in tmp_path.glob("simple/**/index.*"):
        path.write_bytes(BEGINNING + b"more")
    publish(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "kind",
    [
        "pipe",
        "folder",
        "dangling",
        "not-utf8",
        "simple-a-file",
        "simple-a-link",
        "project-a-link",
        "page-a-link",
        "metadata-a-link",
        "page-a-folder",
    ],
)
def test_odd_things_in_the_folder_are_one_clear_error(tmp_path: Path, kind: str) -> None:
    healthy = wheel(tmp_path, "1")
    odd = tmp_path / "x-1-py3-none-any.whl"
    (tmp_path / "elsewhere").mkdir()
    match kind:
        case "pipe":
            os.mkfifo(odd)
        case "folder":
            odd.mkdir()
        case "dangling":
            odd.symlink_to("nowhere")
        case "not-utf8":
            healthy.rename(tmp_path / os.fsdecode(b"vllm-1-py3-none-any\xff.whl"))
        case "simple-a-file":
            (tmp_path / "simple").write_bytes(b"x")
        case "simple-a-link":
            (tmp_path / "simple").symlink_to("elsewhere")
        case "project-a-link":
            (tmp_path / "simple").mkdir()
            (tmp_path / "simple/vllm").symlink_to("../elsewhere")
        case "page-a-link":
            (tmp_path / "simple").mkdir()
            (tmp_path / "simple/index.html").symlink_to("../elsewhere/page")
        case "metadata-a-link":
            (tmp_path / f"{healthy.name}.metadata").symlink_to("elsewhere/page")
        case _:
            (tmp_path / "simple/vllm/index.html").mkdir(parents=True)
    with pytest.raises(PublishError) as caught:
        publish(tmp_path)
    assert caught.value.exit_code == 50
    str(caught.value).encode()
    assert not any((tmp_path / "elsewhere").iterdir())


TAG = "cp38-abi3-manylinux_2_28_aarch64"


def tagged(folder: Path, tag: str, metadata: str = "", *, ours: bool = False) -> Path:
    """A wheel whose name has `TAG` and whose WHEEL file has *tag*."""
    info = "vllm-1+x.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.4\nName: vllm\nVersion: 1+x\n{metadata}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n\n".encode(),
        **({f"{info}/sparkwright/point.json": b"{}"} if ours else {}),
    }
    return wheelkit.pack(folder / f"vllm-1+x-{TAG}.whl", wheelkit.with_record(files, info))


class TestInstallers:
    """What installers refuse, or understand in another way, is in no index."""

    def refused(self, wheel: Path, kind: type[Exception]) -> str:
        with pytest.raises(kind) as caught:
            publish(wheel.parent)
        assert not (wheel.parent / "simple").exists()
        error = caught.value
        assert isinstance(error, ArchiveError | PublishError | WheelError)
        return f"{error.because} / {error.next_step}"

    def test_a_healthy_one(self, tmp_path: Path, heard: Recorder) -> None:
        tagged(tmp_path, TAG, "Requires-Python: >=3.8, <3.13\n", ours=True)
        publish(tmp_path)
        assert heard.warnings == []

    @pytest.mark.parametrize("copy", [" (1).whl", "(2).whl"])
    def test_a_browsers_second_copy(self, tmp_path: Path, copy: str) -> None:
        whole = tagged(tmp_path, TAG)
        told = self.refused(whole.rename(tmp_path / whole.name.replace(".whl", copy)), WheelError)
        assert "no tag is written as" in told
        assert f"rename it to {whole.name}" in told
        assert "remove it" in told

    def test_an_escaped_plus(self, tmp_path: Path) -> None:
        whole = tagged(tmp_path, TAG)
        told = self.refused(whole.rename(tmp_path / whole.name.replace("+", "%2B")), WheelError)
        assert told.endswith(f"rename it to {whole.name}")

    def test_a_renamed_one(self, tmp_path: Path) -> None:
        whole = tagged(tmp_path, TAG)
        told = self.refused(whole.rename(tmp_path / whole.name.replace("1+x", "2")), ArchiveError)
        assert "it was renamed: its metadata is in vllm-1+x.dist-info" in told
        assert "its name began with vllm-1+x-" in told

    def test_other_tags(self, tmp_path: Path, heard: Recorder) -> None:
        told = self.refused(tagged(tmp_path / "a", TAG.replace("28", "34")), PublishError)
        assert "manylinux_2_34_aarch64, its name" in told
        generic = TAG.replace("manylinux_2_28", "linux")
        assert "linux_aarch64" in self.refused(tagged(tmp_path / "b", generic, ours=True), PublishError)
        tagged(tmp_path / "c", generic)
        publish(tmp_path / "c")
        (warning,) = heard.warnings
        assert "cp38-abi3-linux_aarch64" in warning, "upstream's own wheels have that"

    def test_a_python_that_no_installer_can_read(self, tmp_path: Path) -> None:
        told = self.refused(tagged(tmp_path, TAG, "Requires-Python: >=3.8, <3.13.*\n"), PublishError)
        assert "Requires-Python '>=3.8, <3.13.*'" in told


def test_two_runs_at_once_leave_a_whole_index(tmp_path: Path) -> None:
    for number in range(1, 5):
        wheel(tmp_path, str(number))
    runs = [threading.Thread(target=publish, args=(tmp_path,)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    metadata = sorted(path.name.removesuffix(".metadata") for path in tmp_path.glob("*.metadata"))
    assert sorted(listed(tmp_path)) == metadata
    assert [path.name for path in tmp_path.glob(".*")] == [".publish.lock"]
