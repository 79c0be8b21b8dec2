"""The pages of an index as pypi-simple reads them: yanks, times, attestations, a project's status."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pypi_simple import ProjectPage

from sparkwright.publish import ProjectStatus, PublishedFile
from sparkwright.publish.pages import project_html, project_json

PLAIN = PublishedFile(
    "vllm", "0.24.0+spark.1.aa", "vllm-0.24.0+spark.1.aa-cp38-abi3-manylinux_2_28_aarch64.whl", "0" * 64, 7,
    ">=3.10", "1" * 64,
)  # fmt: skip
BASE = "https://wheels.example/simple/vllm/"


def both(files: list[PublishedFile], status: ProjectStatus | None = None) -> list[ProjectPage]:
    """Both forms of the page, read by a client that warns of a version that it does not support."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [
            ProjectPage.from_html("vllm", project_html("vllm", files, status).decode(), base_url=BASE),
            ProjectPage.from_json_data(json.loads(project_json("vllm", files, status)), base_url=BASE),
        ]


@pytest.mark.parametrize(
    ("yanked", "reason"), [(None, None), ("slow on long prompts & <wrong>", "slow on long prompts & <wrong>")]
)
def test_a_yank_is_stated_with_its_reason(yanked: str | None, reason: str | None) -> None:
    for page in both([replace(PLAIN, yanked=yanked), PLAIN]):
        assert [file.is_yanked for file in page.packages] == [yanked is not None, False]
        assert page.packages[0].yanked_reason == reason


def test_a_yank_without_a_reason_is_a_yank() -> None:
    assert [page.packages[0].is_yanked for page in both([replace(PLAIN, yanked="")])] == [True, True]


def test_upload_time_and_size_are_in_the_json_form_and_only_where_they_are_given() -> None:
    timed = replace(PLAIN, upload_time="2026-11-23T00:52:10Z")
    _, page = both([timed, PLAIN])
    assert page.packages[0].upload_time == datetime(2026, 11, 23, 0, 52, 10, tzinfo=UTC)
    assert page.packages[1].upload_time is None
    assert page.packages[0].size == PLAIN.size
    assert project_html("vllm", [timed]) == project_html("vllm", [PLAIN])
    assert b"upload-time" not in project_json("vllm", [PLAIN])


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        ("", "https://wheels.example/vllm-0.24.0%2Bspark.1.aa-cp38-abi3-manylinux_2_28_aarch64.whl"),
        ("../../wheels/aa/x.whl", "https://wheels.example/wheels/aa/x.whl"),
        ("https://files.example/x.whl", "https://files.example/x.whl"),
    ],
)
def test_a_file_may_lie_elsewhere(url: str, resolved: str) -> None:
    for page in both([replace(PLAIN, url=url)]):
        (package,) = page.packages
        assert package.url == resolved
        assert package.metadata_url == resolved + ".metadata"
        assert package.digests == {"sha256": PLAIN.sha256}


@pytest.mark.parametrize("marker", ["active", "archived", "quarantined", "deprecated"])
def test_the_status_is_stated_and_a_quarantined_project_offers_nothing(marker: str) -> None:
    for page in both([PLAIN], ProjectStatus(marker, 'because of "<x>"')):  # type: ignore[arg-type]
        assert page.status == marker
        assert page.status_reason == 'because of "<x>"'
        assert len(page.packages) == (0 if marker == "quarantined" else 1)
    versions = json.loads(project_json("vllm", [PLAIN], ProjectStatus(marker)))["versions"]  # type: ignore[arg-type]
    assert versions == [PLAIN.version]


def test_without_a_status_none_is_stated() -> None:
    assert b"project-status" not in project_html("vllm", [PLAIN]) + project_json("vllm", [PLAIN])
    for page in both([PLAIN]):
        assert page.repository_version == "1.4"
        assert page.status is None
        assert page.status_reason is None
