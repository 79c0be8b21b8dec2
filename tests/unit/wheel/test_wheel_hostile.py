"""Audit wheels that were made to pass although they should not."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wheelkit
from audit_case import INFO, RECORD_OF_OURS, Case, Files, edit, failed, make_case, put, swap

from sparkwright.wheel.audit import audit
from sparkwright.wheel.binaries import Expectation

EXACT, PROVENANCE = "members-differ-exactly", "provenance-agrees"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("audit"))


# Names that are close to those of our record, which are free: each is refused by its very name.
OTHER_NAMES = [
    "RECORD.jws", "RECORD_evil.py", "RECORDS/evil/__init__.py", "RECORD.d/x.pth", "direct_url.json",
    "sparkwright/evil.py", "sparkwright/notes.json", "sparkwright/point.json.pth", "sparkwright/a/point.json",
    "sparkwright/kernels.json",
]  # fmt: skip


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_strange_file_in_the_metadata_folder_is_named(case: Case, name: str, tmp_path: Path) -> None:
    member = f"{INFO}/{name}"
    spoilt = wheelkit.spoil(case.wheel, tmp_path, put(member, b"{}"))
    report = audit(spoilt, case.expectation)
    told = {check.name: check.detail for check in report.failures}
    assert {PROVENANCE, EXACT} <= set(told)
    assert member in told[PROVENANCE]
    assert member in told[EXACT] or name == "sparkwright/kernels.json"
    if name != "sparkwright/kernels.json":  # which another wheel may have
        alone = replace(case.expectation, changes=None, record=None)
        assert failed(spoilt, alone) == {PROVENANCE}, "no merge is needed to see that"


def _carry(number: int, **fields: Any) -> Callable[[Files], object]:
    return edit("carries.json", lambda value: value["carries"][number].update(fields))


PROOF = {"key": "k1", "verdict": "proved"}
# What the wheel says of itself, and the place in it that is told.
STATEMENTS: dict[str, tuple[Callable[[Files], object], str]] = {
    "more evidence": (_carry(0, evidence={"level": "gb10"}), "carries.json: carries.clamp.evidence.level"),
    "another title": (_carry(1, title="Better"), "carries.json: carries.align.title"),
    "another outcome": (_carry(2, outcome="applied"), "carries.json: carries.old.outcome"),
    "another proof": (_carry(0, proof={**PROOF, "key": "k2"}), "carries.json: carries.clamp.proof.key"),
    "a proof's environment": (
        _carry(0, proof={**PROOF, "environment": {}}), "carries.json: carries.clamp.proof.environment",
    ),
    "a proof where none can be": (_carry(2, proof=PROOF), "carries.json: carries.old.proof"),
    "unproved where nothing is to prove": (
        _carry(2, unproved="allowed by the builder"), "carries.json: carries.old.unproved",
    ),
    "another word for unproved": (_carry(1, unproved="because"), "carries.json: carries.align.unproved"),
    "a carry less": (edit("carries.json", lambda value: value["carries"].pop()), "carries.json: carries"),
    "carries that are emptied": (
        put(f"{INFO}/sparkwright/carries.json", b"{}"), "carries.json: carries",
    ),
    "carries that are no list": (
        edit("carries.json", lambda value: value.update(carries={})), "carries.json: carries",
    ),
    "a carry that is a number": (
        edit("carries.json", lambda value: value["carries"].__setitem__(0, 1)),
        "carries.json: carries.clamp",
    ),
    "no carries": (lambda files: files.pop(f"{INFO}/sparkwright/carries.json"), "carries.json is missing"),
    "another commit": (
        edit("point.json", lambda value: value["merge"].update(commit="bad")), "point.json: merge.commit",
    ),
    "another maker": (
        edit("point.json", lambda value: value.update({"made-by": "me"})), "point.json: made-by",
    ),
    "true for one": (edit("point.json", lambda value: value.update(format=True)), "point.json: format"),
    "a key twice": (
        swap(f"{INFO}/sparkwright/point.json", b'{"format":1', b'{"format":2,"format":1'), "point.json: ",
    ),
    "no providers": (
        lambda files: files.pop(f"{INFO}/sparkwright/providers.json"), "providers.json is missing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("statement", STATEMENTS)
def test_what_a_wheel_says_of_itself_is_held_against_the_checkout(case, statement, tmp_path):
    change, place = STATEMENTS[statement]
    report = audit(wheelkit.spoil(case.wheel, tmp_path, change), case.expectation)
    told = {check.name: check.detail for check in report.failures}
    assert place in told.pop(PROVENANCE)
    assert set(told) == (
        {EXACT, "binaries-identical", "native-inputs-unchanged", "sbom-agrees"}
        if statement == "no providers"
        else set()
    )


def test_what_the_builder_decides_may_differ(case: Case, tmp_path: Path) -> None:
    allowed = {"unproved": "allowed by the builder"}

    def both(files: Files) -> None:
        _carry(1, **allowed)(files)
        edit(
            "carries.json",
            lambda value: (value["carries"][0].pop("proof"), value["carries"][0].update(allowed)),
        )(files)

    report = audit(wheelkit.spoil(case.wheel, tmp_path, both), case.expectation)
    assert (report.passed, report.unchecked) == (True, ()), "a wheel may say less than is known here"


def test_a_proof_that_is_unknown_here_is_unverified(case: Case, tmp_path: Path) -> None:
    report = audit(wheelkit.spoil(case.wheel, tmp_path, _proved_elsewhere), case.expectation)
    (check,) = report.unverified
    assert (report.failures, report.passed, report.unchecked) == ((), False, (PROVENANCE,))
    assert (check.name, "align" in check.detail, "clamp" in check.detail) == (PROVENANCE, True, False)
    assert json.loads(json.dumps(report.to_json()))["passed"] is False


def _proved_elsewhere(files: Files) -> None:
    def change(value: Any) -> None:
        del value["carries"][1]["unproved"]
        value["carries"][1]["proof"] = PROOF

    edit("carries.json", change)(files)


def test_a_proof_that_is_unknown_here_has_no_environment_either(case: Case, tmp_path: Path) -> None:
    def change(files: Files) -> None:
        _proved_elsewhere(files)
        _carry(1, proof={**PROOF, "environment": {"torch": "2.11.0"}})(files)

    assert failed(wheelkit.spoil(case.wheel, tmp_path, change), case.expectation) == {PROVENANCE}


def test_a_file_that_cannot_be_worked_out_here_is_unverified(case: Case, tmp_path: Path) -> None:
    record = {**RECORD_OF_OURS, "carries.json": None}
    report = audit(case.wheel, replace(case.expectation, record=record))
    assert [check.name for check in report.unverified] == [PROVENANCE]
    spoilt = wheelkit.spoil(case.wheel, tmp_path, lambda files: files.pop(f"{INFO}/sparkwright/carries.json"))
    assert failed(spoilt, replace(case.expectation, record=record)) == {PROVENANCE, "sbom-agrees"}


def test_strangers_are_refused_by_name_and_not_read(case: Case, tmp_path: Path) -> None:
    def change(files: Files) -> None:
        files["vllm/_X.cpython-312.so"] = wheelkit.elf("x86_64")
        files["vllm/build/.venv/x.py"] = b"x = (\n"

    spoilt = wheelkit.spoil(case.wheel, tmp_path, change)
    assert failed(spoilt, case.expectation) == {EXACT}
    alone = replace(case.expectation, changes=None, record=None)
    assert failed(spoilt, alone) == {"tags", "python-compiles", "binaries-identical"}, "where all is read"


def _planted(case: Case, folder: Path, *members: wheelkit.RawMember, **instead: wheelkit.RawMember) -> Path:
    """A copy of the wheel with *members* before its RECORD, which lists what they are called first."""
    wheel = folder / case.wheel.name
    old = [instead.get(one.name.decode(), one) for one in wheelkit.raw_members(case.wheel)]
    wheel.write_bytes(wheelkit.raw_zip([*old[:-1], *members, old[-1]]))
    return wheel


@pytest.mark.parametrize("folder", ["evil_folder/", "evil.pth/", "vllm/config/", f"{INFO}/sparkwright/"])
def test_a_folders_entry_is_refused_in_a_wheel_of_ours(case: Case, folder: str, tmp_path: Path) -> None:
    entry = wheelkit.RawMember(folder.encode(), b"", mode=0o40755, dos=0x10, method=0)
    report = audit(_planted(case, tmp_path, entry), case.expectation)
    assert [check.name for check in report.failures] == ["archive-safe"]
    assert folder in report.failures[0].detail


def test_an_odd_mode_is_found(case: Case, tmp_path: Path) -> None:
    name = "vllm/config/cache.py"
    old = next(one for one in wheelkit.raw_members(case.wheel) if one.name.decode() == name)
    report = audit(_planted(case, tmp_path, **{name: replace(old, mode=0o100600)}), case.expectation)
    assert [check.name for check in report.failures] == [EXACT]
    assert name in report.failures[0].detail


def test_a_build_tag_is_found(case: Case, tmp_path: Path) -> None:
    for wheel, expectation in (
        (case.wheel, case.expectation),
        (case.expectation.upstream_wheel, replace(case.expectation, version=None)),
    ):
        other = tmp_path / wheel.name.replace("-cp38", "-1evil-cp38")
        other.write_bytes(wheel.read_bytes())
        assert failed(other, expectation) == {"tags"}


BOMBS = {
    "a Python file of more than is read": ("vllm/core.py", (1 << 20) + 1, "archive-safe"),
    "a large Python file": ("vllm/core.py", 48 << 20, "archive-safe"),
    "a Python file of a GiB": ("vllm/core.py", 1 << 30, "archive-safe"),
    "another file": ("vllm/configs/a.json", 48 << 20, "archive-safe"),
    "what it says of itself": (f"{INFO}/sparkwright/carries.json", 48 << 20, "archive-safe"),
    "kernels": (f"{INFO}/sparkwright/kernels.json", 48 << 20, "archive-safe"),
    "RECORD": (f"{INFO}/RECORD", 48 << 20, "archive-safe"),
    "a stranger": ("vllm/evil.py", 1 << 30, f"record-complete {EXACT}"),
}
# The limit holds for ruff too; the peak is of this process alone, and not of the one that it was forked from.
MEASURED = """
import pathlib, pickle, re, resource, sys
from sparkwright.wheel.audit import audit
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for asked in pickle.load(sys.stdin.buffer):
    report = audit(*asked)
    (peak,) = re.findall(r"VmHWM:\\s+([0-9]+) kB", pathlib.Path("/proc/self/status").read_text())
    print(peak, *(check.name for check in report.failures))
"""


def measured(wheels: list[Path], expectation: Expectation) -> list[tuple[int, str]]:
    """Audit *wheels* within a GiB of memory: the peak so far in MiB, and the checks that fail."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED],
        input=pickle.dumps([(wheel, expectation) for wheel in wheels]),
        capture_output=True,
        check=True,
    )
    told = [line.partition(" ") for line in done.stdout.decode().splitlines()]
    return [(int(peak) >> 10, failures) for peak, _, failures in told]


def test_members_that_would_fill_the_memory_are_not_read(case: Case, tmp_path: Path) -> None:
    wheels = [case.wheel]
    for bomb, (name, size, _) in BOMBS.items():
        data, crc = wheelkit.zeros(size)
        member = wheelkit.RawMember(name.encode(), data, crc, size)
        folder = tmp_path / bomb
        folder.mkdir()
        known = name in wheelkit.unpack(case.wheel)
        wheels.append(_planted(case, folder, **{name: member}) if known else _planted(case, folder, member))
        assert wheels[-1].stat().st_size < 2 << 20
    found = dict(zip(["a healthy one", *BOMBS], measured(wheels, case.expectation), strict=True))
    assert {bomb: failures for bomb, (_, failures) in found.items()} == {
        "a healthy one": "",
        **{bomb: checks for bomb, (_, _, checks) in BOMBS.items()},
    }
    assert {bomb: peak for bomb, (peak, _) in found.items() if peak >= 150} == {}
