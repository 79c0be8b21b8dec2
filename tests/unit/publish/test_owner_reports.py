"""Owners' reports: what is signed, what is refused, the table, and the channels that they open."""

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import wheelkit
from channel_kit import small_wheel
from securesystemslib.signer import CryptoSigner

from sparkwright.base.config import to_builtins
from sparkwright.base.errors import (
    ConfigError,
    KnownReportError,
    MissingEvidenceError,
    ReplayedReportError,
    SparkwrightError,
    StorageError,
    TamperedError,
    UntrustedKeyError,
)
from sparkwright.publish.evidence import ChannelPolicy, attach_report, require_evidence
from sparkwright.publish.keys import load_report_key
from sparkwright.publish.owner_report import (
    MOST_BYTES,
    PAGE,
    TABLE,
    SignedReport,
    _template,
    add_reports,
    sign_report,
)

OWNER, OTHER = CryptoSigner.generate_ed25519(), CryptoSigner.generate_ed25519()
KEYS = {str(OWNER.public_key.keyval["public"])}
GB10 = {
    "kind": "card", "platform": "aarch64", "cores": 20, "memory-gib": 119, "card": "NVIDIA GB10",
    "capability": "12.1", "driver": "580.95.05",
}  # fmt: skip
LEVEL = {
    "c": 1, "tok-s": [30.0, 25.0, 35.0], "ttft-p50-ms": 80.0, "ttft-p95-ms": 90.0, "tpot-p50-ms": 33.0,
    "tokens-per-step": 3.5, "accepted": 0.4,
}  # fmt: skip
DESCRIBED: dict[str, Any] = {
    "made": "2026-11-20", "tool": "0.1.0", "run": "1" * 64, "machine": GB10,
    "recipe": {"name": "qwen3.6-27b-dflash", "use": "single", "digest": "a" * 16},
    "wheel": {"sha256": "b" * 64, "version": "0.33.0+spark.6", "runtime": "c" * 64},
    "profile": "quick", "complete": True, "verdict": "pass", "seconds": 1200.0, "requests": 500,
    "checks": {"boot": "pass", "sweep": "pass"}, "levels": [LEVEL], "failures": {},
    "memory": {"weights-gib": 17.9, "kv-gib": 37.4},
}  # fmt: skip


def signed(key: CryptoSigner = OWNER, **changes: Any) -> SignedReport:
    return sign_report({**DESCRIBED, **changes}, key)


def written(path: Path, report: SignedReport, edit: Callable[[Any], object] = bool) -> Path:
    data = json.loads(json.dumps(to_builtins(report)))
    edit(data)
    path.write_text(json.dumps(data, indent=3))
    return path


def refusal(folder: Path, path: Path) -> SparkwrightError:
    accepted, refused, _ = add_reports(folder, [path], KEYS)
    assert not accepted
    return refused[path]


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / TABLE).read_bytes())["rows"]
    return found


# Signatures ------------------------------------------------------------------------------------------


def test_a_report_by_a_listed_key_is_verified_and_one_by_its_own_key_is_not(tmp_path: Path) -> None:
    table = tmp_path / "table"
    paths = [
        written(tmp_path / "a.json", signed()),
        written(tmp_path / "b.json", signed(OTHER, run="2" * 64, verdict="fail", failures={"stall": 3})),
    ]
    accepted, refused, _ = add_reports(table, paths, KEYS)
    assert (list(accepted), refused) == (paths, {})
    assert [(one["verified"], one["verdicts"]) for one in rows(table)] == [
        (True, {"pass": 1}),
        (False, {"fail": 1}),
    ]
    page = (table / PAGE).read_text()
    assert page.count(">verified<") == page.count(">unverified<") == 1
    assert "stall 3" in page


def put(*path: str | int, value: Any) -> Callable[[Any], object]:
    """Return the edit that puts *value* at *path*."""

    def edit(data: Any) -> None:
        for name in path[:-1]:
            data = data[name]
        data[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        (put("report", "levels", 0, "tok-s", value=[60.0, 25.0, 65.0]), TamperedError),
        (put("report", "verdict", value="fail"), TamperedError),
        (put("report", "wheel", "sha256", value="d" * 64), TamperedError),
        (put("signature", "value", value="0" * 128), TamperedError),
        (put("signature", "key", value=next(iter(KEYS))), UntrustedKeyError),
        (put("report", "key", value=next(iter(KEYS))), UntrustedKeyError),
        # Both: the signature is not by the listed key.
        (
            lambda data: [put(one, "key", value=next(iter(KEYS)))(data) for one in ("report", "signature")],
            TamperedError,
        ),
        (put("report", "more", value=1), ConfigError),
    ],
)
def test_what_its_own_key_did_not_sign_is_refused(
    tmp_path: Path, edit: Callable[[Any], object], error: type[SparkwrightError]
) -> None:
    found = refusal(tmp_path / "table", written(tmp_path / "a.json", signed(OTHER), edit))
    assert type(found) is error
    assert found.exit_code == (10 if error is ConfigError else 21)
    assert rows(tmp_path / "table") == []


def test_one_run_counts_once(tmp_path: Path) -> None:
    table, first = tmp_path / "table", written(tmp_path / "a.json", signed())
    add_reports(table, [first], KEYS)
    again = refusal(table, written(tmp_path / "again.json", signed()))
    assert (type(again), again.exit_code) == (KnownReportError, 10)
    for key, made in ((OWNER, "2026-11-21"), (OTHER, "2026-11-20")):
        replayed = refusal(table, written(tmp_path / "b.json", signed(key, made=made)))
        assert (type(replayed), replayed.exit_code) == (ReplayedReportError, 21)
    accepted, refused, _ = add_reports(
        table, [first, written(tmp_path / "c.json", signed(run="3" * 64))], KEYS
    )
    assert (len(accepted), len(refused)) == (1, 1), "a refused file stops no other"
    assert rows(table)[0]["reports"] == 2


def test_a_copy_under_another_key_keeps_no_verified_report_out(tmp_path: Path) -> None:
    table = tmp_path / "table"
    add_reports(table, [written(tmp_path / "copy.json", signed(OTHER))], KEYS)
    add_reports(table, [written(tmp_path / "a.json", signed())], KEYS)
    assert [(one["verified"], one["reports"]) for one in rows(table)] == [(True, 1)]


def test_a_table_that_was_edited_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table"
    add_reports(table, [written(tmp_path / "a.json", signed())], KEYS)
    data = json.loads((table / TABLE).read_bytes())
    data["reports"][0]["report"]["levels"][0]["c"] = 64
    (table / TABLE).write_text(json.dumps(data))
    with pytest.raises(TamperedError):
        add_reports(table, [written(tmp_path / "b.json", signed(run="2" * 64))], KEYS)


def test_a_name_that_is_given_twice_counts_as_it_is_read(tmp_path: Path) -> None:
    text = written(tmp_path / "a.json", signed()).read_text()
    (tmp_path / "a.json").write_text(
        text.replace('"verdict": "pass"', '"verdict": "pass", "verdict": "fail"', 1)
    )
    assert type(refusal(tmp_path / "table", tmp_path / "a.json")) is TamperedError


def test_the_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    home = tmp_path / "reports"
    assert load_report_key(home).public_key.keyid == load_report_key(home).public_key.keyid
    assert (home / "key.pem").stat().st_mode & 0o077 == 0


# Files that are no reports -----------------------------------------------------------------------------


TOMORROW = f"{datetime.now(UTC) + timedelta(days=3):%Y-%m-%d}"
HOSTILE = [
    put("report", "machine", "card", value="<script>alert(1)</script>"),
    put("report", "machine", "card", value="/home/somebody"),
    put("report", "machine", "driver", value="10.0.0.1.7"),
    put("report", "recipe", "name", value="spark@example.org"),
    put("report", "requests", value=10**4000),
    put("report", "seconds", value=1e308),
    put("report", "levels", value=[{**LEVEL, "c": c} for c in range(1, 66)]),
    put("report", "levels", 0, "c", value=-1),
    put("report", "levels", value=[LEVEL] * 2),
    put("report", "tool", value="1\n"),
    put("report", "failures", value={"stall": 300, "cut": 201}),
    put("report", "checks", "sweep", value="inconclusive"),
    put("report", "levels", 0, "tok-s", value=[30.0, 31.0, 35.0]),
    put("report", "levels", 0, "tok-s", value=[30.0, 25.0, 29.0]),
    put("report", "levels", 0, "ttft-p95-ms", value=79.0),
]


@pytest.mark.parametrize("edit", HOSTILE)
def test_values_without_a_place_are_refused_in_one_message(
    tmp_path: Path, edit: Callable[[Any], object]
) -> None:
    found = refusal(tmp_path / "table", written(tmp_path / "a.json", signed(), edit))
    assert type(found) is ConfigError
    assert len(found.because) < 400


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"null", b"\xff\xfe", b"\x1f\x8b\x08", b"PK\x03\x04", b"<html>", b"[" * 200_000,
        b'{"report": ' * 20_000, b'{"report": NaN, "signature": 1e999}',
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.json").write_bytes(data)
    assert type(refusal(tmp_path / "table", tmp_path / "a.json")) is ConfigError


def test_what_is_no_file_or_too_large_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.truncate(written(tmp_path / "large", signed()), 1 << 30)
    for name in ("pipe", "large", ".", "missing"):
        assert type(refusal(tmp_path / "table", tmp_path / name)) is ConfigError


@pytest.mark.parametrize(("over", "says"), [(0, ""), (1, "more than")])
def test_a_report_is_read_up_to_a_size(tmp_path: Path, over: int, says: str) -> None:
    path = written(tmp_path / "a.json", signed())
    path.write_bytes(path.read_bytes().ljust(MOST_BYTES + over))
    _, refused, _ = add_reports(tmp_path / "table", [path], KEYS)
    assert [says in error.because for error in refused.values()] == [True] * over


@pytest.mark.parametrize("day", [TOMORROW, "2026-02-30"])
def test_a_day_to_come_or_none_is_refused(tmp_path: Path, day: str) -> None:
    found = refusal(tmp_path / "table", written(tmp_path / "a.json", signed(made=day)))
    assert type(found) is ConfigError


def test_figures_that_are_no_numbers_are_not_signed() -> None:
    with pytest.raises(ConfigError):
        signed(seconds=float("nan"))


# The table -----------------------------------------------------------------------------------------------


def test_a_row_has_the_median_of_its_reports_and_their_spread(tmp_path: Path) -> None:
    table = tmp_path / "table"
    speeds = (30.0, 50.0, 31.0)
    paths = [
        written(
            tmp_path / f"{n}.json",
            signed(run=f"{n}" * 64, levels=[{**LEVEL, "tok-s": [speed, speed - 5, speed + 5]}]),
        )
        for n, speed in enumerate(speeds)
    ]
    add_reports(table, paths[:1], KEYS)
    assert [(at["tok-s"], at["lowest"], at["highest"]) for at in rows(table)[0]["levels"]] == [(30, 25, 35)]
    add_reports(table, paths[1:], KEYS)
    (row,) = rows(table)
    assert [(at["tok-s"], at["lowest"], at["highest"]) for at in row["levels"]] == [(31, 30, 50)]
    assert row["memory"] == {"weights-gib": 17.9, "kv-gib": 37.4, "kv-tokens": None, "server-gib": None}


@pytest.mark.parametrize(
    "changes",
    [
        {"wheel": {**DESCRIBED["wheel"], "sha256": "e" * 64}},
        {"wheel": {**DESCRIBED["wheel"], "runtime": ""}},
        {"wheel": None},
        {"recipe": {**DESCRIBED["recipe"], "digest": "f" * 16}},
        {"machine": {"kind": "simulator", "platform": "x86_64", "cores": 2, "memory-gib": 4}},
        {"profile": "full"},
    ],
)
def test_what_cannot_be_compared_has_rows_of_its_own(tmp_path: Path, changes: Mapping[str, Any]) -> None:
    table = tmp_path / "table"
    paths = [
        written(tmp_path / "a.json", signed()),
        written(tmp_path / "b.json", signed(run="2" * 64, **changes)),
    ]
    add_reports(table, paths, KEYS)
    assert [one["reports"] for one in rows(table)] == [1, 1]


def test_a_row_tells_what_failed_and_disturbed_in_whatever_order_reports_come(tmp_path: Path) -> None:
    changes = {
        "verdict": "fail",
        "checks": {"boot": "pass", "sweep": "fail"},
        "levels": [{**LEVEL, "disturbed": True}],
    }
    one, other = (
        written(tmp_path / "a.json", signed()),
        written(tmp_path / "b.json", signed(run="2" * 64, made="2026-11-19", **changes)),
    )
    add_reports(tmp_path / "table", [one, other], KEYS)
    add_reports(tmp_path / "again", [other, one], KEYS)
    assert (tmp_path / "table" / TABLE).read_bytes() == (tmp_path / "again" / TABLE).read_bytes()
    (row,) = rows(tmp_path / "table")
    assert (row["drivers"], row["failed-checks"], row["levels"][0]["disturbed"]) == (
        ["580.95.05"],
        ["sweep"],
        True,
    )
    assert (row["from"], row["to"]) == ("2026-11-19", "2026-11-20")


def test_a_table_that_is_none_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / TABLE).write_text("[")
    with pytest.raises(ConfigError):
        add_reports(tmp_path, [], KEYS)
    (tmp_path / TABLE).unlink()
    (tmp_path / TABLE).mkdir()
    for folder in (tmp_path, Path("/proc/x")):
        with pytest.raises(StorageError):
            add_reports(folder, [], KEYS)


def test_a_name_with_a_line_feed_is_told_in_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a\nb.json", signed())
    add_reports(tmp_path / "table", [path], KEYS)
    for edit in (bool, put("report", "verdict", value="fail"), put("report", "more", value=1)):
        told = refusal(tmp_path / "table", written(path, signed(), edit))
        assert "a\\nb.json" in told.what
        assert "\n" not in told.what


def test_the_page_escapes_what_it_shows(tmp_path: Path) -> None:
    add_reports(tmp_path, [written(tmp_path / "a.json", signed())], KEYS)
    row = {**rows(tmp_path)[0], "machine": "<b>", "recipe": "<b>", "failed-checks": ["<b>"]}
    assert "<b>" not in _template().render(rows=[row], reports=1).partition("</header>")[2]


# Channels ------------------------------------------------------------------------------------------------


def promoted(tmp_path: Path, keys: set[str] = KEYS, runtime: str = "c" * 64) -> list[str]:
    wheel = small_wheel(tmp_path, "1")
    policy = ChannelPolicy(
        requires=("verify",), expires_days=1, capability="12.1", report_keys=tuple(sorted(keys))
    )
    evidence = tmp_path / "evidence"
    found = require_evidence(wheel, wheelkit.sha256(wheel), "stable", policy, evidence, runtime=runtime)
    return [one.kind for one in found]


@pytest.mark.parametrize("there", [b"", b'{"kind": "verify"}'])
def test_a_report_takes_the_place_of_a_file_that_is_not_its_evidence(tmp_path: Path, there: bytes) -> None:
    path = attach_report(tmp_path, signed())
    assert path is not None
    whole, inode = path.read_bytes(), path.stat().st_ino
    assert attach_report(tmp_path, signed()) == path
    assert path.stat().st_ino == inode, "written once"
    path.write_bytes(there or whole.replace(b"12.1", b"12.0"))
    attach_report(tmp_path, signed())
    assert b"12.1" in path.read_bytes()


def of_wheel(folder: Path, key: CryptoSigner = OWNER, **changes: Any) -> SignedReport:
    sha256 = wheelkit.sha256(small_wheel(folder, "1"))
    return signed(key, wheel={"sha256": sha256, "version": "1", "runtime": "c" * 64}, **changes)


def test_a_report_by_a_listed_key_opens_a_channel(tmp_path: Path) -> None:
    attach_report(tmp_path, of_wheel(tmp_path))
    assert promoted(tmp_path) == ["verify"]


@pytest.mark.parametrize(
    ("key", "changes", "runtime", "says"),
    [
        (OTHER, {}, "c" * 64, "does not list the key"),
        (OWNER, {"verdict": "fail"}, "c" * 64, "has none"),
        (OWNER, {"complete": False}, "c" * 64, "only some checks"),
        (OWNER, {"profile": "smoke"}, "c" * 64, "only some checks"),
        (OWNER, {"machine": {**GB10, "capability": "9.0"}}, "c" * 64, "capability 9.0"),
        (OWNER, {"machine": {**GB10, "kind": "simulator"}}, "c" * 64, "is of simulator"),
        (OWNER, {}, "d" * 64, "other packages"),
    ],
)
def test_other_reports_open_none(
    tmp_path: Path, key: CryptoSigner, changes: dict[str, Any], runtime: str, says: str
) -> None:
    attach_report(tmp_path, of_wheel(tmp_path, key, **changes))
    with pytest.raises(MissingEvidenceError, match=says):
        promoted(tmp_path, runtime=runtime)


def exchanged(report: Any) -> None:
    """Put the report of a run that failed, signed as well, in the place of *report*."""
    failed = signed(wheel=report["report"]["wheel"], verdict="fail")
    report.update(to_builtins(failed))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (put("report", "machine", "cores", value=10), "was changed"),
        (put("report", "key", value="0" * 64), "not its own"),
        (lambda report: report.clear(), "refused"),
        (exchanged, "verdict of the owner's report is fail"),
    ],
)
def test_evidence_that_was_edited_opens_none(
    tmp_path: Path, edit: Callable[[Any], object], says: str
) -> None:
    path = attach_report(tmp_path, of_wheel(tmp_path))
    assert path is not None
    data = json.loads(path.read_bytes())
    edit(data["detail"]["report"])
    path.write_text(json.dumps(data))
    with pytest.raises(MissingEvidenceError, match=says):
        promoted(tmp_path)


def test_a_report_of_another_wheel_opens_none(tmp_path: Path) -> None:
    path, wheel = attach_report(tmp_path, signed()), small_wheel(tmp_path, "1")
    assert path is not None
    data = {**json.loads(path.read_bytes()), "wheel": wheelkit.sha256(wheel)}
    moved = tmp_path / "evidence" / data["wheel"] / path.name
    moved.parent.mkdir()
    moved.write_text(json.dumps(data))
    with pytest.raises(MissingEvidenceError, match="another wheel"):
        promoted(tmp_path)
