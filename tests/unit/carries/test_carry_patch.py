"""Patches: git's own diffs go round, everything else is refused, and nothing ever fits nearly."""

import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from kit import make_tree, write_diff

from sparkwright.base.errors import PatchError
from sparkwright.carries.patch import Patch, parse_patch
from sparkwright.git.repository import Repository
from sparkwright.git.trees import FileEntry, blob_id

Files = dict[str, bytes]


def go_round(repository: Repository, before: Files, after: Files) -> Patch:
    """Diff, parse, apply; the result must be *after*."""
    patch = parse_patch(write_diff(repository, before, after), name="p")
    changed = patch.apply(before.get)
    result = dict(before)
    for path, new in changed.items():
        if new is None:
            del result[path]
        else:
            result[path] = new[1]
    assert result == after
    return patch


EDITS = {
    "several hunks": (
        b"".join(b"%d\n" % n for n in range(40)),
        b"".join(b"%d\n" % (n if n % 9 else -n - 1) for n in range(40)),
    ),
    "lone carriage returns": (b"a\rb\rc\nd\n", b"a\rB\rc\nd\re\n"),
    "carriage return at the very end": (b"a\n", b"a\nb\r"),
    "form feeds and friends": (b"a\x0cb\x0b\x1c\x1d\x1e\n2\n", b"a\x0cB\x0b\x1c\x1d\x1e\n2\n\x0c\n"),
    "unicode line separators": ("é\u2028x\u0085y\n2\n".encode(), "é\u2028x\u0085z\n2\u2029\n".encode()),
    "lines like a diff's": (b"-- a\n++ b\n@@ -1 +1 @@\n", b"-- b\n++ c\n@@ -2 +1 @@\ndiff --git a/x b/x\n"),
    "lines like a header's": (b"x\n", b"x\nrename from a\nold mode 100644\nindex 0..1\n--- a/x\n+++ b/x\n"),
    "lines that begin with a backslash": (b"\\ No newline at end of file\n", b"\\ No newline\n"),
}


@pytest.mark.parametrize("case", EDITS)
def test_gits_own_diff_goes_round(repository: Repository, case: str) -> None:
    before, after = EDITS[case]
    patch = go_round(repository, {"f.py": before}, {"f.py": after})
    assert patch.paths == ("f.py",)
    (file,) = patch.files
    assert (file.old, file.new) == (blob_id(before), blob_id(after))


def test_new_deleted_and_empty_files_go_round(repository: Repository) -> None:
    before = {"gone.py": b"1\n2", "empty gone": b"", "kept.py": b"k\n"}
    after = {"new.py": b"1\n", "empty": b"", "kept.py": b"K\n", "a folder/new file": b"x"}
    patch = go_round(repository, before, after)
    assert set(patch.paths) == {"gone.py", "empty gone", "kept.py", "new.py", "empty", "a folder/new file"}
    for file in patch.files:
        assert (file.old is None) == (file.path not in before)
        assert (file.new is None) == (file.path not in after)


def test_modes_are_kept(repository: Repository) -> None:
    before = {"run.sh": FileEntry("100755", b"1\n")}
    after = {"run.sh": FileEntry("100755", b"2\n"), "new.sh": FileEntry("100755", b"n\n")}
    patch = parse_patch(write_diff(repository, before, after), name="p")
    changed = patch.apply({"run.sh": b"1\n"}.get)
    assert changed == {"run.sh": ("100755", b"2\n"), "new.sh": ("100755", b"n\n")}


def diff(repository: Repository, before: Files, after: Files, **options: int) -> bytes:
    return repository.diff(
        make_tree(repository, before), make_tree(repository, after), context=options.get("context", 0)
    )


def refused(text: bytes, match: str = "") -> None:
    with pytest.raises(PatchError, match=match or None):
        parse_patch(text, name="p")


def test_context_lines_are_refused(repository: Repository) -> None:
    refused(diff(repository, {"f": b"1\n2\n3\n"}, {"f": b"1\nx\n3\n"}, context=1), "context lines")


def test_short_or_missing_ids_are_refused(repository: Repository) -> None:
    text = diff(repository, {"f": b"1\n"}, {"f": b"2\n"})
    old, new = blob_id(b"1\n").encode(), blob_id(b"2\n").encode()
    assert parse_patch(text, name="p").paths == ("f",)
    refused(text.replace(old, old[:12]), "which blobs")
    refused(text.replace(new, new[:12]), "which blobs")
    refused(text.replace(b"index ", b"idx "), "which blobs")
    refused(text.replace(old, old.upper()) if old.upper() != old else text.replace(old, b""), "which blobs")
    refused(b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-1\n+2\n", "which blobs")


@pytest.mark.parametrize("flag", ["--find-renames=10%", "--find-copies-harder"])
def test_renames_and_copies_are_refused(repository: Repository, flag: str) -> None:
    text = b"".join(b"line %d\n" % n for n in range(20))
    after = {"g": text + b"x\n"} | ({"f": text} if "copies" in flag else {})
    trees = [make_tree(repository, {"f": text}), make_tree(repository, after)]
    out = repository.command("diff-tree", "-p", "-r", "-U0", "--full-index", flag, *trees).stdout
    assert b"rename from" in out or b"copy from" in out
    refused(out, "rename from|copy from")


def test_binary_files_are_refused(repository: Repository) -> None:
    refused(diff(repository, {"f": b"\0"}, {"f": b"\0\1"}), "Binary files")
    trees = [make_tree(repository, {"f": b"\0"}), make_tree(repository, {"f": b"\0\1"})]
    out = repository.command("diff-tree", "-p", "--binary", "--full-index", *trees).stdout
    refused(out, "GIT binary patch")


def test_mode_changes_links_and_submodules_are_refused(repository: Repository) -> None:
    refused(write_diff(repository, {"f": b"1\n"}, {"f": FileEntry("100755", b"1\n")}), "old mode")
    refused(write_diff(repository, {"f": b"1\n"}, {"f": FileEntry("100755", b"2\n")}), "old mode")
    refused(write_diff(repository, {"g": b""}, {"g": b"", "l": FileEntry("120000", b"g")}), "120000")
    refused(
        write_diff(repository, {"l": FileEntry("120000", b"g")}, {"l": FileEntry("120000", b"h")}), "120000"
    )
    commit = "1" * 40
    listing = f"160000 commit {commit}\tsub\n".encode()
    tree = repository.command("mktree", "--missing", stdin=listing).text
    refused(repository.diff(make_tree(repository, {}), tree, context=0), "160000")


HEADER = "diff --git a/{0} b/{0}\nindex {1}..{2} 100644\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-1\n+2\n"


def named(path: str) -> bytes:
    return HEADER.format(path, blob_id(b"1\n"), blob_id(b"2\n")).encode()


@pytest.mark.parametrize(
    "path",
    [
        "../f", "a/../f", "..", "/etc/passwd", ".git/config", "a/.git/hooks/x", "a//b", "./a", "a/./b", "a/",
        "a\\b",
    ],
)  # fmt: skip
def test_paths_outside_the_tree_are_refused(path: str) -> None:
    refused(named(path))
    assert parse_patch(named("a/..b/.gitignore"), name="p").paths == ("a/..b/.gitignore",)


@pytest.mark.parametrize("path", ['quo"te', "line\nfeed", "tab\ttab", "back\\slash", "ctrl\x01"])
def test_paths_that_git_quotes_are_refused(repository: Repository, path: str) -> None:
    refused(write_diff(repository, {path: b"1\n"}, {path: b"2\n"}))
    refused(write_diff(repository, {}, {path: b"2\n"}))


def test_prefixes_other_than_git_s_are_refused() -> None:
    refused(named("f").replace(b"diff --git a/f b/f\n", b"").replace(b"--- a/f", b"--- x/f"))
    refused(named("f").replace(b"a/f", b"x/f").replace(b"b/f", b"y/f"))
    refused(named("f").replace(b"+++ b/f", b"+++ b/g"))
    refused(named("f").replace(b"a/f", b"a/g"), "renames")


def test_one_file_twice_is_refused() -> None:
    refused(named("f") + named("f"), "one file twice")
    assert parse_patch(named("f") + named("g"), name="p").paths == ("f", "g")


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\n", b"hello\n", b"\0\xff", b"@@ -1 +1 @@\n-1\n+2\n",
        b"diff --cc f\nindex 1,2..3\n@@@ -1 -1 +1 @@@\n",
    ],
)  # fmt: skip
def test_what_is_no_patch_is_refused(text: bytes) -> None:
    refused(text)


def test_a_patch_cut_short_is_refused(repository: Repository) -> None:
    whole = diff(repository, {"f": b"1\n2\n3\n"}, {"f": b"1\nx\ny\n3\n"})
    for end in range(len(whole) - 1):
        try:
            patch = parse_patch(whole[:end], name="p")
        except PatchError:
            continue
        with pytest.raises(PatchError):
            patch.apply({"f": b"1\n2\n3\n"}.get)


def test_another_blob_is_refused_whatever_it_shares() -> None:
    patch = parse_patch(named("f"), name="p")
    assert patch.apply({"f": b"1\n"}.get) == {"f": ("100644", b"2\n")}
    for other in (b"1\r\n", b"1", b"1\n\n", b"", b"2\n"):
        with pytest.raises(PatchError, match="does not fit") as caught:
            patch.apply({"f": other}.get)
        assert "refresh" in caught.value.next_step


SOUND = ("@@ -1 +1 @@\n-1\n+x\n", "@@ -3 +3 @@\n-3\n+y\n")


@pytest.mark.parametrize(
    ("hunks", "at"),
    [
        ((SOUND[0].replace("-1\n", "-0\n"), SOUND[1]), 1),
        ((SOUND[0], SOUND[1].replace("-3 ", "-2 ")), 2),
        (SOUND[::-1], 1),
    ],
    ids=["other lines", "another place", "out of order"],
)
def test_what_removes_lines_that_are_not_there_is_refused(hunks: tuple[str, ...], at: int) -> None:
    """Also where the result would be the promised blob."""
    before, after = b"1\n2\n3\n", b"x\n2\ny\n"
    head = HEADER.partition("@@")[0].format("f", blob_id(before), blob_id(after))
    assert parse_patch((head + "".join(SOUND)).encode(), name="p").apply({"f": before}.get) == {
        "f": ("100644", after)
    }
    with pytest.raises(PatchError, match="damaged") as caught:
        parse_patch((head + "".join(hunks)).encode(), name="p").apply({"f": before}.get)
    assert caught.value.because == f"the lines that it removes at {at} are not there"


def test_a_missing_or_unexpected_file_is_refused(repository: Repository) -> None:
    with pytest.raises(PatchError, match="is missing"):
        parse_patch(named("f"), name="p").apply(lambda _: None)
    new = parse_patch(diff(repository, {}, {"f": b"1\n"}), name="p")
    with pytest.raises(PatchError, match="exists already"):
        new.apply({"f": b""}.get)


def test_a_deletion_names_every_line(repository: Repository) -> None:
    whole = diff(repository, {"f": b"1\n2\n"}, {})
    assert parse_patch(whole, name="p").apply({"f": b"1\n2\n"}.get) == {"f": None}
    half = whole.replace(b"@@ -1,2 +0,0 @@\n-1\n-2\n", b"@@ -1 +0,0 @@\n-1\n")
    assert half != whole
    with pytest.raises(PatchError, match="damaged"):
        parse_patch(half, name="p").apply({"f": b"1\n2\n"}.get)


def test_nothing_is_applied_unless_all_is() -> None:
    patch = parse_patch(named("f") + named("g"), name="p")
    with pytest.raises(PatchError, match="the patch for g"):
        patch.apply({"f": b"1\n", "g": b"other\n"}.get)


@examples(max_examples=200)
@given(st.binary(max_size=200))
def test_no_bytes_make_the_parser_fall_over(text: bytes) -> None:
    try:
        parse_patch(text, name="p")
    except PatchError:
        return


@examples(max_examples=150)
@given(st.data())
def test_no_damage_to_a_patch_goes_unnoticed(data: st.DataObject) -> None:
    """Whatever a changed byte makes of a patch, it is refused or still gives exactly the promised blob."""
    text = bytearray(named("f"))
    text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        changed = parse_patch(bytes(text), name="p").apply({"f": b"1\n"}.get)
    except PatchError:
        return
    for new in changed.values():
        assert new is not None
        assert new[1] == b"2\n"


line = st.sampled_from([b"a", b"b", b"", b"a\r", b"\x0c", b"-x", b"+", b"\\", "é\u2028".encode(), b"\xff"])
text_of_lines = st.tuples(st.lists(line, max_size=12), st.booleans()).map(
    lambda drawn: b"\n".join(drawn[0]) + (b"\n" if drawn[1] and drawn[0] else b"")
)


@examples(max_examples=40)
@given(before=text_of_lines, after=text_of_lines, other=text_of_lines)
def test_apply_undoes_diff_and_takes_no_other_base(repository, before, after, other):
    assume(before != after)
    (file,) = go_round(repository, {"f": before}, {"f": after}).files
    if other != before:
        with pytest.raises(PatchError, match="does not fit"):
            file.apply(other)
