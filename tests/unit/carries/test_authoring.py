"""Making carries: from folders, from pull requests, onto newer pins; as functions."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import UpstreamRepository, make_carry, make_tree
from small_release import make_release

from sparkwright.base.errors import ConfigError, FetchError, PatchError, UnknownNameError
from sparkwright.carries.edited import diff_folder, write_tree
from sparkwright.carries.files import (
    Draft,
    PullName,
    ResolvedPull,
    add_revision,
    create_own,
    create_pull,
    declare_superseded,
    parse_pull,
    repin,
    resolve_pull,
)
from sparkwright.carries.model import PullRequest, load_carry
from sparkwright.carries.patch import parse_patch
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry
from sparkwright.merge.prepare import CarryEditor
from sparkwright.store.paths import Store

LOCK = make_release().lock
BASE = {
    "a.py": "a = 1\n",
    "b/c.py": "c = 1\nd = 2\n",
    "b/run.sh": FileEntry("100755", b"#!/bin/sh\n"),
    "e.md": "e\n",
}
LINK = FileEntry("120000", b"a.py")


def edit(folder: Path, files: dict[str, str | None]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            (folder / path).unlink()
        else:
            (folder / path).write_bytes(text.encode())


@pytest.fixture
def tree(repository: Repository) -> str:
    return make_tree(repository, BASE)


@pytest.fixture
def folder(repository: Repository, tree: str, tmp_path: Path) -> Path:
    """The tree, written out."""
    write_tree(repository, tree, tmp_path / "edited")
    return tmp_path / "edited"


class TestEdited:
    @pytest.mark.parametrize("mode", [None, 0o640, 0o755], ids=["as it is", "one file", "a disk of one mode"])
    def test_nothing_edited_is_no_patch(self, repository, tree, folder, mode):
        """Git records no more of a mode than who may execute the file."""
        files = [file for file in folder.rglob("*") if file.is_file()]
        for file in {None: [], 0o640: [folder / "a.py"], 0o755: files}[mode]:
            file.touch()
            file.chmod(mode or 0)
        assert diff_folder(repository, tree, folder) == b""

    @pytest.mark.parametrize(("path", "mode"), [("a.py", 0o755), ("b/run.sh", 0o644)])
    @pytest.mark.parametrize("text", ["", "more\n"])
    def test_another_mode_is_refused_rather_than_lost(self, repository, tree, folder, path, mode, text):
        (folder / path).write_text((folder / path).read_text() + text)
        (folder / path).chmod(mode)
        if path == "b/run.sh":  # one file of each mode is left
            (folder / "e.md").chmod(0o755)
        with pytest.raises(PatchError, match=r"a\.py|run\.sh"):
            diff_folder(repository, tree, folder)

    @pytest.mark.parametrize(
        "junk",
        [
            "__pycache__/a.pyc", ".git/HEAD", "a.py.orig", "b/c.py.rej", ".b.swp", "x.egg-info/PKG-INFO",
            "b/k.so",
        ],
    )  # fmt: skip
    def test_what_tools_leave_behind_is_no_edit(self, repository, tree, folder, junk):
        edit(folder, {junk: "junk"})
        assert diff_folder(repository, tree, folder) == b""

    @pytest.mark.parametrize(
        "junk",
        [
            ".vscode/settings.json", ".idea/x.xml", "b/c.py~", "b/#c.py#", ".DS_Store", "b/._c.py", "x.bak",
            ".env", "b/.env.local", ".envrc", ".nox/x",
        ],
    )  # fmt: skip
    def test_what_editors_leave_behind_is_named(self, repository, tree, folder, heard, junk):
        edit(folder, {junk: "\0junk", "a.py": "a = 2\n"})
        patch = diff_folder(repository, tree, folder)
        assert parse_patch(patch, name="x").paths == ("a.py",)
        (warning,) = heard.warnings
        named = junk.partition("/")[0] + "/" if junk.startswith(".") and "/" in junk else junk
        assert warning.endswith(f": {named}")

    def test_a_folder_of_ours_is_no_left_over(self, repository, tree, folder, heard):
        edit(folder, {"b/settings.json": "{}\n", ".github/new.yml": "x: 1\n"})
        patch = diff_folder(repository, tree, folder)
        assert parse_patch(patch, name="x").paths == (".github/new.yml", "b/settings.json")
        assert (heard.warnings, b"No newline" in patch) == ([], False)

    @pytest.mark.parametrize(("text", "says"), [("c = 1\r\nd = 2\r\n", "nothing but line ends"),
                                                ("c = 5\r\nd = 2\r\n", "line ends changed")])  # fmt: skip
    def test_other_line_ends_are_warned_of(self, repository, tree, folder, heard, text, says):
        (folder / "b" / "c.py").write_bytes(text.encode())
        assert diff_folder(repository, tree, folder)
        (warning,) = heard.warnings
        assert "b/c.py has CRLF where the tree has LF" in warning
        assert says in warning
        assert ("nothing but" in warning) is ("nothing but" in says)

    def test_a_tracked_file_counts_wherever_it_lies(self, repository: Repository, tmp_path: Path) -> None:
        tree = make_tree(repository, {".venv/kept.py": "1\n", "x.orig": "2\n"})
        write_tree(repository, tree, tmp_path / "t")
        edit(tmp_path / "t", {".venv/kept.py": "3\n", "x.orig": None})
        patch = diff_folder(repository, tree, tmp_path / "t")
        assert parse_patch(patch, name="x").paths == (".venv/kept.py", "x.orig")

    def test_an_untouched_link_is_fine_and_any_other_is_not(self, repository, tmp_path):
        tree = make_tree(repository, {**BASE, "link.py": LINK})
        write_tree(repository, tree, tmp_path / "t")
        assert diff_folder(repository, tree, tmp_path / "t") == b""
        (tmp_path / "t" / "link.py").unlink()
        (tmp_path / "t" / "link.py").symlink_to("e.md")
        with pytest.raises(PatchError, match="symbolic link"):
            diff_folder(repository, tree, tmp_path / "t")
        (tmp_path / "t" / "link.py").unlink()
        (tmp_path / "t" / "link.py").write_text("a file now\n")
        with pytest.raises(PatchError, match="symbolic link"):
            diff_folder(repository, tree, tmp_path / "t")

    def test_a_link_to_a_folder_is_not_followed(self, repository, tree, folder):
        (folder / "up").symlink_to(folder.parent, target_is_directory=True)
        with pytest.raises(PatchError, match="up cannot be part of a carry"):
            diff_folder(repository, tree, folder)

    @pytest.mark.parametrize("line", ["<<<<<<< ours", ">>>>>>> theirs"])
    def test_markers_are_refused(self, repository: Repository, tree: str, folder: Path, line: str) -> None:
        edit(folder, {"a.py": f"a = 1\n{line}\n"})
        with pytest.raises(PatchError, match="is not resolved"):
            diff_folder(repository, tree, folder)
        edit(folder, {"a.py": f"Title\n=======\n x {line}\n"})  # it only looks like markers
        assert diff_folder(repository, tree, folder)

    def test_half_a_tree_is_a_mistake(self, repository: Repository, tree: str, folder: Path) -> None:
        edit(folder, {"a.py": None, "e.md": None})
        assert diff_folder(repository, tree, folder)
        edit(folder, {"b/c.py": None})
        with pytest.raises(ConfigError, match="1 of its 4 files"):
            diff_folder(repository, tree, folder)

    def test_the_tree_of_another_release_is_a_mistake(self, repository: Repository, tmp_path: Path) -> None:
        pinned = make_tree(repository, {**BASE, "PKG-INFO": "Name: vllm\nVersion: 1.2.0\n"})
        write_tree(repository, pinned, tmp_path / "edited")
        edit(tmp_path / "edited", {"a.py": "a = 2\n"})
        assert diff_folder(repository, pinned, tmp_path / "edited")
        edit(tmp_path / "edited", {"PKG-INFO": "Name: vllm\nVersion: 1.1.0\n"})
        with pytest.raises(ConfigError, match=r"of release 1\.1\.0, and 1\.2\.0 is pinned"):
            diff_folder(repository, pinned, tmp_path / "edited")
        for text in ("Name: vllm\n", None):
            edit(tmp_path / "edited", {"PKG-INFO": text})
            with pytest.raises(ConfigError, match=r"states no release, and 1\.2\.0 is pinned"):
                diff_folder(repository, pinned, tmp_path / "edited")

    def test_a_tree_appears_whole_or_not_at_all(self, repository, tree, tmp_path, monkeypatch):
        def half(_: Repository, __: str, folder: Path) -> None:
            folder.mkdir()
            (folder / "a.py").touch()
            raise KeyboardInterrupt

        monkeypatch.setattr("sparkwright.carries.edited.check_out", half)
        with pytest.raises(KeyboardInterrupt):
            write_tree(repository, tree, tmp_path / "new" / "tree")
        assert list((tmp_path / "new").iterdir()) == []


PATCH = (
    b"diff --git a/a.py b/a.py\n"
    b"index 1337a530cb510d5a4ed7cac5ccc6ab70cc54ea15..9ca8e63d4d2c2b8e0b5b3fbc1c3d6e1d0ca4a1ea 100644\n"
    b"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
)
DRAFT = Draft("count", "Count to two", "One is not enough.")
PIN = PullRequest(repository="https://example.org/v.git", number=7, head="1" * 40, base="2" * 40)
PULL = ResolvedPull(PIN, author="Ada", subjects=("One", "Two"), message="One")


class TestFiles:
    def test_the_probes_skeleton_imports_what_the_carry_changes(self, tmp_path: Path) -> None:
        carry = create_pull(
            tmp_path, DRAFT, PULL, ["vllm/b/__init__.py", "vllm/a.py", "vllm/c.pyi", "tests/c.py"]
        )
        assert carry.probe_path is not None
        lines = carry.probe_path.read_text().splitlines()
        assert [line.split()[1] for line in lines if line.startswith("import")] == ["vllm.a", "vllm.b"]

    def test_nothing_is_left_of_one_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(PatchError):
            create_own(tmp_path, DRAFT, LOCK, b"rubbish")
        with pytest.raises(ConfigError, match="title"):
            create_own(tmp_path, Draft("count", "", "why"), LOCK, PATCH)
        with pytest.raises(ConfigError, match="runner"):
            create_own(tmp_path, Draft("count", "title", "why", runner="v9"), LOCK, PATCH)

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("sparkwright.carries.files.load_carry", interrupted)
        with pytest.raises(KeyboardInterrupt):
            create_own(tmp_path, DRAFT, LOCK, PATCH)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["..", "a/b", "/etc/x", "A", "a_b", "-a", "a-", "a\n", ""])
    def test_a_name_is_a_plain_folder_name(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UnknownNameError, match="cannot be a carry's name"):
            create_own(tmp_path / "carries", Draft(name, "title", "why"), LOCK, PATCH)
        assert list(tmp_path.iterdir()) == []

    def test_a_second_revision_and_a_replaced_one(self, tmp_path: Path) -> None:
        carry = create_own(tmp_path, DRAFT, LOCK, PATCH)
        toml = carry.folder / "carry.toml"
        toml.write_text("# Mind the gap.\n" + toml.read_text())
        later = make_release("1.3.0").lock
        carry = add_revision(carry, later, PATCH)
        assert [revision.release for revision in carry.spec.revision] == ["1.2.0", "1.3.0"]
        other = PATCH.replace(b"+a = 2", b"+a = 3")
        carry = add_revision(carry, later, other)
        assert [revision.patch for revision in carry.spec.revision] == ["1.2.0.patch", "1.3.0.patch"]
        assert (carry.folder / "1.3.0.patch").read_bytes() == other
        assert toml.read_text().startswith("# Mind the gap.\n")

    def test_superseded_releases_are_added_to_those_that_are_there(self, tmp_path: Path) -> None:
        carry = create_own(tmp_path, DRAFT, LOCK, PATCH)
        toml = carry.folder / "carry.toml"
        evil = 'a "quote", a \\ and\n[[revision]]'
        for releases in (">=1.3,<1.4", ">=1.5"):
            carry = declare_superseded(carry, releases=releases, by="vLLM", because=evil)
            toml.write_text(f"{toml.read_text()}# After {releases}.\n")
        assert [entry.releases for entry in carry.spec.superseded] == [">=1.3,<1.4", ">=1.5"]
        assert {entry.because for entry in carry.spec.superseded} == {evil}
        assert [carry.superseded_in(one) is not None for one in ("1.2.0", "1.3.0", "1.4.0", "1.5.0")] == [
            False, True, False, True,
        ]  # fmt: skip
        assert len(load_carry(carry.folder).spec.revision) == 1
        assert "# After >=1.3,<1.4." in toml.read_text()

    def test_repinning_touches_the_pin_alone(self, tmp_path: Path) -> None:
        carry = create_pull(tmp_path, DRAFT, PULL, [])
        toml = carry.folder / "carry.toml"
        before = toml.read_text()
        moved = ResolvedPull(
            PullRequest(repository=PULL.pin.repository, number=7, head="3" * 40, base="2" * 40),
            "Bob",
            ("x",),
            "x",
        )
        assert repin(carry, moved).spec.pull == moved.pin
        assert toml.read_text() == before.replace("1" * 40, "3" * 40)


PROSE = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(title=PROSE, why=PROSE)
def test_whatever_people_write_comes_back(tmp_path_factory, title, why):
    carry = create_own(tmp_path_factory.mktemp("prose"), Draft("count", title, why), LOCK, PATCH)
    assert carry.spec.title == title
    assert carry.spec.why == f"{why.strip()}\n"


class TestPullNames:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("45544", PullName(45544)),
            (" #45544 ", PullName(45544)),
            ("https://example.org/a/vllm/pull/7", PullName(7, "https://example.org/a/vllm")),
            ("https://example.org/a/vllm/pull/7/files#diff", PullName(7, "https://example.org/a/vllm")),
            ("https://example.org/a/vllm/pull/7?w=1", PullName(7, "https://example.org/a/vllm")),
            ("7/commits", PullName(7)),
        ],
    )
    def test_good_ones(self, text: str, found: PullName) -> None:
        assert parse_pull(text) == found

    @pytest.mark.parametrize(
        "text",
        ["", "#", "0", "#0", "-7", "+7", "7.0", "\u0667", "7 8", "vllm#7", "https://example.org/a/vllm/issues/7",
         "https://example.org/a/vllm/pull/", "--pull/7", "http://example.org/v/pull/7", "9" * 40],
    )  # fmt: skip
    def test_bad_ones(self, text: str) -> None:
        with pytest.raises(UnknownNameError, match="does not name a pull request"):
            parse_pull(text)


class TestResolve:
    def test_two_commits_on_an_older_base(self, store: Store, upstream: UpstreamRepository) -> None:
        base = upstream.commit("One (#1)", {"a.py": "a = 1\n"})
        upstream.commit("Two (#2)", {"b.py": "b = 1\n"})
        head = upstream.pull(7, base, [{"a.py": "a = 2\n"}, {"a.py": "a = 3\n"}])
        found = resolve_pull(store, upstream.address, 7)
        assert (found.pin.head, found.pin.base, found.pin.number) == (head, base, 7)
        assert found.subjects == ("work 0", "work 1")
        assert list(store.scratch_root.iterdir()) == []
        assert not store.git.exists(), "history is looked at apart from the store"

    def test_one_that_took_the_main_branch_in(self, store: Store, upstream: UpstreamRepository) -> None:
        base = upstream.commit("One (#1)", {"a.py": "a = 1\n"})
        upstream.pull(7, base, [{"a.py": "a = 2\n"}])
        newer = upstream.commit("Two (#2)", {"b.py": "b = 1\n"})
        upstream.git("checkout", "--quiet", "--detach", "refs/pull/7/head")
        upstream.git("merge", "--quiet", "--no-edit", newer)
        upstream.git("update-ref", "refs/pull/7/head", "HEAD")
        upstream.git("checkout", "--quiet", "main")
        found = resolve_pull(store, upstream.address, 7)
        assert found.pin.base == newer
        assert found.subjects[0] == "work 0"

    def test_what_cannot_be_pinned(self, store: Store, upstream: UpstreamRepository) -> None:
        base = upstream.commit("One (#1)", {"a.py": "a = 1\n"})
        with pytest.raises(FetchError, match="has no pull request 7"):
            resolve_pull(store, upstream.address, 7)
        upstream.git("update-ref", "refs/pull/7/head", base)
        with pytest.raises(FetchError, match="already in the default branch"):
            resolve_pull(store, upstream.address, 7)
        with pytest.raises(FetchError, match="could not be asked"):
            resolve_pull(store, "file:///nonexistent", 7)


class TestCarryEditor:
    def editor(self, repository: Repository, files: dict[str, str]) -> CarryEditor:
        base = make_tree(repository, {"a.py": "a = 1\nb = 2\n"})
        pristine = make_tree(repository, files)
        return CarryEditor(repository, pristine, "1.1.0", lambda _: base)

    def carry(self, repository: Repository, tmp_path: Path, name: str = "count", **changes: object) -> object:
        before = {"a.py": "a = 1\nb = 2\n"}
        return make_carry(
            tmp_path / "carries", repository, name, before, {"a.py": "a = 10\nb = 2\n"}, **changes
        )

    @pytest.mark.parametrize(
        ("now", "change"),
        [("a = 1\nb = 2\nc = 3\n", [b"-a = 1", b"+a = 10"]), ("a = 10\nb = 2\n", [])],
        ids=["moved", "nothing left"],
    )
    def test_a_clean_move(self, repository, tmp_path, now, change):
        carry = self.carry(repository, tmp_path)
        editor = self.editor(repository, {"a.py": now})
        assert editor.moved(carry, tmp_path / "work").splitlines()[-2:] == change
        assert not (tmp_path / "work").exists()

    def test_a_pull_request_is_not_reworked_here(self, repository: Repository, tmp_path: Path) -> None:
        carry = create_pull(tmp_path, DRAFT, PULL, [])
        editor = self.editor(repository, {"a.py": "a = 1\n"})
        with pytest.raises(ConfigError, match="held as it is upstream"):
            editor.merged(carry)
