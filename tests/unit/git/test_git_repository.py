"""The object store: the same ids everywhere, whatever the machine, the user and the caller's git say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import Content, make_tree, small_disk, write_program

import sparkwright
from sparkwright.base.errors import ProcessError, RefError, ToolError
from sparkwright.git.repository import ATTRIBUTES, Repository, TreeEntry, git_environment, open_repository
from sparkwright.git.trees import (
    FileEntry,
    blob_id,
    check_out,
    import_files,
    make_read_only,
    merge_trees,
    patch_tree,
)
from sparkwright.store.disk import remove_tree

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"

FILES = {
    "plain.py": FileEntry("100644", b"a = 1\r\nb = 2\n"),
    "run.sh": FileEntry("100755", b"#!/bin/sh\n"),
    "link": FileEntry("120000", b"plain.py"),
    "a folder/with spaces.txt": FileEntry("100644", b"x"),
    'quo"te\\back': FileEntry("100644", b""),
    "line\nfeed\ttab": FileEntry("100644", b"\0\xff"),
    "caf\udce9 latin": FileEntry("100644", b"not UTF-8 in the name"),
    "caf\u00e9": FileEntry("100644", b"UTF-8 in the name"),
    ":(top)magic": FileEntry("100644", b"looks like pathspec magic"),
    "[ab]*?.py": FileEntry("100644", b"looks like a pattern"),
    "-option": FileEntry("100644", b"looks like an option"),
}

# Everything that a run computes, printed: what another process on another "machine" must print too.
COMPUTE = """
import sys
from pathlib import Path
from sparkwright.git.repository import open_repository
from sparkwright.git.trees import FileEntry, import_files, merge_trees, patch_tree
repository = open_repository(Path(sys.argv[1]))
base_text = b"".join(b"line %d\\n" % i for i in range(30))
files = {"a.py": FileEntry("100644", base_text), "d\\u00e9/r.sh": FileEntry("100755", b"x"),
         "n\\udce9": FileEntry("120000", b"a.py")}
tree = import_files(repository, files.items())
base = repository.commit(tree, message="base")
def changed(old, new, **others):
    files = {"a.py": FileEntry("100644", base_text.replace(old, new)), **others}
    return patch_tree(repository, tree, files)
ours = changed(b"line 3\\n", b"three\\n")
theirs = changed(b"line 20\\n", b"twenty\\r\\n", **{"n\\udce9": None})
merged = merge_trees(repository, base=base, ours=ours, theirs=theirs)
other = changed(b"line 3\\n", b"3\\n")
clash = merge_trees(repository, base=base, ours=ours, theirs=other)
head = repository.commit(merged.tree, parents=[base], message="merged")
listed = sorted(repository.files(tree, ["d\\u00e9/r.sh", "n\\udce9"]))
blob = repository.blob(repository.files(tree)["a.py"].blob)
print(tree, base, ours, theirs, merged.tree, merged.clean, clash.tree, clash.conflicts, head, ascii(listed),
      len(blob), repository.diff(ours, theirs, context=1).hex(), repository.has(head))
"""


def compute(tmp_path: Path, name: str, *, umask: int = 0o022, **variables: str) -> str:
    """Run COMPUTE in a process and a store of its own."""
    build = str(Path(sparkwright.__file__).parents[1])
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": build, **variables}
    command = [sys.executable, "-c", COMPUTE, str(tmp_path / name / "git")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, umask=umask)
    assert done.returncode == 0, done.stderr
    return done.stdout


def hostile_home(tmp_path: Path) -> dict[str, str]:
    """A user's configuration that would change every result if git read it."""
    home = tmp_path / "hostile"
    attributes = home / ".config" / "git" / "attributes"
    attributes.parent.mkdir(parents=True)
    attributes.write_text("* merge=union -diff text eol=crlf\n")
    hooks = home / "hooks"
    for hook in ("reference-transaction", "post-checkout"):
        write_program(hooks / hook, "exit 1")
    text = f"""
[user]
    name = Somebody Else
    email = else@example.org
[core]
    autocrlf = true
    hooksPath = {hooks}
    attributesFile = {attributes}
    abbrev = 5
[commit]
    gpgSign = true
[i18n]
    commitEncoding = ISO-8859-1
[merge]
    conflictStyle = merge
    renames = false
[diff]
    noprefix = true
    algorithm = minimal
    external = /bin/false
[color]
    ui = always
[init]
    defaultObjectFormat = sha256
    templateDir = /nonexistent
[extensions]
    nonsense = true
"""
    (home / ".gitconfig").write_text(text)
    (home / "system").write_text(text)
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "GIT_CONFIG_SYSTEM": str(home / "system"),
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
    }


def test_ids_do_not_depend_on_the_machine_or_its_user(tmp_path: Path) -> None:
    plain = compute(tmp_path, "plain")
    hook = tmp_path / "hook"
    subprocess.run(["git", "init", "--quiet", hook], check=True, capture_output=True)
    elsewhere = {
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C.utf8",
        "LANGUAGE": "de",
        "GIT_AUTHOR_NAME": "Me",
        "GIT_COMMITTER_EMAIL": "me@example.org",
        "GIT_AUTHOR_DATE": "1 +0100",
    }
    ascii_only = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    in_a_hook = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "merge.renames",
        "GIT_CONFIG_VALUE_0": "nonsense",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_EXTERNAL_DIFF": "/bin/false",
        "GIT_LITERAL_PATHSPECS": "0",
        "GIT_TEMPLATE_DIR": "/nonexistent",
        "GIT_DIR": str(hook / ".git"),
        "GIT_WORK_TREE": str(hook),
        "GIT_INDEX_FILE": str(hook / ".git" / "index"),
        "GIT_OBJECT_DIRECTORY": str(hook / ".git" / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(hook / "nowhere"),
        "GIT_QUARANTINE_PATH": str(hook / ".git" / "objects"),
        "GIT_PREFIX": "sub/",
        "GIT_NAMESPACE": "other",
    }
    assert compute(tmp_path, "elsewhere", umask=0o077, **elsewhere) == plain
    assert compute(tmp_path, "ascii", **ascii_only, **hostile_home(tmp_path)) == plain
    assert compute(tmp_path, "hook", **in_a_hook) == plain
    # Nothing went to the repository of the hook.
    assert not [path for path in (hook / ".git" / "objects").rglob("*") if path.is_file()]


def test_the_ids_are_these(repository: Repository) -> None:
    """Pinned: a change to any of them changes the name of everything that was ever published."""
    assert blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    commit = repository.commit(EMPTY_TREE, message="pristine")
    assert commit == "4f54036541b2f3b77b759f9d9603acf6264ae0ad"


def test_every_path_mode_and_byte_goes_in_and_comes_out(repository: Repository, tmp_path: Path) -> None:
    tree = import_files(repository, FILES.items())
    expected = {path: TreeEntry(file.mode, blob_id(file.data)) for path, file in FILES.items()}
    assert repository.files(tree) == expected
    listed = repository.command("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree).stdout
    assert sorted(os.fsdecode(name) for name in listed.split(b"\0") if name) == sorted(FILES)
    assert {path: repository.blob(found.blob) for path, found in expected.items()} == {
        path: file.data for path, file in FILES.items()
    }
    fresh = Repository(repository.path)
    assert fresh.files(tree, FILES) == expected
    for path in FILES:
        assert fresh.files(tree, [path]) == {path: expected[path]}, path
    folder = tmp_path / "out"
    check_out(repository, tree, folder)
    for path, file in FILES.items():
        written = folder / path
        if file.mode == "120000":
            assert str(written.readlink()).encode() == file.data
        else:
            assert written.read_bytes() == file.data
            assert bool(written.stat().st_mode & 0o100) is (file.mode == "100755")
    assert not folder.with_name("out.index").exists()


def test_files_that_are_not_there_are_not_found(repository: Repository) -> None:
    tree = make_tree(repository, {"a/b": "x"})
    assert Repository(repository.path).files(tree, ["b", "a/c", "*", "a/*"]) == {}
    assert repository.files(tree)
    assert repository.files(tree, ["a/b", "gone"]).keys() == {"a/b"}


def test_an_empty_tree_is_one(repository: Repository) -> None:
    assert import_files(repository, []) == EMPTY_TREE
    assert (
        patch_tree(repository, make_tree(repository, {"a": "1", "b/c": "2"}), {"a": None, "b/c": None})
        == EMPTY_TREE
    )
    assert repository.files(EMPTY_TREE) == {}


def test_a_changed_tree_is_the_one_that_git_would_write(repository: Repository) -> None:
    before: dict[str, Content] = {"a": "1", "b/c": "2", "b.d": "3", "b-e": "4", "b/f/g": "5", "h/i": "6"}
    new = FileEntry("100755", b"n")
    changes = {"a": None, "b/f/g": None, "b/f/h": new, "j/k/l": new, "h/i": None, "b.d": new}
    after = {path: content for path, content in {**before, **changes}.items() if content is not None}
    tree = make_tree(repository, before)
    edited = patch_tree(repository, tree, changes)
    assert edited == make_tree(repository, after)
    assert repository.changed(tree, edited).keys() == changes.keys()
    assert repository.changed(tree, tree) == {}
    assert repository.changed(tree, edited)["a"] == (TreeEntry("100644", blob_id(b"1")), None)
    assert repository.changed(tree, edited)["j/k/l"] == (None, TreeEntry("100755", blob_id(b"n")))
    assert repository.command("for-each-ref").text == ""


def test_a_file_may_become_a_folder_and_a_folder_a_file(repository: Repository) -> None:
    file, folder = make_tree(repository, {"a": "1", "z": ""}), make_tree(repository, {"a/b": "1", "z": ""})
    one = FileEntry("100644", b"1")
    assert patch_tree(repository, file, {"a": None, "a/b": one}) == folder
    assert patch_tree(repository, folder, {"a/b": None, "a": one}) == file
    assert patch_tree(repository, file, {"a/b": None}) == file
    assert repository.changed(file, folder).keys() == {"a", "a/b"}


@pytest.mark.parametrize("path", ["../out", ".git/config", "a/../../out", "a/./b", "a/.git/hooks/x"])
def test_a_tree_with_a_path_out_of_its_folder_is_never_written(repository, tmp_path, path):
    tree = import_files(repository, [(path, FileEntry("100644", b"evil"))])
    with pytest.raises(ProcessError):
        check_out(repository, tree, tmp_path / "deep" / "out")
    assert not [found for found in tmp_path.rglob("*") if found.is_file() and found.read_bytes() == b"evil"]


def test_a_link_in_a_tree_is_not_written_through(repository: Repository, tmp_path: Path) -> None:
    """git's trees cannot hold a link and files below it; two trees, one over the other, could."""
    (tmp_path / "target").mkdir()
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "sub").symlink_to(tmp_path / "target")
    check_out(repository, make_tree(repository, {"sub/file": "x"}), folder)
    assert not (tmp_path / "target" / "file").exists()


def test_check_out_of_one_folder_keeps_its_place_and_trees_attributes_change_nothing(repository, tmp_path):
    attributes = "* text eol=crlf ident\n*.py working-tree-encoding=UTF-16 filter=x\nsecret export-ignore\n"
    files = {"vllm/a.py": "a = 1 # $Id$\n", "vllm/secret": "s\n", "setup.py": "x\n"}
    tree = make_tree(repository, {**files, ".gitattributes": attributes, "vllm/.gitattributes": attributes})
    check_out(repository, tree, tmp_path / "some", under="vllm")
    found = sorted(path.name for path in (tmp_path / "some").rglob("*") if path.is_file())
    assert found == [".gitattributes", "a.py", "secret"]
    assert (tmp_path / "some" / "vllm" / "a.py").read_bytes() == b"a = 1 # $Id$\n"
    with pytest.raises(RefError):
        check_out(repository, "HEAD", tmp_path / "none")


def test_read_only_means_every_file_and_folder(repository: Repository, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    check_out(repository, import_files(repository, FILES.items()), folder)
    make_read_only(folder)
    modes = {path: path.lstat().st_mode for path in folder.rglob("*") if not path.is_symlink()}
    assert len(modes) == len(FILES)  # a link less, a folder more
    assert all(mode & 0o222 == 0 for mode in modes.values())
    assert modes[folder / "run.sh"] & 0o111
    remove_tree(folder)
    assert not folder.exists()


def test_objects_are_found_or_named_as_missing(repository: Repository) -> None:
    tree = make_tree(repository, {"a": "1"})
    commit = repository.commit(tree, message="c")
    assert repository.has(tree)
    assert repository.has(commit)
    assert repository.tree_of(commit) == tree
    for absent in ("1" * 40, "nonsense"):
        assert not repository.has(absent)
        with pytest.raises(RefError):
            repository.tree_of(absent)
        for read in (repository.blob, repository.files):
            with pytest.raises(RefError):
                read(absent)
    # A failed read leaves the next one unharmed, and new objects are seen by the process that reads.
    later = make_tree(repository, {"later": "2"})
    assert repository.blob(repository.files(later)["later"].blob) == b"2"


def test_a_kept_object_survives_git_s_clean_up(repository: Repository) -> None:
    tree = make_tree(repository, {"a": "1"})
    kept = repository.commit(tree, message="kept")
    lost = repository.commit(tree, message="lost")
    repository.keep("refs/sparkwright/kept", kept)
    repository.command("gc", "--prune=now", "--quiet")
    assert repository.has(kept)
    assert not repository.has(lost)


def fake_git(tmp_path: Path, says: str) -> str:
    folder = write_program(tmp_path / "bin" / "git", f"echo '{says}'").parent
    return str(folder)


@pytest.mark.parametrize("says", ["git version 2.37.9", "git version 1.9.1", "no git at all"])
def test_an_old_git_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    monkeypatch.setenv("PATH", fake_git(tmp_path, says))
    with pytest.raises(ToolError, match="too old") as caught:
        open_repository(tmp_path / "git")
    assert caught.value.next_step
    assert not (tmp_path / "git").exists()


def test_no_git_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="not found") as caught:
        open_repository(tmp_path / "git")
    assert "2.38" in caught.value.next_step


FILL = """
import os, sys
from pathlib import Path
from sparkwright.base.errors import StorageError
from sparkwright.git.repository import open_repository
from sparkwright.git.trees import FileEntry, import_files, patch_tree
repository = open_repository(Path(sys.argv[1]))
kept = import_files(repository, [("a", FileEntry("100644", b"small"))])
big = FileEntry("100644", os.urandom(4 << 20))
attempts = [lambda: import_files(repository, [("b", big)]), lambda: patch_tree(repository, kept, {"b": big})]
for attempt in attempts:
    try:
        attempt()
    except StorageError as error:
        print(error.exit_code, error.because, error.next_step)
assert repository.files(kept).keys() == {"a"}
assert repository.blob(repository.files(kept)["a"].blob) == b"small"
"""


def test_a_full_disk_is_a_storage_error_however_it_is_met(tmp_path: Path) -> None:
    words = small_disk(tmp_path / "disk", "2m")
    build = str(Path(sparkwright.__file__).parents[1])
    done = subprocess.run(
        [*words, sys.executable, "-c", FILL, tmp_path / "disk" / "git"],
        env={**os.environ, "PYTHONPATH": build},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("70 no space left on device") and "free some space" in line for line in lines)


@pytest.mark.parametrize("damage", ["", None, "* text\n"])
def test_attributes_that_a_disk_lost_are_written_again(tmp_path: Path, damage: str | None) -> None:
    """Without them an upstream tree's own would have a say in merges."""
    open_repository(tmp_path / "git").close()
    attributes = tmp_path / "git" / "info" / "attributes"
    attributes.unlink()
    if damage is not None:
        attributes.write_text(damage)
    open_repository(tmp_path / "git").close()
    assert attributes.read_text() == ATTRIBUTES


def test_the_environment_keeps_what_the_machine_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", "ssh -i key")
    monkeypatch.setenv("GIT_SSL_NO_VERIFY", "1")
    monkeypatch.setenv("HTTPS_PROXY", "proxy")
    env = git_environment()
    assert env["GIT_SSH_COMMAND"] == "ssh -i key"
    assert env["HTTPS_PROXY"] == "proxy"
    assert "GIT_SSL_NO_VERIFY" not in env


# The three-way merge: any base, conflicts by path, and nobody's attributes ----------------


def test_conflicts_are_listed_by_path(repository: Repository) -> None:
    names = ["a b", 'q"', "n\nl", "\udcff", "ok"]
    sides = [
        make_tree(repository, {**dict.fromkeys(names[:4], text), "ok": "same"})
        for text in ("b\n", "o\n", "t\n")
    ]
    base = repository.commit(sides[0], message="base")
    merged = merge_trees(repository, base=base, ours=sides[1], theirs=sides[2])
    assert not merged.clean
    assert merged.conflicts == tuple(sorted(names[:4]))
    assert b"|||||||" in repository.blob(repository.files(merged.tree)["a b"].blob)


def test_attributes_of_the_trees_do_not_choose_a_merge(repository: Repository) -> None:
    files = {".gitattributes": "* merge=union\n"}
    base, ours, theirs = (make_tree(repository, {**files, "f": text}) for text in ("b\n", "o\n", "t\n"))
    commit = repository.commit(base, message="base")
    assert merge_trees(repository, base=commit, ours=ours, theirs=theirs).conflicts == ("f",)


def test_merging_with_a_missing_object_is_an_error_and_no_conflict(repository: Repository) -> None:
    tree = make_tree(repository, {"f": "1"})
    with pytest.raises(ProcessError):
        merge_trees(repository, base="1" * 40, ours=tree, theirs=tree)


OPEN_AND_IMPORT = """
import sys
from pathlib import Path
from sparkwright.git.repository import open_repository
from sparkwright.git.trees import FileEntry, import_files
repository = open_repository(Path(sys.argv[1]))
for number in range(5):
    files = [(f"f{i}", FileEntry("100644", b"%d" % (i * number))) for i in range(50)]
    print(import_files(repository, files))
"""


def test_processes_that_open_and_import_at_once_agree(tmp_path: Path) -> None:
    build = str(Path(sparkwright.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": build}
    command = [sys.executable, "-c", OPEN_AND_IMPORT, str(tmp_path / "git")]
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(answers) == 1
    repository = open_repository(tmp_path / "git")
    for tree in answers.pop().split():
        assert len(repository.files(tree)) == 50
    repository.command("fsck", "--strict")
    assert repository.command("for-each-ref").text == ""
