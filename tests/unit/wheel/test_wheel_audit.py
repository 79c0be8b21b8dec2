"""Every check stays silent on a healthy wheel and speaks up on one spoilt in just its respect."""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
import wheelkit
from audit_case import BIG, CHANGES, INFO, OURS, Case, Files, edit, failed, make_case, put, swap, verdicts

from sparkwright.base.errors import AuditError
from sparkwright.git.trees import blob_id
from sparkwright.lock.model import Lock
from sparkwright.native.model import Extension
from sparkwright.wheel.assemble import BinarySource, assemble
from sparkwright.wheel.audit import CHECKS, audit
from sparkwright.wheel.binaries import Expectation
from sparkwright.wheel.native_checks import NATIVE_CHECKS
from sparkwright.wheel.recorded import read_record
from sparkwright.wheel.survey import floor_of

NAMES = ["upstream-digest", "archive-safe", *(name for name, _ in CHECKS)]
NATIVE = {name for name, _ in NATIVE_CHECKS}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("audit"))


def test_a_healthy_wheel_passes_every_check(case: Case) -> None:
    assert verdicts(case.wheel, case.expectation) == {
        **dict.fromkeys(NAMES, "pass"), **dict.fromkeys(NATIVE, "skipped"),
    }  # fmt: skip
    report = audit(case.wheel, case.expectation)
    assert (report.kind, report.passed, report.sha256) == ("sparkwright", True, wheelkit.sha256(case.wheel))
    report.require()
    assert json.loads(json.dumps(report.to_json()))["checks"][0]["name"] == "upstream-digest"


def test_upstreams_own_wheel_passes_as_such(case: Case) -> None:
    report = audit(case.expectation.upstream_wheel, replace(case.expectation, version=None))
    skipped = {PROVENANCE, BILL, "members-differ-exactly", "binaries-identical", "native-inputs-unchanged"}
    assert report.kind == "upstream"
    assert {check.name for check in report.checks if check.verdict == "skipped"} == skipped | NATIVE
    assert (report.passed, report.unchecked) == (True, ())


def test_without_a_merge_the_checks_that_need_one_are_skipped(case: Case) -> None:
    expectation = replace(case.expectation, changes=None, record=None)
    found = verdicts(case.wheel, expectation)
    need_one = {PROVENANCE, BILL, "members-differ-exactly", "native-inputs-unchanged"}
    assert {name for name, verdict in found.items() if verdict == "skipped"} == need_one | NATIVE
    assert set(audit(case.wheel, expectation).unchecked) == need_one
    assert "fail" not in found.values()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_providers = partial(edit, "providers.json")


CONFLICT = b'"""\n<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n"""\n'
EVIL = wheelkit.elf(payload=b"evil")
DEEP = b"[" * 200_000 + b"]" * 200_000
SBOM_FILE = f"{INFO}/sboms/sparkwright.cdx.json"
METADATA, WHEEL, VERSION = f"{INFO}/METADATA", f"{INFO}/WHEEL", "vllm/_version.py"
EXACT, PROVENANCE, BILL = "members-differ-exactly", "provenance-agrees", "sbom-agrees"
# What is done to the members, RECORD being made to fit, and the checks that have to fail, all of them.
FAULTS: dict[str, tuple[Callable[[Files], object], set[str]]] = {
    "WHEEL has upstream's generic tag": (swap(WHEEL, b"manylinux_2_28", b"linux"), {"tags", EXACT}),
    "pure Python claimed": (swap(WHEEL, b"Purelib: false", b"Purelib: true"), {"tags", EXACT}),
    "a binary for another machine": (
        put("vllm/vllm-rs", wheelkit.elf("x86_64", b"rs")), {"tags", EXACT, "binaries-identical"},
    ),
    "METADATA of another version": (
        swap(METADATA, OURS.encode(), b"0.24.0+spark.00000001"), {"versions-agree", EXACT},
    ),
    "_version.py of upstream": (put(VERSION, wheelkit.VERSION_PY), {"versions-agree", EXACT}),
    "_version.py with another tuple": (swap(VERSION, b"24, 0,", b"23, 0,"), {"versions-agree", EXACT}),
    "the point of another version": (
        put(f"{INFO}/sparkwright/point.json", b'{"version": "0.24.0"}'), {"versions-agree", PROVENANCE},
    ),
    "no point": (
        lambda files: files.pop(f"{INFO}/sparkwright/point.json"), {"versions-agree", PROVENANCE},
    ),
    "a point that is not JSON": (
        put(f"{INFO}/sparkwright/point.json", b"{"), {"versions-agree", PROVENANCE},
    ),
    "providers that are nested deeply": (
        put(f"{INFO}/sparkwright/providers.json", DEEP),
        {PROVENANCE, BILL, EXACT, "binaries-identical", "native-inputs-unchanged"},
    ),
    "a version file that is nested deeply": (
        put(VERSION, b"version = " + b"-" * 5000 + b"1\n"), {"versions-agree", EXACT},
    ),
    "upstream's metadata folder left behind": (
        put("vllm-0.24.0.dist-info/METADATA", b""), {"versions-agree", EXACT},
    ),
    "a change that the merge did not make": (put("vllm/config/cache.py", b"x = 1\n"), {EXACT}),
    "a change of the merge that is missing": (put("vllm/core.py", b"x = 1\n"), {EXACT}),
    "an added file that is missing": (lambda files: files.pop("vllm/config/new.py"), {EXACT}),
    "a deleted file that is back": (put("vllm/old.py", b"GONE = True\n"), {EXACT}),
    "a stranger": (put("sitecustomize.py", b"x = 1\n"), {EXACT}),
    "another licence": (put(f"{INFO}/licenses/LICENSE", b"none\n"), {EXACT}),
    "syntax of a newer Python": (put("vllm/config/cache.py", b"type A = int\n"), {"python-compiles", EXACT}),
    "a newer f-string": (put("vllm/config/cache.py", b'x = f"{"a"}"\n'), {"python-compiles", EXACT}),
    "a newer f-string, silenced": (
        put("vllm/config/cache.py", b'# ruff: noqa\nx = f"{"a"}"  # noqa\n'), {"python-compiles", EXACT},
    ),
    "a return outside": (put("vllm/config/cache.py", b"return 1\n"), {"python-compiles", EXACT}),
    "Python in which a parser runs out of stack": (
        put("vllm/config/cache.py", b"x = 1" + b" + 1" * 100_000), {"python-compiles", EXACT},
    ),
    "a conflict in Python": (put("vllm/config/cache.py", CONFLICT), {"no-conflict-markers", EXACT}),
    "a conflict in JSON": (put("vllm/configs/a.json", CONFLICT), {"no-conflict-markers", EXACT}),
    "another binary": (
        put("vllm/vllm-rs", EVIL), {EXACT, "binaries-identical"},
    ),
    "another large binary": (
        put(BIG, wheelkit.elf(payload=b"big " * 399_999 + b"bug ")), {EXACT, "binaries-identical"},
    ),
    "another binary, and a provider who says so": (
        lambda files: (
            files.update({"vllm/vllm-rs": EVIL}),
            _providers(lambda entries: entries[2].update(size=len(EVIL), sha256=_sha256(EVIL)))(files),
        ),
        {EXACT, "binaries-identical", BILL},
    ),
    "a binary without a provider": (_providers(lambda entries: entries.pop()), {"binaries-identical", BILL}),
    "a provider listed twice": (
        _providers(lambda entries: entries.insert(0, entries[0])), {"binaries-identical"},
    ),
    "a provider of nothing": (
        _providers(lambda entries: entries.insert(2, {**entries[0], "member": "vllm/none.so"})),
        {"binaries-identical", BILL},
    ),
    "an unknown provider": (
        _providers(lambda entries: entries[0].update(provider="elsewhere")),
        {"binaries-identical", BILL},
    ),
    "providers in another order": (_providers(lambda entries: entries.reverse()), {PROVENANCE}),
    "providers spelt otherwise": (
        swap(f"{INFO}/sparkwright/providers.json", b",", b", "), {PROVENANCE},
    ),
    "binaries from another wheel": (
        _providers(lambda entries: entries[0].update({"from": "vllm-0.23.0.whl"})),
        {"binaries-identical", BILL},
    ),
    "a malformed list of providers": (
        _providers(lambda entries: entries[0].pop("size")),
        {"binaries-identical", EXACT, "native-inputs-unchanged", BILL},
    ),
    "no bill of materials": (lambda files: files.pop(SBOM_FILE), {BILL}),
    "a bill that is not JSON": (put(SBOM_FILE, b"{"), {BILL}),
    "a bill that is nested deeply": (put(SBOM_FILE, DEEP), {BILL}),
    "a bill without components": (put(SBOM_FILE, b"{}"), {BILL}),
    "a bill spelt otherwise": (swap(SBOM_FILE, b'{"', b'{ "'), {BILL}),
    "a bill with another commit": (swap(SBOM_FILE, b"ee0da84ab", b"ee0da84ac"), {BILL}),
    "another bill beside it": (put(f"{INFO}/sboms/other.cdx.json", b"{}"), {PROVENANCE, EXACT}),
    "another torch": (swap(METADATA, b"torch==2.11.0", b"torch==2.12.0"), {"torch-pinned", EXACT}),
    "a loose torch": (swap(METADATA, b"torch==2.11.0", b"torch>=2.11.0"), {"torch-pinned", EXACT}),
    "torch on some machines only": (
        swap(METADATA, b"torch==2.11.0", b'torch==2.11.0; python_version > "3.11"'), {"torch-pinned", EXACT},
    ),
    "no torch": (swap(METADATA, b"Requires-Dist: torch==2.11.0\n", b""), {"torch-pinned", EXACT}),
    "our record stripped": (
        lambda files: [files.pop(name) for name in list(files) if "/sparkwright/" in name],
        {"upstream-digest"},
    ),
    "a malformed requirement": (swap(METADATA, b"regex", b"=="), {"torch-pinned", EXACT}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_its_checks_and_no_other(case: Case, fault: str, tmp_path: Path) -> None:
    change, expected = FAULTS[fault]
    spoilt = wheelkit.spoil(case.wheel, tmp_path, change)
    assert failed(spoilt, case.expectation) == expected
    with pytest.raises(AuditError, match="failed its audit"):
        audit(spoilt, case.expectation).require()


def test_python_is_compared_with_the_merged_tree(case: Case) -> None:
    core = "vllm/core.py"
    same = replace(case.expectation, python={core: blob_id(CHANGES[core])})
    assert failed(case.wheel, same) == set()
    for python in ({core: blob_id(b"x = 2\n")}, {"vllm/more.py": blob_id(b"")}):
        assert failed(case.wheel, replace(case.expectation, python=python)) == {EXACT}


def test_repacking_alone_is_no_fault(case: Case, tmp_path: Path) -> None:
    assert failed(wheelkit.spoil(case.wheel, tmp_path, len), case.expectation) == set()


@pytest.mark.parametrize(
    "innocent",
    [
        b"Title\n=======\n\ntext\n",
        b"a\n=======\n>>> doctest\n",
        b"x <<<<<<< y\n=======\n",
        b"<<<<<<< alone\n",
    ],
)
def test_headings_and_arrows_are_no_conflicts(case: Case, innocent: bytes, tmp_path: Path) -> None:
    spoilt = wheelkit.spoil(case.wheel, tmp_path, put("vllm/configs/a.json", innocent))
    assert failed(spoilt, case.expectation) == {EXACT}


RECORD = f"{INFO}/RECORD"
OTHER_CORE = CHANGES["vllm/core.py"].replace(b"2", b"3")
# Changes of members or of RECORD, which is not made to fit, and the checks that fail beside RECORD's own.
RECORD_FAULTS: dict[str, tuple[Callable[[Files], object], set[str]]] = {
    "a member that is not listed": (put("vllm/configs/z.json", b"1"), {EXACT}),
    "a line for nothing": (
        swap(RECORD, b"vllm/core.py,", b"vllm/gone.py,sha256=x,1\nvllm/core.py,"), set(),
    ),
    "a wrong digest": (swap(RECORD, b"vllm/core.py,sha256=", b"vllm/core.py,sha256=A"), set()),
    "another member's digest": (put("vllm/core.py", OTHER_CORE), {EXACT}),
    "a wrong size": (swap(RECORD, f",{len(CHANGES['vllm/config/new.py'])}\n".encode(), b",9999\n"), set()),
    "no digest": (
        lambda files: put(RECORD, re.sub(rb"(?m)^vllm/core.py,.*$", b"vllm/core.py,,", files[RECORD]))(files),
        set(),
    ),
    "a digest of itself": (swap(RECORD, b"RECORD,,", b"RECORD,sha256=abc,3"), set()),
    "not CSV": (put(RECORD, b"hello\n"), set()),
    "none": (lambda files: files.pop(RECORD), set()),
}  # fmt: skip


@pytest.mark.parametrize("fault", RECORD_FAULTS)
def test_a_record_that_lies_is_found(case: Case, fault: str, tmp_path: Path) -> None:
    change, also = RECORD_FAULTS[fault]
    spoilt = wheelkit.spoil(case.wheel, tmp_path, change, record=False)
    assert failed(spoilt, case.expectation) == {"record-complete"} | also


@pytest.mark.parametrize("member", ["vllm/core.py", BIG])
def test_damaged_data_is_found(case: Case, member: str, tmp_path: Path) -> None:
    data = bytearray(case.wheel.read_bytes())
    with zipfile.ZipFile(case.wheel) as archive:
        info = archive.getinfo(member)
    data[info.header_offset + 30 + len(member) + info.compress_size // 2] ^= 0xFF
    spoilt = tmp_path / case.wheel.name
    spoilt.write_bytes(data)
    assert {"archive-safe", "record-complete", EXACT} <= failed(spoilt, case.expectation)


def test_an_unsafe_archive_is_not_looked_into(case: Case, tmp_path: Path) -> None:
    stream = io.BytesIO(case.wheel.read_bytes())
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("../../evil.py", b"")
    spoilt = tmp_path / case.wheel.name
    spoilt.write_bytes(stream.getvalue())
    report = audit(spoilt, case.expectation)
    assert report.kind == "unreadable"
    assert [check.name for check in report.failures] == ["archive-safe"]
    assert {check.verdict for check in report.checks[2:]} == {"skipped"}


def test_a_wheel_named_for_another_platform_or_version_is_found(case: Case, tmp_path: Path) -> None:
    data = case.wheel.read_bytes()
    other = tmp_path / case.wheel.name.replace("aarch64", "x86_64")
    other.write_bytes(data)
    assert failed(other, case.expectation) == {"tags"}
    release = tmp_path / case.wheel.name.replace("1a2b3c4d", "1a2b3c4e")
    release.write_bytes(data)
    assert "versions-agree" in failed(release, case.expectation)


def with_release(lock: Lock, **fields: str) -> Lock:
    return msgspec.structs.replace(lock, release=msgspec.structs.replace(lock.release, **fields))


def _changes(path: str) -> Callable[[Expectation], Expectation]:
    return lambda held: replace(held, changes={**CHANGES, path: b"new"})


def _another_upstream(held: Expectation) -> Expectation:
    return replace(held, artifact=msgspec.structs.replace(held.artifact, sha256="0" * 64))


# What a healthy wheel is held against instead, and the checks that have to fail.
EXPECTATIONS: dict[str, tuple[Callable[[Expectation], Expectation], set[str]]] = {
    "another version": (lambda held: replace(held, version="0.24.0+spark.2"), {"versions-agree"}),
    "another release": (
        lambda held: replace(held, lock=with_release(held.lock, version="0.24.1")), {"versions-agree", BILL},
    ),
    "native inputs in the merge": (_changes("csrc/ops.cu"), {"native-inputs-unchanged"}),
    "metadata inputs in the merge": (_changes("requirements/common.txt"), {EXACT}),
    "another upstream wheel": (_another_upstream, {"upstream-digest"}),
}  # fmt: skip


@pytest.mark.parametrize("held", EXPECTATIONS)
def test_a_wheel_of_something_else_is_found(case: Case, held: str) -> None:
    change, expected = EXPECTATIONS[held]
    assert failed(case.wheel, change(case.expectation)) == expected


def test_an_upstream_wheel_that_the_lock_does_not_name_is_found(case: Case) -> None:
    stock = replace(_another_upstream(case.expectation), version=None)
    assert failed(case.expectation.upstream_wheel, stock) == {"upstream-digest"}


def test_a_module_for_one_python_in_an_upstream_wheel_of_the_stable_abi_is_found(
    case: Case, tmp_path: Path
) -> None:
    wheel = wheelkit.upstream_wheel(tmp_path, extra={"vllm/_one.so": wheelkit.elf()})
    stock = replace(case.expectation, upstream_wheel=wheel, version=None)
    assert failed(wheel, stock) == {"upstream-digest", "tags"}


def test_native_inputs_are_fine_with_binaries_from_elsewhere(case: Case, tmp_path: Path) -> None:
    binaries = ("vllm/_C.abi3.so", BIG, "vllm/vllm-rs")
    for number in range(3):
        (tmp_path / str(number)).write_bytes(wheelkit.elf(payload=b"new" * number))
    providers = {
        name: BinarySource(tmp_path / str(number), "compiled", "key") for number, name in enumerate(binaries)
    }
    changes = {**CHANGES, "csrc/ops.cu": b"new"}
    kernels = {
        "format": 1, "arch": "12.1a", "machine": "aarch64", "toolchain": "t",
        "binaries": [{"member": member, "kernels": "compiled", "key": "key"} for member in binaries],
    }  # fmt: skip
    record = {**case.plan.record, "kernels.json": kernels}
    plan = replace(case.plan, providers=providers, changes=changes, record=record)
    built = assemble(plan, tmp_path / "dist")
    compiled = {
        one.member: Extension(target="t", key="key", sha256=one.sha256, size=one.size, arches={})
        for one in read_record(built.path).binaries
    }
    expectation = replace(case.expectation, changes=changes, record=record, compiled=compiled)
    assert failed(built.path, expectation) == set()
    # Nobody looked into them, and here that matters.
    assert set(audit(built.path, expectation).unchecked) == NATIVE
    # Without the store's copies nothing is known of them, and one that differs is another.
    report = audit(built.path, replace(expectation, compiled={}))
    assert ([check.name for check in report.unverified], report.passed) == (["binaries-identical"], False)
    for fields in ({"sha256": "0" * 64}, {"key": "other"}):
        other = {**compiled, BIG: msgspec.structs.replace(compiled[BIG], **fields)}
        report = audit(built.path, replace(expectation, compiled=other))
        assert [check.name for check in report.failures] == ["binaries-identical"]
        assert BIG in report.failures[0].detail
    # Other bytes than record and store agree on, and a provider of another name for theirs.
    for number, (change, told) in enumerate(
        [
            (put(BIG, EVIL), f"{BIG} is not what its provider gave"),
            (_providers(lambda entries: entries[0].update(provider="elsewhere")), "an unknown provider"),
        ]
    ):
        (folder := tmp_path / f"spoilt-{number}").mkdir()
        report = audit(wheelkit.spoil(built.path, folder, change), expectation)
        details = {check.name: check.detail for check in report.failures}
        assert told in details["binaries-identical"]


def test_a_lost_executable_bit_is_found(case: Case, tmp_path: Path) -> None:
    spoilt = wheelkit.pack(tmp_path / case.wheel.name, wheelkit.unpack(case.wheel), executable=())
    report = audit(spoilt, case.expectation)
    assert [(check.name, check.detail) for check in report.failures] == [
        (EXACT, "vllm/vllm-rs may be executed in upstream's wheel")
    ]


def test_the_floor_decides_what_compiles(case: Case, tmp_path: Path) -> None:
    spoilt = wheelkit.spoil(case.wheel, tmp_path, put("vllm/config/cache.py", b"type A = int\n"))
    newer = with_release(case.expectation.lock, requires_python=">=3.12")
    assert failed(spoilt, replace(case.expectation, lock=newer)) == {EXACT}


@pytest.mark.parametrize(
    ("specifier", "floor"), [(">=3.10,<3.15", "3.10"), (">=3.9.2", "3.9"), ("!=3.10.*,>=3.10", "3.11")]
)
def test_the_floor_of_a_specifier(specifier: str, floor: str) -> None:
    assert floor_of(specifier) == floor


def test_a_member_that_is_a_link_in_the_merged_tree_fails(case: Case) -> None:
    """Its bytes are those of the merge's blob, which are the name of the link's target."""
    linked = replace(case.expectation, links=frozenset({"vllm/config/new.py"}))
    report = audit(case.wheel, linked)
    (check,) = report.failures
    assert check.name == EXACT
    assert "vllm/config/new.py is a symbolic link in the merged tree" in check.detail
    gone = replace(case.expectation, links=frozenset({"vllm/removed.py"}))
    assert audit(case.wheel, gone).passed
