"""Folders of the user's as a source: what would be unsafe in a git tree anywhere is not taken in."""

import os
from pathlib import Path

import pytest
from kit import make_tree

from sparkwright.base.errors import ArchiveError, PatchError
from sparkwright.carries.edited import write_tree
from sparkwright.git import FileEntry, Repository, check_out, outward_link
from sparkwright.upstream import archive
from sparkwright.upstream.folder import walk_folder

NAMES = [
    b".Git", b"git~1", ".g\u200cit".encode(), b"new\nline", b"back\\slash", b"tab\t", b"latin-\xe9", b".GIT ",
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "sub" / "file.py").write_bytes(b"x = 1\n")
    return tmp_path / "root"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_names_of_files_folders_and_links_have_to_be_safe_everywhere(root, name, kind):
    assert [path for path, _ in walk_folder(root)] == ["sub/file.py"]
    path = os.path.join(os.fsencode(root), b"sub", name)  # noqa: PTH118 - no text
    if kind == "file":
        os.close(os.open(path, os.O_CREAT))
    elif kind == "link":
        os.symlink(b"file.py", path)  # noqa: PTH211
    else:
        os.mkdir(path)  # noqa: PTH102
        os.close(os.open(path + b"/x", os.O_CREAT))
    with pytest.raises(ArchiveError) as caught:
        list(walk_folder(root))
    assert caught.value.exit_code == 21


def test_repositories_and_caches_are_left_out(root: Path) -> None:
    for name in (".git", "__pycache__"):
        (root / name).mkdir()
        (root / name / "x").touch()
    assert [path for path, _ in walk_folder(root)] == ["sub/file.py"]


def test_links_that_lead_out_through_one_another_are_refused(root: Path) -> None:
    for number in range(1, 4):
        (root / "sub" / f"l{number}").symlink_to(".." if number == 1 else f"l{number - 1}/..")
    (root / "sub" / "healthy.py").symlink_to("l1/sub/file.py")
    (root / "sub" / "l2").unlink()
    (root / "sub" / "l3").unlink()
    assert len(list(walk_folder(root))) == 3
    (root / "sub" / "l2").symlink_to("l1/..")
    (root / "sub" / "evil.py").symlink_to("l2/etc/passwd")
    with pytest.raises(ArchiveError, match="refused"):
        list(walk_folder(root))


@pytest.mark.parametrize(
    ("links", "out"),
    [
        ({"a": "b"}, None),
        ({"a": "a"}, None),
        ({"a": "b", "b": "a"}, None),
        ({"d/a": "../x"}, None),
        ({"d/e": "..", "x": "d/e/d"}, None),
        ({"a": ".."}, "a"),
        ({"a": "/etc"}, "a"),
        ({"d/e": "..", "d/f": "e/.."}, "d/f"),
        ({"d/e": "..", "x": "d/e/../y"}, "x"),
    ],
)
def test_links_are_followed_as_the_kernel_does(links: dict[str, str], out: str | None) -> None:
    assert outward_link(links) == out


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_FILE_BYTES", 999), ("MAX_TOTAL_BYTES", 2999), ("MAX_MEMBERS", 3)]
)
def test_absurd_sizes_are_refused_before_they_are_read(root, monkeypatch, limit, value):
    for number in range(3):
        (root / f"{number}").write_bytes(bytes(1000))
    assert len(list(walk_folder(root))) == 4
    monkeypatch.setattr(archive, limit, value)
    with pytest.raises(ArchiveError):
        list(walk_folder(root))


def test_a_sparse_file_that_would_fill_the_memory_is_refused(root: Path) -> None:
    with (root / "huge").open("wb") as stream:
        stream.truncate(3 << 30)
    with pytest.raises(ArchiveError) as caught:
        list(walk_folder(root))
    assert "huge" in caught.value.because


def test_a_folder_that_cannot_be_read_is_not_taken_for_empty(root, monkeypatch):
    scan = os.scandir

    def refuse(place: str) -> object:
        if os.path.basename(place) == "sub":  # noqa: PTH119 - as os.walk gives it
            raise PermissionError(13, "Permission denied", place)
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        list(walk_folder(root))


# Trees that came by git ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "links", [{"evil.py": "/etc/passwd"}, {"d/l1": "..", "d/l2": "l1/.."}, {"d/e/f": "../../../x"}]
)
def test_a_tree_with_a_link_that_leads_out_is_not_written(repository, tmp_path, links):
    files = {path: FileEntry("120000", target.encode()) for path, target in links.items()}
    tree = make_tree(repository, {"d/file.py": "x", **files})
    for write in (check_out, write_tree):
        with pytest.raises(ArchiveError):
            write(repository, tree, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_tree_whose_links_stay_inside_is_written(repository: Repository, tmp_path: Path) -> None:
    links = {"d/up": "..", "d/again": "up/d/file.py"}
    files = {path: FileEntry("120000", target.encode()) for path, target in links.items()}
    write_tree(repository, make_tree(repository, {"d/file.py": "x", **files}), tmp_path / "out")
    assert (tmp_path / "out" / "d" / "again").read_text() == "x"


def test_a_named_pipe_in_an_edited_tree_is_refused_and_not_waited_for(repository, tmp_path):
    from sparkwright.carries.edited import diff_folder

    tree = make_tree(repository, {"file.py": "x"})
    write_tree(repository, tree, tmp_path / "out")
    os.mkfifo(tmp_path / "out" / "pipe")
    with pytest.raises(PatchError, match="pipe"):
        diff_folder(repository, tree, tmp_path / "out")
