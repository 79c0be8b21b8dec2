"""The audit of native wheels: silent on a healthy one, and each check speaks up on its own fault."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import elfkit
import pytest
import wheelkit
from msgspec.structs import replace as changed

from sparkwright.errors import NativeInputsError, WheelError
from sparkwright.lock import Artifact, Lock, Release
from sparkwright.lock.native import Binary, NativePin, Toolkit
from sparkwright.native.inspection import Inspector, Surroundings, Tally, honest_platform, read_elf
from sparkwright.native.model import Extension, Target
from sparkwright.store import open_store
from sparkwright.wheel import AssemblyPlan, BinarySource, Expectation, assemble, audit, parse_name
from sparkwright.wheel.audit import NATIVE_CHECKS
from sparkwright.wheel.deflate import deflate, deflated_in, holds
from sparkwright.wheel.insides import NativeExpectation
from sparkwright.wheel.kernels import KERNELS, LeftOut, kernels_record, read_kernels_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkwright.store import Store

OURS = "0.24.0+spark.1a2b3c4d"
INFO = f"vllm-{OURS}.dist-info"
C, FA3, RS, SPIN = "vllm/_C.abi3.so", "vllm/_fa3.abi3.so", "vllm/vllm-rs", "vllm/spinloop.abi3.so"
GUARD = b"""
try:
    from . import _fa3
    NEW = True
except ImportError:
    NEW = False
try:
    from . import _C
    OLD = True
except ImportError:
    OLD = False
if not (NEW or OLD):
    raise ImportError
"""
CHANGES = {"vllm/core.py": b"x = 2\n", "CMakeLists.txt": b"archs"}
BECAUSE = "it is made by another compiler"
HERE = platform.machine()
Files = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """A healthy native wheel, what it was made from and what it is held against."""

    wheel: Path
    plan: AssemblyPlan
    expectation: Expectation
    folder: Path


def record_of(
    *, asked: dict[str, int] | None = None, left_out: tuple[LeftOut, ...] | None = None, arch: str = "12.1a"
) -> dict[str, Any]:
    extension = Extension(
        target="_C", key="the-key", sha256="0" * 64, size=1,
        arches={"sm_121a": 2, "compute_80": 1} if asked is None else asked,
    )  # fmt: skip
    spin = Extension(target="spinloop", key="spin-key", sha256="0" * 64, size=1, arches={})
    if left_out is None:
        left_out = (LeftOut(member=FA3, because="none of its 1 kernels runs on 12.1a", evidence=("a",)),)
    return kernels_record(
        Target(HERE, arch), "toolchain", compiled={C: extension, SPIN: spin}, upstream={RS: BECAUSE},
        left_out=left_out,
    )  # fmt: skip


def lock_of(artifact: Artifact) -> Lock:
    release = Release(
        version="0.24.0", commit="ee0da84ab", git="https://example.org/vllm", requires_python=">=3.10,<3.15",
        torch="2.11.0",
    )  # fmt: skip
    native = NativePin(
        release="0.24.0",
        arch="12.1a",
        toolkit=Toolkit(cuda="13.0", release=None, builder={}, target={}),  # type: ignore[arg-type]
        sources={},
        extensions={},
        binaries={
            C: Binary(cubins={"sm_121a": 2}, ptx={"compute_80": 1}, why="a fallback"),
            SPIN: Binary(),
        },
    )
    return Lock(format=1, release=release, sdist=artifact, wheels={HERE: artifact}, sources={}, native=native)


IMAGES = [("sm_121a", ["gemm", "norm"]), ("sm_121a", ["more"]), ("compute_80", ["old"])]


def extension(path: Path, *flags: str | Path, images: Any = None, body: str = "void cuInit(void);") -> Path:
    """One of ours, compiled: device code as asked, symbols that torch and the driver define."""
    stand_ins = path.parent / "stand-ins"
    driver = elfkit.shared(stand_ins / "libcuda.so.1", "int none;", "-Wl,-soname,libcuda.so.1")
    torch = elfkit.shared(
        path.parent / "torch" / "libtorch.so", "int add(void) { return 1; }", "-Wl,-soname,libtorch.so"
    )
    code = f"int add(void); {body} int f(void) {{ cuInit(); return add(); }}"
    return elfkit.shared(
        path, code, "-Wl,--no-as-needed", torch, driver, *flags,
        device=elfkit.device(IMAGES if images is None else images),
    )  # fmt: skip


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("native")
    fa3 = elfkit.shared(folder / "fa3.so", "int a;", device=elfkit.device([("sm_90a", ["hopper"])]))
    code = "#include <stdlib.h>\nvoid f(void) { quick_exit(0); }"
    old = elfkit.shared(folder / "old.so", code, device=elfkit.device([("sm_120", ["gemm", "norm"])]))
    host = elfkit.shared(folder / "host.so", "int a;")
    upstream = wheelkit.upstream_wheel(
        folder / "upstream", HERE,
        extra={FA3: fa3.read_bytes(), "vllm/fa.py": GUARD, SPIN: host.read_bytes()},
        instead={C: old.read_bytes(), RS: host.read_bytes()},
    )  # fmt: skip
    artifact = Artifact(
        filename=upstream.name, sha256=wheelkit.sha256(upstream), size=upstream.stat().st_size
    )
    ours, spin = extension(folder / "built" / "_C.so"), elfkit.shared(folder / "built" / "spin.so", "int b;")
    needs = [read_elf(path).versions for path in (ours, spin, host)]
    plan = AssemblyPlan(
        upstream, artifact.sha256, OURS, CHANGES,
        {"point.json": {"version": OURS}, KERNELS: record_of()},
        providers={
            C: BinarySource(ours, "compiled", "the-key"), SPIN: BinarySource(spin, "store", "spin-key"),
        },
        upstream_binaries={RS: BECAUSE},
        left_out={FA3: "nothing in it runs"},
        platform=honest_platform(parse_name(upstream.name).platform, needs),
    )  # fmt: skip
    native = NativeExpectation(
        "12.1a",
        Inspector(open_store(folder / "home"), lambda: elfkit.reader(folder / "bin")),
        Surroundings.of([folder / "built" / "torch"], ["libcublas.so.13"]),
    )
    expectation = Expectation(upstream, artifact, lock_of(artifact), CHANGES, OURS, native=native)
    return Case(assemble(plan, folder / "dist").path, plan, expectation, folder)


def failed(wheel: Path, expectation: Expectation) -> dict[str, str]:
    return {check.name: check.detail for check in audit(wheel, expectation).failures}


def test_a_healthy_native_wheel_passes_every_check(case: Case) -> None:
    report = audit(case.wheel, case.expectation)
    assert {check.name: check.detail for check in report.checks if check.verdict != "pass"} == {}
    assert (report.compiled, report.unchecked, report.arch) == (True, (), "12.1a")
    assert report.kernels == Tally(native=3, ptx=1)
    assert [one.member for one in report.binaries if one.kernels.total] == [C]
    assert FA3 not in wheelkit.unpack(case.wheel)
    told = json.loads(json.dumps(report.to_json()))
    assert told["kernels"] == {"native": 3, "family": 0, "ptx": 1, "none": 0}
    assert {one["member"] for one in told["binaries"]} == {C, RS, SPIN}


def test_without_libraries_at_hand_that_is_said(case: Case) -> None:
    native = replace(case.expectation.native, surroundings=None)  # type: ignore[type-var]
    report = audit(case.wheel, replace(case.expectation, native=native))
    assert set(report.unchecked) == {"symbols-resolve", "needed-libraries"}
    assert set(audit(case.wheel, replace(case.expectation, native=None)).unchecked) == {
        name for name, _ in NATIVE_CHECKS
    }


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


FLAGS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "a folder of the builder": (("-Wl,-rpath,/work/build",), "needed-libraries", "/work/build"),
    "a folder above": (("-Wl,-rpath,$ORIGIN:../lib",), "needed-libraries", "../lib"),
    "the current folder": (("-Wl,-rpath,/a:",), "needed-libraries", "current folder"),
    "a folder beside, by its name": (("-Wl,-rpath,$ORIGINAL/lib",), "needed-libraries", "$ORIGINAL"),
}


@pytest.mark.parametrize("fault", FLAGS)
def test_a_path_that_leads_elsewhere(case: Case, tmp_path: Path, fault: str) -> None:
    flags, check, told = FLAGS[fault]
    found = failed(rebuilt(case, tmp_path, extension(tmp_path / "x.so", *flags)), case.expectation)
    assert set(found) == {check}
    assert told in found[check]


def test_paths_beside_the_binary_are_fine(case: Case, tmp_path: Path) -> None:
    binary = extension(tmp_path / "x.so", "-Wl,-rpath,$ORIGIN:$ORIGIN/../torch/lib")
    assert failed(rebuilt(case, tmp_path, binary), case.expectation) == {}


def test_a_symbol_that_nobody_defines(case: Case, tmp_path: Path) -> None:
    binary = extension(
        tmp_path / "x.so", body="void cuInit(void), missing(void); void g(void) { missing(); }"
    )
    assert failed(rebuilt(case, tmp_path, binary), case.expectation) == {
        "symbols-resolve": f"{C}: nobody defines missing"
    }


def test_a_library_that_nothing_brings(case: Case, tmp_path: Path) -> None:
    strange = elfkit.shared(tmp_path / "libodd.so.1", "int odd;", "-Wl,-soname,libodd.so.1")
    found = failed(rebuilt(case, tmp_path, extension(tmp_path / "x.so", strange)), case.expectation)
    assert found == {"needed-libraries": f"{C} needs libodd.so.1, which nothing brings"}


COUNTS: dict[str, tuple[Any, set[str]]] = {
    "a cubin too few": ([*IMAGES[1:]], {"kernels-native"}),
    "lowered in silence": ([("sm_120", ["gemm", "norm"]), *IMAGES[1:]], {"kernels-native"}),
    "no PTX": (IMAGES[:2], {"kernels-native"}),
    "another's PTX": ([*IMAGES[:2], ("compute_90", ["old"])], {"kernels-native"}),
    "one more cubin": ([*IMAGES, ("sm_80", ["old"])], {"kernels-native"}),
}


@pytest.mark.parametrize("fault", COUNTS)
def test_device_code_that_was_not_asked_for(case: Case, tmp_path: Path, fault: str) -> None:
    images, expected = COUNTS[fault]
    binary = extension(tmp_path / "x.so", images=images)
    assert set(failed(rebuilt(case, tmp_path, binary), case.expectation)) == expected


def test_the_locks_table_is_held_against_what_was_asked_and_got(case: Case, tmp_path: Path) -> None:
    binary = extension(tmp_path / "x.so", images=IMAGES[:2])
    wheel = rebuilt(case, tmp_path, binary, asked={"sm_121a": 2})
    assert set(failed(wheel, case.expectation)) == {"kernels-native"}, "the table has PTX"
    lock = case.expectation.lock
    assert lock.native is not None

    def with_table(**binaries: Binary) -> Expectation:
        native = changed(lock.native, binaries={SPIN: Binary(), **binaries})
        return replace(case.expectation, lock=changed(lock, native=native))

    exact = Binary(cubins={"sm_121a": 2})
    assert failed(wheel, with_table(**{C: exact})) == {}
    assert "does not have" in failed(wheel, with_table())["kernels-native"]
    unexplained = Binary(cubins={"sm_121a": 2}, ptx={"compute_80": 1})
    found = failed(case.wheel, with_table(**{C: unexplained}))
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
        entries = json.loads(files[f"{INFO}/sparkwright/providers.json"])
        entry = next(one for one in entries if one["member"] == C)
        entry |= {"size": len(files[C]), "sha256": hashlib.sha256(files[C]).hexdigest()}
        files[f"{INFO}/sparkwright/providers.json"] = json.dumps(entries).encode()

    found = failed(wheelkit.spoil(wheel, tmp_path / "spoilt", cut), case.expectation)
    assert set(found) == {"binaries-machine", "kernels-native"}


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
    assert failed(modern, case.expectation) == {
        "glibc-floor": f"the tag says manylinux_2_41_{HERE}, and {honest} would do"
    }
    ancient = relabelled(case, tmp_path, f"manylinux_2_5_{HERE}")
    assert set(failed(ancient, case.expectation)) == {"glibc-floor"}
    theirs = case.expectation.upstream_wheel
    stock = tmp_path / theirs.name.replace("_2_28_", "_2_5_")
    stock.write_bytes(theirs.read_bytes())
    found = failed(stock, replace(case.expectation, version=None))
    assert set(found) == {"glibc-floor"}
    assert f"{C} needs GLIBC_" in found["glibc-floor"]


def _kernels(change: Callable[[dict[str, Any]], object]) -> Callable[[Files], object]:
    def spoil(files: Files) -> None:
        name = f"{INFO}/sparkwright/{KERNELS}"
        value = json.loads(files[name])
        change(value)
        files[name] = json.dumps(value).encode()

    return spoil


def _left(**fields: Any) -> Callable[[Files], object]:
    entry = {"member": SPIN, "because": "", "evidence": []} | fields
    return _kernels(lambda value: value["left-out"].append(entry))


IDENTICAL, EXACT, LEFT = "binaries-identical", "members-differ-exactly", "left-out-unused"
WHEEL_FAULTS: dict[str, tuple[Callable[[Files], object], set[str]]] = {
    "no record of kernels": (
        lambda files: files.pop(f"{INFO}/sparkwright/{KERNELS}"),
        {IDENTICAL, EXACT, "native-inputs-unchanged"},
    ),
    "a malformed record of kernels": (
        _kernels(lambda value: value.pop("arch")),
        {IDENTICAL, EXACT, "native-inputs-unchanged", "kernels-native", LEFT},
    ),
    "a record of a newer format": (
        _kernels(lambda value: value.update(format=2)),
        {IDENTICAL, EXACT, "native-inputs-unchanged", "kernels-native", LEFT},
    ),
    "another native key": (
        _kernels(lambda value: value["binaries"][0].update(key="other")), {IDENTICAL},
    ),
    "a compiled binary that is upstream's by the record": (
        _kernels(lambda value: value["binaries"][0].update(kernels="upstream")), {IDENTICAL},
    ),
    "one of upstream's that is compiled by the record": (
        _kernels(lambda value: value["binaries"][2].update(kernels="compiled")),
        {IDENTICAL, "kernels-native", "native-inputs-unchanged"},
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


# Putting it together -----------------------------------------------------------------------


def test_native_inputs_beside_upstreams_binaries(case: Case, tmp_path: Path) -> None:
    def assembled(changes: dict[str, bytes], **fields: Any) -> Path:
        return assemble(replace(case.plan, changes=changes, **fields), tmp_path).path

    with pytest.raises(NativeInputsError, match=RS):
        assembled({"CMakeLists.txt": b"x"}, upstream_binaries={})
    with pytest.raises(NativeInputsError, match=r"rust/src/lib\.rs"):
        assembled({"rust/src/lib.rs": b"x"})
    changes = {"csrc/ops.cu": b"x", "CMakeLists.txt": b"x"}
    wheel = assembled(changes)
    assert failed(wheel, replace(case.expectation, changes=changes)) == {}
    rust = {"rust/src/lib.rs": b"x", "CMakeLists.txt": b"x"}
    assert set(failed(wheel, replace(case.expectation, changes=rust))) == {"native-inputs-unchanged"}


def test_a_binary_that_was_deflated_before_goes_in_as_it_is(case: Case, tmp_path: Path) -> None:
    source = case.plan.providers[C]
    deflate(source.path, tmp_path / "deflated")
    packed = replace(source, deflated=tmp_path / "deflated")
    plan = replace(case.plan, providers={**case.plan.providers, C: packed})
    one, two = assemble(plan, tmp_path / "one"), assemble(plan, tmp_path / "two")
    assert one.sha256 == two.sha256
    assert wheelkit.unpack(one.path) == wheelkit.unpack(case.wheel)
    assert one.size < case.wheel.stat().st_size
    assert failed(one.path, case.expectation) == {}


def test_a_binary_is_deflated_once_for_a_store(case: Case, store: Store) -> None:
    with store.scratch() as scratch:
        (scratch / "binary").write_bytes(case.plan.providers[C].path.read_bytes())
        sha256 = wheelkit.sha256(scratch / "binary")
        store.adopt_file(scratch / "binary", sha256)
    path = deflated_in(store, sha256)
    assert holds(path.read_bytes(), store.file_path(sha256).read_bytes())
    made = path.stat().st_mtime_ns
    assert (deflated_in(store, sha256), path.stat().st_mtime_ns) == (path, made)
    path.unlink()
    assert deflated_in(store, sha256) == path, "what was removed is made again"


@pytest.mark.parametrize("fault", ["another's", "cut off", "longer", "two", "none"])
def test_deflated_data_of_something_else_is_refused(case: Case, tmp_path: Path, fault: str) -> None:
    source = case.plan.providers[C]
    deflate(source.path, tmp_path / "right")
    deflate(case.plan.providers[SPIN].path, tmp_path / "other")
    right, other = ((tmp_path / name).read_bytes() for name in ("right", "other"))
    (tmp_path / "wrong").write_bytes(
        {
            "another's": other, "cut off": right[:-1], "longer": right + b"x", "two": right + right,
            "none": b"",
        }[fault]
    )  # fmt: skip
    packed = replace(source, deflated=tmp_path / "wrong")
    plan = replace(case.plan, providers={**case.plan.providers, C: packed})
    with pytest.raises(WheelError, match="not its content"):
        assemble(plan, tmp_path / "dist")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"left_out": {"vllm/_none.so": ""}}, "vllm/_none.so"),
        ({"upstream_binaries": {"vllm/_none.so": ""}}, "vllm/_none.so"),
        ({"left_out": {C: ""}}, "provided as well"),
        ({"platform": "manylinux_2_28_riscv64"}, "made for"),
        ({"platform": "linux aarch64"}, "made for"),
    ],
)
def test_plans_that_make_no_sense(case: Case, tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(WheelError, match=told):
        assemble(replace(case.plan, **fields), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_names_a_member_twice(case: Case) -> None:
    value = case.plan.record[KERNELS]
    assert read_kernels_record(value).compiled[C].key == "the-key"
    with pytest.raises(WheelError, match="twice"):
        read_kernels_record({**value, "binaries": [*value["binaries"], value["binaries"][0]]})
