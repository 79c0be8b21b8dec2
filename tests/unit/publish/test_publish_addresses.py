"""Addresses of targets: each kind, and those that are refused."""

from __future__ import annotations

import re
import sys

import pytest

from sparkwright.base.errors import ConfigError, ToolError
from sparkwright.publish.places import open_target
from sparkwright.publish.s3_target import S3Target
from sparkwright.publish.target import FolderTarget

WHEEL = "files/vllm-1.0+a-py3-none-any.whl"


@pytest.mark.parametrize(
    ("address", "kind", "url"),
    [
        ("/srv/wheels", FolderTarget, "file:///srv/wheels/files/vllm-1.0%2Ba-py3-none-any.whl"),
        ("file:///srv/a%20b", FolderTarget, "file:///srv/a%20b/files/vllm-1.0%2Ba-py3-none-any.whl"),
        (
            "s3://bucket/pre/fix?endpoint=http://localhost:1",
            S3Target,
            "http://localhost:1/bucket/pre/fix/files/vllm-1.0%2Ba-py3-none-any.whl",
        ),
        (
            "s3://bucket/p",
            S3Target,
            "https://bucket.s3.eu-west-1.amazonaws.com/p/files/vllm-1.0%2Ba-py3-none-any.whl",
        ),
    ],
)
def test_each_kind_is_opened(monkeypatch: pytest.MonkeyPatch, address: str, kind: type, url: str) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    target = open_target(address)
    assert type(target) is kind
    assert target.url(WHEEL) == url


@pytest.mark.parametrize(
    ("address", "because"),
    [
        ("", "empty"),
        ("ftp://host/wheels", "kinds are"),
        ("https://host/wheels", "kinds are"),
        ("s3://", "no name of a bucket"),
        ("s3://user:hunter2@bucket/p", "credentials"),
        ("s3://bucket/a b", "a space"),
        ("s3://bucket/p#top", "fragment"),
        ("github://owner/repository", "kinds are"),
        ("s3://Bucket_/p", "no name of a bucket"),
        ("s3://bucket/a/../b", r"\.\. part"),
        ("s3://bucket/p?endpont=http://x", "none of its settings"),
        ("s3://bucket/p?endpoint=localhost:1", "not an http or https address"),
        ("s3://bucket/p?endpoint", "bad query field"),
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


def test_s3_without_obstore_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    target = open_target("s3://wheels/p?endpoint=http://127.0.0.1:9")
    for use in (lambda: target.files("channels"), lambda: target.read("a")):
        with pytest.raises(ToolError, match="cannot be used") as caught:
            use()
        assert "publish]" in caught.value.next_step
