"""Which companions of a channel stay: those of each card, and of those the one that came last."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sparkwright.publish.channel import ChannelAction, ChannelState, ListedWheel
from sparkwright.publish.policy import ChannelPolicy
from sparkwright.publish.retention import retained

POLICY = ChannelPolicy(requires=("audit",), expires_days=30, keep_generations=1)
AARCH64, X86_64 = "py3-none-manylinux_2_28_aarch64", "py3-none-manylinux_2_28_x86_64"


def listed(
    project: str, version: str, day: int, tags: str = AARCH64, yanked: str | None = None
) -> ListedWheel:
    name = f"{project.replace('-', '_')}-{version}-{tags}.whl"
    return ListedWheel(
        filename=name, project=project, version=version, sha256=f"{name}-{day}", size=1, requires_python="",
        metadata_sha256="", uploaded=f"2026-11-{day:02}T00:00:00Z", promotion="", yanked=yanked,
    )  # fmt: skip


def companion(arch: str, content: str, day: int, **fields: str) -> ListedWheel:
    return listed("flashinfer-jit-cache", f"0.7.2.post1+cu130.{arch}.k{content}", day, **fields)


def kept(*files: ListedWheel) -> set[str]:
    """Versions that stay in a channel of these wheels, once their promotions are forgotten."""

    state = ChannelState(
        channel="nightly", origin="o", generation=9, previous="", written="2026-11-23T00:00:00Z",
        expires="2026-12-23T00:00:00Z", action=ChannelAction(kind="promote", detail="another.whl"),
        files=files,
    )  # fmt: skip
    found = retained([state], POLICY, datetime(2026, 11, 24, tzinfo=UTC))
    assert found is not None
    assert {file.sha256 for file in (*found.files, *found.dropped)} == {file.sha256 for file in files}
    return {file.version.rpartition("+")[2] for file in found.files}


@pytest.mark.parametrize(("first", "last"), [("ffffffff", "00000000"), ("00000000", "ffffffff")])
def test_the_last_companion_of_a_card_stays_whatever_its_digest_is(first: str, last: str) -> None:
    assert kept(companion("sm121a", first, 1), companion("sm121a", last, 2)) == {f"cu130.sm121a.k{last}"}


def test_each_card_and_machine_keeps_its_own() -> None:
    files = (
        companion("sm121a", "1", 1),
        companion("sm90a", "2", 2),
        companion("sm90a", "3", 3, tags=X86_64),
    )
    assert len(kept(*files)) == 3


def test_one_that_was_taken_back_does_not_push_out_another() -> None:
    files = (companion("sm121a", "1", 1), companion("sm121a", "2", 2, yanked="it crashes"))
    assert kept(*files) == {"cu130.sm121a.k1"}


def test_of_wheels_of_vllm_the_highest_version_stays() -> None:
    assert kept(listed("vllm", "0.33.0+spark.2", 1), listed("vllm", "0.33.0+spark.1", 2)) == {"spark.2"}
