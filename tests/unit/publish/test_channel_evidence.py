"""The policy of channels, and evidence by a wheel's digest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import wheelkit
from channel_kit import small_wheel

from sparkwright.base.errors import ConfigError, MissingEvidenceError, UnknownNameError
from sparkwright.publish.evidence import (
    ChannelPolicy,
    attach,
    attach_audit,
    attach_rehearsal,
    load_policy,
    require_evidence,
    stated_series,
)
from sparkwright.wheel.audit import AuditReport
from sparkwright.wheel.checks import AuditCheck

SHIPPED = Path(__file__).parents[3] / "patchsets/channels.toml"
CARRIES = {"format": 1, "carries": [{"name": "a", "proof": {"key": "k", "verdict": "proved"}}, {"name": "b"}]}
UNPROVED = {"format": 1, "carries": [{"name": "a", "unproved": "allowed by the builder"}]}
POINT = {"merge": {"merged": "f" * 40}}
REHEARSED = {"complete": True, "exact": True, "version": "1"}
VERIFIED = {"complete": True, "capability": "12.1", "profile": "full"}


def policy(*requires: str, capability: str = "") -> ChannelPolicy:
    return ChannelPolicy(requires=requires, expires_days=1, capability=capability)  # type: ignore[arg-type]


def built(folder: Path, carries: object = None) -> Path:
    return small_wheel(folder, "1", record={"carries.json": carries or CARRIES, "point.json": POINT})


def found(path: Path, wanted: ChannelPolicy) -> list[str]:
    evidence = path.parent / "evidence"
    return [one.kind for one in require_evidence(path, wheelkit.sha256(path), "c", wanted, evidence)]


# Policies ------------------------------------------------------------------------------------------


def test_the_shipped_policies_ask_for_more_from_channel_to_channel() -> None:
    nightly, candidate, stable = (load_policy(SHIPPED, name) for name in ("nightly", "candidate", "stable"))
    assert nightly.requires == ("audit", "proofs")
    assert candidate.requires == (*nightly.requires, "rehearsal-older")
    assert stable.requires == (*candidate.requires, "verify")
    assert stable.capability == "12.1"
    assert (nightly.expires_days, stable.expires_days) == (30, 180)


def test_a_channel_without_a_policy_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="has nightly, candidate, stable"):
        load_policy(SHIPPED, "mine")


@pytest.mark.parametrize(
    "text",
    [
        "format = 1",
        "format = 2\n[channel.a]\nrequires = []\nexpires-days = 1",
        'format = 1\n[channel.a]\nrequires = ["wishes"]\nexpires-days = 1',
        "format = 1\n[channel.a]\nrequires = []\nexpires-days = 0",
        "format = 1\n[channel.a]\nrequires = []\nexpires-days = 1\nmore = 1",
        "format = 1\n[channel.a]\nrequires = []",
    ],
)
def test_a_malformed_policy_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "channels.toml").write_text(text)
    with pytest.raises(ConfigError):
        load_policy(tmp_path / "channels.toml", "a")


# Evidence ------------------------------------------------------------------------------------------


def test_everything_that_is_required_is_returned_in_order(tmp_path: Path) -> None:
    path = built(tmp_path)
    sha256 = wheelkit.sha256(path)
    attach(tmp_path, "audit", sha256, {"checks": {}, "unchecked": []})
    assert attach_rehearsal(tmp_path, "f" * 40, REHEARSED, {}) == [path.name]
    attach(tmp_path, "verify", sha256, VERIFIED, name="verify-x")
    stable = policy("audit", "proofs", "rehearsal", "verify", capability="12.1")
    assert found(path, stable) == ["audit", "proofs", "rehearsal", "verify"]


def test_what_is_missing_is_named_with_its_command(tmp_path: Path) -> None:
    path = built(tmp_path, UNPROVED)
    with pytest.raises(MissingEvidenceError) as caught:
        found(path, policy("audit", "proofs", "rehearsal", "verify", capability="12.1"))
    assert caught.value.exit_code == 50
    assert "built without a proof of a" in caught.value.because
    lines = caught.value.next_step.splitlines()
    assert lines[0] == f"sparkwright audit {path}"
    assert lines[1] == "sparkwright carry prove --series 1, then sparkwright wheel --series 1"
    assert lines[2:] == [
        f"sparkwright rehearse {path}",
        f"sparkwright verify {path} --profile full on a card of 12.1",
    ]


@pytest.mark.parametrize(
    ("kind", "detail", "says"),
    [
        ("audit", {"unchecked": ["binaries-identical"]}, "the audit skipped checks"),
        ("rehearsal", {"complete": False}, "ran only some checks"),
        ("verify", {**VERIFIED, "complete": False}, "ran only some checks"),
        ("verify", {**VERIFIED, "capability": "9.0"}, "ran on capability 9.0"),
        ("verify", {"complete": True}, "ran on capability unknown"),
    ],
)
def test_evidence_of_less_than_the_policy_asks_for_is_refused(
    tmp_path: Path, kind: str, detail: dict[str, object], says: str
) -> None:
    path = built(tmp_path)
    attach(tmp_path, kind, wheelkit.sha256(path), detail)  # type: ignore[arg-type]
    with pytest.raises(MissingEvidenceError, match=says):
        found(path, policy(kind, capability="12.1"))


def test_evidence_of_another_wheel_is_none(tmp_path: Path) -> None:
    path = built(tmp_path)
    other = attach(tmp_path, "audit", "0" * 64, {"unchecked": []})
    moved = tmp_path / "evidence" / wheelkit.sha256(path) / "audit.json"
    moved.parent.mkdir()
    moved.write_bytes(other.read_bytes())
    with pytest.raises(MissingEvidenceError, match="audit: "):
        found(path, policy("audit"))


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"\xff", b'{"kind": "audit", "verdict": "failed"}'])
def test_a_damaged_file_is_no_evidence(tmp_path: Path, damage: bytes) -> None:
    path = built(tmp_path)
    attach(tmp_path, "audit", wheelkit.sha256(path), {"unchecked": []}).write_bytes(damage)
    with pytest.raises(MissingEvidenceError):
        found(path, policy("audit"))


def test_a_wheel_without_a_record_has_no_proofs(tmp_path: Path) -> None:
    path = small_wheel(tmp_path, "1")
    with pytest.raises(MissingEvidenceError, match="no record of carries"):
        found(path, policy("proofs"))


def test_a_rehearsal_belongs_to_the_wheels_of_its_tree(tmp_path: Path) -> None:
    path = built(tmp_path)
    small_wheel(tmp_path, "2", record={"point.json": {"merge": {"merged": "0" * 40}}})
    small_wheel(tmp_path, "3")
    assert attach_rehearsal(tmp_path, "f" * 40, REHEARSED, {"rehearsal.md": "0" * 64}) == [path.name]
    assert attach_rehearsal(tmp_path, "", REHEARSED, {}) == []
    (file,) = (tmp_path / "evidence").rglob("*.json")
    assert json.loads(file.read_bytes())["files"] == {"rehearsal.md": "0" * 64}


def test_a_rehearsal_of_a_given_wheel_is_attached_once_wherever_it_lies(tmp_path: Path) -> None:
    path, elsewhere = built(tmp_path / "dist"), built(tmp_path / "elsewhere")
    given = [path, elsewhere, small_wheel(tmp_path / "elsewhere", "3")]
    assert attach_rehearsal(tmp_path / "dist", "f" * 40, REHEARSED, {}, given) == [path.name]
    other = built(tmp_path / "more", UNPROVED)
    assert attach_rehearsal(tmp_path / "dist", "f" * 40, REHEARSED, {}, [other]) == [path.name, other.name]
    assert len(list((tmp_path / "dist" / "evidence").glob("*/rehearsal.json"))) == 2


def test_a_rehearsal_on_an_older_release_is_a_kind_of_its_own(tmp_path: Path) -> None:
    path = built(tmp_path)
    attach_rehearsal(tmp_path, "f" * 40, {**REHEARSED, "exact": False, "version": "0"}, {})
    assert found(path, policy("rehearsal-older")) == ["rehearsal-older"]
    with pytest.raises(
        MissingEvidenceError, match="on the older release 0, which is rehearsal-older"
    ) as caught:
        found(path, policy("rehearsal"))
    assert "a policy may ask for rehearsal-older" in caught.value.next_step
    attach_rehearsal(tmp_path, "f" * 40, REHEARSED, {})
    assert found(path, policy("rehearsal")) == ["rehearsal"]
    assert len(found(path, policy("rehearsal-older"))) == 1


@pytest.mark.parametrize(
    ("record", "series"),
    [
        ({"series": "0.36", "merge": {}}, "0.36"),
        ({"merge": {}}, "1.2"),
        ({"series": 3}, "1.2"),
        ([], "1.2"),
        (None, "1.2"),
    ],
)
def test_a_wheel_is_of_the_series_in_its_record(tmp_path: Path, record: object, series: str) -> None:
    path = small_wheel(tmp_path, "1.2.3", record={} if record is None else {"point.json": record})
    assert stated_series(path) == series


@pytest.mark.parametrize("verdict", ["pass", "fail", "unverified", "skipped"])
def test_only_a_passed_audit_is_attached_and_only_a_whole_one_is_accepted(
    tmp_path: Path, verdict: str
) -> None:
    path = built(tmp_path)
    check = AuditCheck("tags", verdict, "")  # type: ignore[arg-type]
    report = AuditReport(path.name, wheelkit.sha256(path), 1, "sparkwright", (check,), 0.1)
    attach_audit(tmp_path, report)
    assert (tmp_path / "evidence").exists() is (verdict in {"pass", "skipped"})
    if verdict == "pass":
        assert found(path, policy("audit")) == ["audit"]
    else:
        with pytest.raises(MissingEvidenceError):
            found(path, policy("audit"))
