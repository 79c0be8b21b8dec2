"""The audit of native wheels: silent on a healthy one, and each check speaks up on its own fault."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import elfkit
import pytest
import wheelkit
from audit_case import edit
from msgspec.structs import replace as changed
from native_case import FA3, HERE, IMAGES, INFO, RS, SPIN, C, Case, extension, failed, make_case, record_of

from sparkwright.lock.model import Binary
from sparkwright.native.device_code import Tally
from sparkwright.native.elf import honest_platform, read_elf
from sparkwright.wheel.assemble import BinarySource, assemble
from sparkwright.wheel.audit import audit
from sparkwright.wheel.binaries import Expectation
from sparkwright.wheel.kernels import KERNELS
from sparkwright.wheel.names import parse_name
from sparkwright.wheel.native_checks import NATIVE_CHECKS

Files = dict[str, bytes]
IDENTICAL, PROVENANCE, BILL = "binaries-identical", "provenance-agrees", "sbom-agrees"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("native"))


def known(case: Case) -> Expectation:
    """What the wheel is held against where it was made: with the store's extensions and their record."""
    return replace(case.expectation, compiled=case.compiled, record=case.plan.record)


def test_a_healthy_native_wheel_passes_every_check(case: Case) -> None:
    report = audit(case.wheel, known(case))
    assert {check.name: check.detail for check in report.checks if check.verdict != "pass"} == {}
    assert (report.compiled, report.unchecked, report.arch) == (True, (), "12.1a")
    assert report.kernels == Tally(native=3, ptx=1)
    assert [one.member for one in report.binaries if one.kernels.total] == [C]
    assert FA3 not in wheelkit.unpack(case.wheel)
    told = json.loads(json.dumps(report.to_json()))
    assert told["kernels"] == {"native": 3, "family": 0, "ptx": 1, "none": 0}
    assert {one["member"] for one in told["binaries"]} == {C, RS, SPIN}


def test_a_candidate_for_a_pinned_source_is_named(case: Case, tmp_path: Path) -> None:
    claim = "cutlass v4.7.0 in place of v4.7.1 is attested for 2 of 2 units"
    wheel = rebuilt(case, tmp_path, case.plan.providers[C].path, attested=claim)
    for path, said in ((wheel, True), (case.wheel, False)):
        (check,) = [one for one in audit(path, case.expectation).checks if one.name == "kernels-native"]
        assert check.detail.endswith(f"; {C}: {claim}") == said
        (bill,) = [data for name, data in wheelkit.unpack(path).items() if name.endswith(".cdx.json")]
        assert (claim.encode() in bill) == said


def test_without_libraries_at_hand_that_is_said(case: Case) -> None:
    native = replace(case.expectation.native, surroundings=None)  # type: ignore[type-var]
    report = audit(case.wheel, replace(known(case), native=native))
    assert set(report.unchecked) == {"symbols-resolve", "needed-libraries"}
    assert set(audit(case.wheel, replace(known(case), native=None)).unchecked) == {
        name for name, _ in NATIVE_CHECKS
    }


def test_binaries_that_are_not_in_the_store_are_unverified(case: Case) -> None:
    report = audit(case.wheel, case.expectation)
    told = {check.name: check.detail for check in report.unverified}
    assert set(told) == set(report.unchecked) == {IDENTICAL, PROVENANCE}
    assert (report.failures, report.passed) == ((), False)
    assert all(name in told[IDENTICAL] for name in (C, SPIN))
    assert RS not in told[IDENTICAL]
    assert KERNELS in told[PROVENANCE]
    partly = replace(known(case), compiled={C: case.compiled[C]})
    (check,) = audit(case.wheel, partly).unverified
    assert (check.name, SPIN in check.detail, C in check.detail) == (IDENTICAL, True, False)


def provide(files: Files, member: str, data: bytes) -> None:
    """State *data* as what the provider of *member* gave."""
    given = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def change(entries: list[dict[str, Any]]) -> None:
        next(one for one in entries if one["member"] == member).update(given)

    edit("providers.json", change)(files)


def test_changed_code_that_is_called_compiled_is_found(case: Case, tmp_path: Path) -> None:
    def change(files: Files) -> None:
        data = bytearray(files[SPIN])
        at = data.index(b".shstrtab")  # nothing loads it: no other check can see that
        data[at : at + 8] = b".SHSTRTA"
        files[SPIN] = bytes(data)
        provide(files, SPIN, data)

    spoilt = wheelkit.spoil(case.wheel, tmp_path, change)
    found = failed(spoilt, known(case))
    assert set(found) == {IDENTICAL, BILL}
    assert SPIN in found[IDENTICAL]
    assert SPIN in found[BILL]
    assert not audit(spoilt, case.expectation).passed, "nor is it believed where nothing is known of it"


def test_upstreams_wheel_is_compared_for_the_card(case: Case) -> None:
    report = audit(case.expectation.upstream_wheel, replace(case.expectation, version=None))
    assert (report.kind, report.passed, report.kernels) == ("upstream", True, Tally(family=2, none=1))
    hopper = replace(case.expectation.native, arch="9.0a")  # type: ignore[type-var]
    other = audit(case.expectation.upstream_wheel, replace(case.expectation, version=None, native=hopper))
    assert other.kernels == Tally(native=1, none=2)


# Planted in the binary ---------------------------------------------------------------------


def rebuilt(case: Case, tmp_path: Path, binary: Path, **record: Any) -> Path:
    """The wheel with *binary* as its ``_C``, under a tag that is honest for it."""
    spin = case.plan.providers[SPIN]
    needs = [read_elf(path).versions for path in (binary, spin.path, case.folder / "host.so")]
    plan = replace(
        case.plan,
        providers={C: BinarySource(binary, "compiled", "the-key"), SPIN: spin},
        record={**case.plan.record, KERNELS: record_of(**record)},
        platform=honest_platform(parse_name(case.plan.upstream_wheel.name).platform, needs),
    )
    return assemble(plan, tmp_path / "dist").path


NEEDED, KERNELS_CHECK, MISSING = "needed-libraries", "kernels-native", "void cuInit(void), missing(void);"
# What `_C` is made with, the check that has to fail, and what it tells.
BINARIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "paths beside it": ({"flags": ["-Wl,-rpath,$ORIGIN:$ORIGIN/../torch/lib"]}, "", ""),
    "a folder of the builder": ({"flags": ["-Wl,-rpath,/home/me/build"]}, NEEDED, "/home/me/build"),
    "a folder above": ({"flags": ["-Wl,-rpath,$ORIGIN:../lib"]}, NEEDED, "../lib"),
    "the current folder": ({"flags": ["-Wl,-rpath,/a:"]}, NEEDED, "current folder"),
    "a folder beside, by its name": ({"flags": ["-Wl,-rpath,$ORIGINAL/lib"]}, NEEDED, "$ORIGINAL"),
    "a library that nothing brings": ({"flags": ["libodd.so.1"]}, NEEDED, f"{C} needs libodd.so.1,"),
    "a symbol that nobody defines": (
        {"body": f"{MISSING} void g(void) {{ missing(); }}"}, "symbols-resolve", f"{C}: missing ",
    ),
    "a name of the stable ABI": (
        {"body": "void cuInit(void), PyErr_Clear(void); void g(void) { PyErr_Clear(); }"}, "", "",
    ),
    "a private name of Python": (
        {"body": "void cuInit(void), _PyLong_AsInt(void); void g(void) { _PyLong_AsInt(); }"},
        "symbols-resolve", f"{C}: _PyLong_AsInt ",
    ),
    "a cubin too few": ({"images": IMAGES[1:]}, KERNELS_CHECK, ""),
    "lowered in silence": ({"images": [("sm_120", ["gemm", "norm"]), *IMAGES[1:]]}, KERNELS_CHECK, ""),
    "no PTX": ({"images": IMAGES[:2]}, KERNELS_CHECK, ""),
    "another's PTX": ({"images": [*IMAGES[:2], ("compute_90", ["old"])]}, KERNELS_CHECK, ""),
    "one more cubin": ({"images": [*IMAGES, ("sm_80", ["old"])]}, KERNELS_CHECK, ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", BINARIES)
def test_what_is_wrong_with_a_compiled_binary_is_found(case: Case, tmp_path: Path, fault: str) -> None:
    made, check, told = BINARIES[fault]
    strange = elfkit.shared(tmp_path / "libodd.so.1", "int odd;", "-Wl,-soname,libodd.so.1")
    options = {name: value for name, value in made.items() if name != "flags"}
    flags = [strange if flag == strange.name else flag for flag in made.get("flags", [])]
    binary = extension(tmp_path / "x.so", *flags, **options)
    found = failed(rebuilt(case, tmp_path, binary), case.expectation)
    assert list(found) == ([check] if check else [])
    assert not check or told in found[check]


def with_table(case: Case, measured: str = "", **binaries: Binary) -> Expectation:
    """What the wheel is held against, with another table of binaries in the lock."""
    lock = case.expectation.lock
    assert lock.native is not None
    native = changed(lock.native, binaries=binaries, measured=measured)
    return replace(case.expectation, lock=changed(lock, native=native))


def test_the_locks_table_is_held_against_what_was_asked_and_got(case: Case, tmp_path: Path) -> None:
    binary = extension(tmp_path / "x.so", images=IMAGES[:2])
    wheel = rebuilt(case, tmp_path, binary, asked={"sm_121a": 2})
    assert set(failed(wheel, case.expectation)) == {"kernels-native"}, "the table has PTX"
    spin = {SPIN: Binary()}
    assert failed(wheel, with_table(case, **spin, **{C: Binary(cubins={"sm_121a": 2})})) == {}
    assert "does not have" in failed(wheel, with_table(case, **spin))["kernels-native"]
    unexplained = Binary(cubins={"sm_121a": 2}, ptx={"compute_80": 1})
    found = failed(case.wheel, with_table(case, **spin, **{C: unexplained}))
    assert found == {"kernels-native": f"1 kernels of {C} are for compute_80: old"}


def test_a_table_that_was_measured_on_another_release_gives_reasons_alone(case: Case) -> None:
    explained = Binary(cubins={"sm_121a": 77}, why="the old one is for what no newer kernel does")
    assert failed(case.wheel, with_table(case, "0.23.0", **{C: explained})) == {}
    found = failed(case.wheel, with_table(case, "0.23.0"))
    assert found == {"kernels-native": f"1 kernels of {C} are for compute_80: old"}


def test_another_architecture_is_held_against_what_was_asked_alone(case: Case, tmp_path: Path) -> None:
    binary = extension(tmp_path / "x.so", images=[("sm_90a", ["gemm"])])

    def found(**asked: int) -> dict[str, str]:
        wheel = rebuilt(case, tmp_path, binary, asked=asked, arch="9.0a", left_out=())
        return failed(wheel, case.expectation)

    misses = {"members-differ-exactly"}  # what was left out
    assert set(found(sm_90a=1)) == misses
    assert (
        set(found(sm_90a=2)) == set(found(sm_90a=1, sm_80=1)) == set(found()) == misses | {"kernels-native"}
    )


def test_a_binary_for_another_machine(case: Case, tmp_path: Path) -> None:
    other = "x86_64" if HERE == "aarch64" else "aarch64"
    binary = extension(tmp_path / "x.so")
    content = bytearray(binary.read_bytes())
    content[18:20] = elfkit.MACHINES[other].to_bytes(2, "little")
    binary.write_bytes(content)
    found = failed(rebuilt(case, tmp_path, binary), case.expectation)
    assert set(found) == {"tags", "binaries-machine"}


def test_a_damaged_binary(case: Case, tmp_path: Path) -> None:
    binary = extension(tmp_path / "x.so")
    wheel = rebuilt(case, tmp_path, binary)
    whole = binary.read_bytes()

    def cut(files: Files) -> None:
        files[C] = whole[: len(whole) // 2]
        provide(files, C, files[C])

    found = failed(wheelkit.spoil(wheel, tmp_path / "spoilt", cut), case.expectation)
    assert set(found) == {"binaries-machine", "kernels-native", BILL}


# Planted in the wheel ----------------------------------------------------------------------


def relabelled(case: Case, folder: Path, platform: str) -> Path:
    name = parse_name(case.wheel.name)
    files = wheelkit.unpack(case.wheel)
    files[f"{INFO}/WHEEL"] = files[f"{INFO}/WHEEL"].replace(name.platform.encode(), platform.encode())
    return wheelkit.pack(folder / name.with_platform(platform).filename, wheelkit.with_record(files, INFO))


def test_a_tag_that_promises_too_little_or_too_much(case: Case, tmp_path: Path) -> None:
    honest = parse_name(case.wheel.name).platform
    assert failed(relabelled(case, tmp_path, honest), case.expectation) == {}
    modern = relabelled(case, tmp_path, f"manylinux_2_41_{HERE}")
    found = failed(modern, case.expectation)
    assert list(found) == ["glibc-floor"]
    assert all(tag in found["glibc-floor"] for tag in (f"manylinux_2_41_{HERE}", honest))
    ancient = relabelled(case, tmp_path, f"manylinux_2_5_{HERE}")
    assert set(failed(ancient, case.expectation)) == {"glibc-floor"}
    theirs = case.expectation.upstream_wheel
    stock = tmp_path / theirs.name.replace("_2_28_", "_2_5_")
    stock.write_bytes(theirs.read_bytes())
    found = failed(stock, replace(case.expectation, version=None))
    assert set(found) == {"glibc-floor"}
    assert f"{C} needs GLIBC_" in found["glibc-floor"]


_kernels = partial(edit, KERNELS)


def _left(**fields: Any) -> Callable[[Files], object]:
    entry = {"member": SPIN, "because": "", "evidence": []} | fields
    return _kernels(lambda value: value["left-out"].append(entry))


EXACT, LEFT = "members-differ-exactly", "left-out-unused"
WHEEL_FAULTS: dict[str, tuple[Callable[[Files], object], set[str]]] = {
    "no record of kernels": (
        lambda files: files.pop(f"{INFO}/sparkwright/{KERNELS}"),
        {PROVENANCE, IDENTICAL, EXACT, "native-inputs-unchanged", BILL},
    ),
    "a malformed record of kernels": (
        _kernels(lambda value: value.pop("arch")),
        {BILL, IDENTICAL, EXACT, "native-inputs-unchanged", "kernels-native", LEFT},
    ),
    "a record of a newer format": (
        _kernels(lambda value: value.update(format=2)),
        {BILL, IDENTICAL, EXACT, "native-inputs-unchanged", "kernels-native", LEFT},
    ),
    "another native key": (
        _kernels(lambda value: value["binaries"][0].update(key="other")), {IDENTICAL},
    ),
    "a compiled binary that is upstream's by the record": (
        _kernels(lambda value: value["binaries"][0].update(kernels="upstream")), {IDENTICAL},
    ),
    "one of upstream's that is compiled by the record": (
        _kernels(lambda value: value["binaries"][2].update(kernels="compiled")),
        {IDENTICAL, "kernels-native", "native-inputs-unchanged", "sbom-agrees"},
    ),
    "no reason for one of upstream's": (
        _kernels(lambda value: value["binaries"][2].update(because="")), {"native-inputs-unchanged"},
    ),
    "a binary that the record forgets": (
        _kernels(lambda value: value["binaries"].pop(2)), {IDENTICAL, "native-inputs-unchanged"},
    ),
    "compiled, and not there": (
        _kernels(lambda value: value["binaries"].append(
            {"member": "vllm/_none.so", "kernels": "compiled", "key": "k", "asked": {}}
        )),
        {IDENTICAL, "kernels-native"},
    ),
    "left out without a word": (_kernels(lambda value: value["left-out"].clear()), {EXACT}),
    "left out, and there": (_left(member="vllm/core.py"), {LEFT}),
    "Python that is left out": (
        lambda files: (files.pop("vllm/config/cache.py"), _left(member="vllm/config/cache.py")(files)),
        {LEFT},
    ),
    "left out, and unknown": (_left(member="vllm/_none.so"), {LEFT}),
    "left out, and in use": (
        lambda files: files.update({"vllm/core.py": b"from . import _fa3\n"}), {EXACT, LEFT},
    ),
    "what was left out is back": (
        lambda files: files.update({FA3: b"\x7fELF" + bytes(60)}),
        {EXACT, IDENTICAL, "tags", "binaries-machine", LEFT},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", WHEEL_FAULTS)
def test_a_planted_fault_is_found_by_its_checks_and_no_other(case: Case, fault: str, tmp_path: Path) -> None:
    change, expected = WHEEL_FAULTS[fault]
    assert set(failed(wheelkit.spoil(case.wheel, tmp_path, change), case.expectation)) == expected


@pytest.mark.parametrize(
    "change",
    [
        _kernels(lambda value: value.update(toolchain="another")),
        _kernels(lambda value: value["binaries"][2].update(because="a better reason")),
        _kernels(lambda value: value["left-out"][0].update(evidence=["none"])),
    ],
)
def test_what_the_record_says_of_kernels_is_held_against_what_is_known(case, change, tmp_path):
    found = failed(wheelkit.spoil(case.wheel, tmp_path, change), known(case))
    assert set(found) == {PROVENANCE}
    assert KERNELS in found[PROVENANCE]


def test_only_what_is_useless_may_be_left_out(case: Case, tmp_path: Path) -> None:
    for member, told in ((SPIN, "has no device code"), (C, "has kernels that run on 12.1a")):
        plan = replace(
            case.plan,
            providers={one: source for one, source in case.plan.providers.items() if one != member},
            left_out={**case.plan.left_out, member: ""},
        )
        value = json.loads(json.dumps(record_of()))
        value["binaries"] = [one for one in value["binaries"] if one["member"] != member]
        value["left-out"].append({"member": member, "because": "", "evidence": []})
        plan = replace(plan, record={**plan.record, KERNELS: value})
        found = failed(assemble(plan, tmp_path / member).path, case.expectation)
        assert set(found) == {LEFT}
        assert told in found[LEFT]
