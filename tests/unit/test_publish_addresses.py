"""Addresses of targets: each kind, and those that are refused."""

from __future__ import annotations

import re
import sys

import pytest

from sparkwright.base.errors import ConfigError, ToolError
from sparkwright.publish.folder_target import FolderTarget
from sparkwright.publish.target import content_type, is_hidden
from sparkwright.publish.targets import open_target
from sparkwright.publish.targets.github import GithubTarget
from sparkwright.publish.targets.s3 import S3Target

WHEEL = "files/vllm-1.0+a-py3-none-any.whl"


@pytest.mark.parametrize(
    ("address", "kind", "url"),
    [
        ("/srv/wheels", FolderTarget, "file:///srv/wheels/files/vllm-1.0%2Ba-py3-none-any.whl"),
        ("file:///srv/a%20b", FolderTarget, "file:///srv/a%20b/files/vllm-1.0%2Ba-py3-none-any.whl"),
        (
            "s3://bucket/pre/fix?endpoint=http://localhost:1&region=eu",
            S3Target,
            "http://localhost:1/bucket/pre/fix/files/vllm-1.0%2Ba-py3-none-any.whl",
        ),
        (
            "s3://bucket?public=https://wheels.example.org/",
            S3Target,
            "https://wheels.example.org/files/vllm-1.0%2Ba-py3-none-any.whl",
        ),
        (
            "s3://bucket/p?region=eu-west-1",
            S3Target,
            "https://bucket.s3.eu-west-1.amazonaws.com/p/files/vllm-1.0%2Ba-py3-none-any.whl",
        ),
        (
            "github://Owner/wheels?release=nightly",
            GithubTarget,
            "https://github.com/Owner/wheels/releases/download/nightly/vllm-1.0%2Ba-py3-none-any.whl",
        ),
    ],
)
def test_each_kind_is_opened(address: str, kind: type, url: str) -> None:
    target = open_target(address)
    assert type(target) is kind
    assert target.url(WHEEL) == url


def test_pages_of_github_are_on_its_pages() -> None:
    url = open_target("github://Owner/wheels").url("stable/simple/vllm/index.html")
    assert url == "https://owner.github.io/wheels/stable/simple/vllm/index.html"


@pytest.mark.parametrize(
    ("address", "because"),
    [
        ("", "empty"),
        ("ftp://host/wheels", "kinds are"),
        ("https://host/wheels", "kinds are"),
        ("https://", "names no host"),
        ("s3://", "names no host"),
        ("s3://Bucket_/p", "no name of a bucket"),
        ("s3://bucket/a/../b", r"\.\. part"),
        ("s3://bucket/p?endpont=http://x", "none of its settings"),
        ("s3://bucket/p?endpoint=localhost:1", "not an http or https address"),
        ("s3://bucket/p?endpoint", "bad query field"),
        ("https://user:hunter2@host/wheels", "credentials"),
        ("https://hunter2@host/wheels", "credentials"),
        ("https://host:port/wheels", "[Pp]ort"),
        ("https://host/wheels?lease=1", "none of its settings"),
        ("https://host/a b", "a space"),
        ("https://host/wheels#top", "fragment"),
        ("github://owner", "owner and the repository"),
        ("github://owner/a/b", "owner and the repository"),
        ("github://-owner/repository", "owner and the repository"),
        ("github://owner/repository?release=--clobber", "no plain name"),
        ("github://owner/repository?branch=a b", "a space"),
        ("file://host/wheels", "file:///PATH"),
        ("file:///srv/wheels?x=1", "none of its settings"),
    ],
)
def test_other_addresses_are_refused_in_one_line(address: str, because: str) -> None:
    with pytest.raises(ConfigError, match="no address of a target") as raised:
        open_target(address)
    assert raised.match(r"\A[^\n]*\Z")
    assert re.search(because, raised.value.because)
    assert "hunter2" not in str(raised.value) + raised.value.next_step


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("files/a.whl", "application/octet-stream"),
        ("stable/simple/vllm/index.html", "text/html; charset=utf-8"),
        ("stable/simple/vllm/index.json", "application/vnd.pypi.simple.v1+json"),
        ("stable/channel.json", "application/json"),
        ("files/a.whl.metadata", "text/plain; charset=utf-8"),
        ("statement", "application/octet-stream"),
    ],
)
def test_clients_get_the_media_types_that_they_need(path: str, media_type: str) -> None:
    assert content_type(path) == media_type


def test_locks_are_hidden() -> None:
    assert is_hidden("files/.a.whl.lock")
    assert is_hidden("stable/.channel.json.lock/owner")
    assert not is_hidden("files/a.b.whl")


def test_s3_without_obstore_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    target = open_target("s3://wheels/p?endpoint=http://127.0.0.1:9")
    for use in (lambda: target.sizes("channels"), lambda: target.read("a")):
        with pytest.raises(ToolError, match="cannot be used") as caught:
            use()
        assert "publish]" in caught.value.next_step
