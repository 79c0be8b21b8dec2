"""Remotes: addresses and refs that are refused, and fetching exactly what was asked for."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from kit import UpstreamRepository

from sparkwright.base.errors import FetchError, RefError, SparkwrightError
from sparkwright.git import remotes
from sparkwright.git.remotes import check_address, check_object_id, check_ref, fetch, list_remote
from sparkwright.git.repository import Repository, open_repository
from sparkwright.upstream.releases import Access, open_source

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "address",
    [
        "", "--upload-pack=touch /tmp/owned", "-oProxyCommand=touch /tmp/owned",
        "ext::sh -c touch% /tmp/owned", "ext::sh -c touch% x://y", "fd::17", "https::evil://host/x",
        "http://host/x", "git://host/x", "ftp://host/x", "HTTPS://host/x", "ht\ttps://host/x",
        "https://[host/x", "https://", "https:///path", "file://", "file://host/share",
        "ssh://-oProxyCommand=x/y", "ssh://user@-oProxyCommand=x/y", "host:-path", "host::path",
        "https://host/x\nfile:///y", "no/such/folder", "a\0b",
    ],
)  # fmt: skip
def test_addresses_that_are_no_remote_are_refused(address: str) -> None:
    with pytest.raises(RefError):
        check_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "https://host/owner/name", "https://host:8443/owner/name.git", "ssh://git@host/owner/name",
        "ssh://git@host:22/~/name", "file:///srv/git/name", "git@host:owner/name.git", "host:owner/name",
    ],
)  # fmt: skip
def test_addresses_of_remotes_are_taken(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "https://user:s3cret@host/x.git", "https://s3cret@host/x.git", "https://s3cret@user@host/x.git",
        "ssh://git:s3cret@host/x.git", "http://user:s3cret@host/x.git", "https:/user:s3cret@host/x.git",
        "user:s3cret@host/x.git", "https://host/x.git?token=s3cret", "host/x?token=s3cret@",
        "ftp://user@host/x?token=s3cret",
    ],
)  # fmt: skip
def test_secrets_in_addresses_are_refused_and_not_repeated(tmp_path, heard, address):
    repository = open_repository(tmp_path / "git")
    for use in (
        lambda: check_address(address),
        lambda: fetch(repository, address, ["refs/heads/main"]),
        lambda: list_remote(repository, address, ["refs/heads/main"]),
        lambda: open_source(address, cast("Access", None)),
    ):
        with pytest.raises(RefError, match="host/x") as caught:
            use()
        assert "s3cret" not in f"{caught.value} {caught.value.next_step}"
    assert "s3cret" not in "".join(event.to_json() for event in heard.events)


def test_a_folder_becomes_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a:b@c?d#e%f"
    folder.mkdir()
    assert check_address(str(folder)) == folder.as_uri()
    monkeypatch.chdir(tmp_path)
    assert check_address("a:b@c?d#e%f") == folder.as_uri()


@examples(max_examples=300)
@given(st.text(max_size=30))
def test_no_text_makes_the_check_of_addresses_fall_over(text: str) -> None:
    try:
        found = check_address(text)
    except RefError:
        return
    assert not found.startswith("-")
    assert "::" not in found.partition("/")[0]


@pytest.mark.parametrize(
    "value", ["", "HEAD", SHA[:39], SHA + "0", SHA.upper(), SHA + "\n", "g" * 40, "-" * 40]
)
def test_only_full_object_ids_are_object_ids(value: str) -> None:
    with pytest.raises(RefError):
        check_object_id(value)
    assert check_object_id(SHA) == SHA


@pytest.mark.parametrize("value", ["refs/heads/main", "HEAD", "v1.0", "refs/pull/7/head", "a@b", "caf\u00e9"])
def test_refs_are_taken(value: str) -> None:
    assert check_ref(value) == value


@examples(max_examples=150)
@given(
    st.lists(
        st.sampled_from(
            ["a", "/", ".", "..", "-", "@", "{", "~", ":", "*", "[", "\\", " ", ".lock", "é", "+"]
        ),
        max_size=6,
    ).map("".join)
)
def test_every_ref_that_passes_is_one_to_git_too(value: str) -> None:
    try:
        check_ref(value)
    except RefError:
        return
    done = subprocess.run(
        ["git", "check-ref-format", "--allow-onelevel", value], check=False, capture_output=True
    )
    assert done.returncode == 0, value


@pytest.mark.parametrize(
    "value",
    ["", "-x", "--all", "a..b", "a b", "a:b", "+a", "a*", "a^", "/a", "a/", "a.lock", "@", "a@{1}", "a\n"],
)
def test_what_git_reads_otherwise_is_no_ref(value: str) -> None:
    with pytest.raises(RefError):
        check_ref(value)


@pytest.fixture
def history(upstream: UpstreamRepository) -> list[str]:
    """Four commits on main, an annotated and a light tag on the third."""
    commits = [upstream.commit(f"commit {number}", {"f": f"{number}\n"}) for number in range(4)]
    upstream.git("tag", "-a", "v1", "-m", "one", commits[2])
    upstream.git("tag", "light", commits[2])
    return commits


def subjects(repository: Repository, commit: str) -> list[str]:
    return repository.command("log", "--format=%s", commit).text.splitlines()


def test_list_remote_peels_tags(repository, upstream, history):
    found = list_remote(
        repository, upstream.address, ["refs/tags/v1", "refs/tags/light", "refs/heads/main", "HEAD"]
    )
    assert found.keys() == {"refs/tags/v1", "refs/tags/light", "refs/heads/main", "HEAD"}
    assert found["refs/tags/v1"].commit == history[2]
    assert found["refs/tags/v1"].object_id != history[2]
    assert found["refs/tags/light"].commit == history[2]
    assert found["refs/tags/light"].peeled is None
    assert found["HEAD"].commit == found["refs/heads/main"].commit == history[3]


def test_fetch_by_id(repository: Repository, upstream: UpstreamRepository, history: list[str]) -> None:
    fetch(repository, upstream.address, [history[1]])
    assert repository.has(history[1])
    assert not repository.has(history[3])
    found = repository.files(repository.tree_of(history[1]))
    assert repository.blob(found["f"].blob) == b"1\n"


def test_fetch_of_a_ref_and_of_all_history_after_it(repository, upstream, history):
    fetch(repository, upstream.address, ["refs/heads/main"])
    assert subjects(repository, history[3]) == ["commit 3"]
    assert not repository.has(history[2])
    assert repository.command("for-each-ref").text == ""
    fetch(repository, upstream.address, ["refs/heads/main"], depth=None)
    assert subjects(repository, history[3]) == ["commit 3", "commit 2", "commit 1", "commit 0"]
    assert not (repository.path / "shallow").exists()


def test_history_only_leaves_files_out_and_never_fetches_them_later(repository, upstream, history):
    fetch(repository, upstream.address, ["refs/heads/main"], depth=None, filter_="tree:0")
    assert len(subjects(repository, history[3])) == 4
    assert not repository.has(upstream.git("rev-parse", "HEAD:f"))


@pytest.mark.parametrize(
    "wanted",
    [
        "--upload-pack=x",
        "+refs/heads/main:refs/heads/x",
        "refs/heads/main:refs/heads/bbbbbbbbbbbbb",  # as long as an object id
        "refs/heads/*",
        "A" * 40,
    ],
)
def test_what_is_neither_ref_nor_id_is_refused(repository, upstream, history, wanted):
    with pytest.raises(RefError):
        fetch(repository, upstream.address, [wanted])
    assert repository.command("for-each-ref").text == ""


def test_what_the_remote_does_not_have_is_a_fetch_error(repository, upstream, history):
    for wanted in (SHA, "refs/heads/absent"):
        with pytest.raises(FetchError, match=wanted) as caught:
            fetch(repository, upstream.address, [wanted])
        assert caught.value.because
        assert ("sparkwright lock check" if wanted == SHA else "--offline") in caught.value.next_step


@pytest.mark.parametrize("address", ["file:///nowhere/at/all", "https://127.0.0.1:9/x"])
def test_an_unreachable_remote_is_a_fetch_error(repository: Repository, address: str) -> None:
    with pytest.raises(FetchError):
        list_remote(repository, address, ["HEAD"])
    with pytest.raises(FetchError):
        fetch(repository, address, ["refs/heads/main"])


def test_git_itself_refuses_other_transports_too(repository: Repository, tmp_path: Path) -> None:
    """Behind the check of addresses stands git's own allow list; `protocol.allow` is off."""
    owned = tmp_path / "owned"
    with pytest.raises(SparkwrightError, match="fetch") as caught:
        repository.command("fetch", f"ext::touch {owned}", "refs/heads/main")
    assert "not allowed" in caught.value.because
    assert not owned.exists()


def test_a_submodule_or_redirect_of_the_users_configuration_does_not_count(
    repository: Repository,
    upstream: UpstreamRepository,
    history: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    config = tmp_path / "config"
    config.write_text(f'[url "file:///nowhere/"]\n    insteadOf = {upstream.address}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    fetch(repository, upstream.address, ["refs/heads/main"])
    assert repository.has(history[3])


def test_fetches_at_once_all_succeed(repository, upstream, history):
    failed: list[Exception] = []

    def work(commit: str) -> None:
        try:
            fetch(open_repository(repository.path), upstream.address, [commit])
        except SparkwrightError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(commit,)) for commit in history]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(repository.has(commit) for commit in history)


_CUT = """#!/usr/bin/env python3
import os, subprocess, sys

sender = subprocess.Popen(["git", "upload-pack", *sys.argv[1:]], stdout=subprocess.PIPE)
left = {}
while left > 0 and (data := os.read(sender.stdout.fileno(), left)):
    os.write(1, data)
    left -= len(data)
sender.kill()
"""


@pytest.mark.parametrize("cut", [400_000, 1 << 30])
def test_of_a_fetch_that_was_cut_off_no_commit_is_left_without_its_files(tmp_path, monkeypatch, cut):
    """Git unpacks a few objects as they come, the commit first; what is here is never fetched again."""
    upstream = UpstreamRepository(tmp_path / "upstream")
    commit = upstream.commit("large", {f"file{number}": os.urandom(1 << 17) for number in range(8)})
    (program := tmp_path / "cut").write_text(_CUT.format(cut))
    program.chmod(0o755)
    monkeypatch.setattr(remotes, "_OWN_OR_NOT", f"--upload-pack={program}")
    store = open_repository(tmp_path / "store")
    if cut < 1 << 20:
        with pytest.raises(FetchError):
            fetch(store, upstream.address, [commit])
        assert not store.has(commit)
        monkeypatch.undo()
    fetch(store, upstream.address, [commit])
    assert len(store.files(store.tree_of(commit))) == 8
    store.command("rev-list", "--objects", "--quiet", commit)
