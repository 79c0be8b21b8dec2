"""The three-way merge: any base, conflicts by path, and nobody's attributes."""

import pytest
from kit import make_tree

from sparkwright.base.errors import ProcessError
from sparkwright.git.repository import Repository
from sparkwright.git.trees import merge_trees


def test_merge_takes_the_base_that_it_is_given(repository: Repository) -> None:
    text = "1\n2\n3\n4\n5\n6\n7\n"
    base, ours, theirs = (
        make_tree(repository, {"f": text.replace(*change)})
        for change in (("", ""), ("1\n", "one\n"), ("7\n", "seven\n"))
    )
    commit = repository.commit(base, message="base")
    merged = merge_trees(repository, base=commit, ours=ours, theirs=theirs)
    assert merged.clean
    assert merged.messages == ()
    assert merged.tree == make_tree(repository, {"f": "one\n2\n3\n4\n5\n6\nseven\n"})
    other = repository.commit(theirs, message="the same sides, another base")
    assert merge_trees(repository, base=other, ours=ours, theirs=theirs).tree == ours


def test_conflicts_are_listed_by_path_with_git_s_words(repository: Repository) -> None:
    names = ["a b", 'q"', "n\nl", "\udcff", "ok"]
    sides = [
        make_tree(repository, {**dict.fromkeys(names[:4], text), "ok": "same"})
        for text in ("b\n", "o\n", "t\n")
    ]
    base = repository.commit(sides[0], message="base")
    merged = merge_trees(repository, base=base, ours=sides[1], theirs=sides[2])
    assert not merged.clean
    assert merged.conflicts == tuple(sorted(names[:4]))
    assert len(merged.messages) == 4
    assert all(message.startswith("CONFLICT (content)") for message in merged.messages)
    assert b"|||||||" in repository.blob(repository.files(merged.tree)["a b"].blob)


def test_deleting_what_the_other_side_changed_is_a_conflict(repository: Repository) -> None:
    base, ours, theirs = (
        make_tree(repository, files) for files in ({"a": "1\n", "b": ""}, {"b": ""}, {"a": "2\n", "b": ""})
    )
    commit = repository.commit(base, message="base")
    assert merge_trees(repository, base=commit, ours=ours, theirs=theirs).conflicts == ("a",)


def test_attributes_of_the_trees_do_not_choose_a_merge(repository: Repository) -> None:
    files = {".gitattributes": "* merge=union\n"}
    base, ours, theirs = (make_tree(repository, {**files, "f": text}) for text in ("b\n", "o\n", "t\n"))
    commit = repository.commit(base, message="base")
    assert merge_trees(repository, base=commit, ours=ours, theirs=theirs).conflicts == ("f",)


def test_merging_with_a_missing_object_is_an_error_and_no_conflict(repository: Repository) -> None:
    tree = make_tree(repository, {"f": "1"})
    with pytest.raises(ProcessError):
        merge_trees(repository, base="1" * 40, ours=tree, theirs=tree)
