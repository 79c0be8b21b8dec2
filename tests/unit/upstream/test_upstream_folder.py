"""Links that lead out of a tree: a tree that has one is not written to a disk."""

import os
from pathlib import Path

import pytest
from kit import make_tree

from sparkwright.base.errors import ArchiveError, PatchError
from sparkwright.carries.edited import write_tree
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry, check_out, outward_link


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
