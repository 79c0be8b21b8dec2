"""Native wheels put together: binaries that are left out, and what those that go in may stand beside."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wheelkit
from native_case import RS, SPIN, C, Case, failed, make_case

from sparkwright.base.errors import NativeInputsError, WheelError
from sparkwright.lock.model import DroppedBinary
from sparkwright.native.device_code import Tally
from sparkwright.store.paths import Store
from sparkwright.wheel.assemble import assemble
from sparkwright.wheel.kernels import KERNELS, needed_because, python_members, read_kernels_record, unneeded
from sparkwright.wheel.rewrite import deflate, deflated_in, holds
from sparkwright.wheel.source import open_source


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("native"))


# Binaries that a wheel leaves out: useless on the card and reviewed in the lock, or they stay ----------

USELESS, MIXED, HOST = Tally(none=5), Tally(native=1, none=4), Tally()
MEMBER = "vllm/_x.abi3.so"
LISTED = {MEMBER: DroppedBinary(named_by=("vllm/a.py",), why="imported in a try")}


def test_only_useless_and_listed_binaries_are_left_out() -> None:
    python = {"vllm/a.py": b"try:\n    import vllm._x\nexcept ImportError:\n    pass\n"}
    binaries = {
        MEMBER: USELESS,
        "vllm/_unlisted.abi3.so": USELESS,
        "vllm/_mixed.abi3.so": MIXED,
        "vllm/_host.abi3.so": HOST,
    }
    of_mixed_and_host = DroppedBinary(named_by=(), why="listed, and not useless")
    listed = {**LISTED, "vllm/_mixed.abi3.so": of_mixed_and_host, "vllm/_host.abi3.so": of_mixed_and_host}
    (left_out,) = unneeded(python, binaries, listed, "12.1a")
    assert (left_out.member, left_out.evidence) == (MEMBER, ("imported in a try",))
    assert left_out.because == "none of its 5 kernels runs on 12.1a"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("vllm/b.py", b"import vllm._x"),
        ("vllm/b.py", b"from . import _x as fast"),
        ("vllm/b.py", b"torch.ops._x.run()"),
        ("vllm/b.py", b"NAME = 'vllm._x'"),
        ("vllm/broken.py", b"import vllm._x ("),
    ],
)
def test_a_file_that_was_not_read_keeps_the_binary(path: str, content: bytes) -> None:
    read = {"vllm/a.py": b"import vllm._x"}
    assert path in needed_because(MEMBER, {**read, path: content}, LISTED)
    assert needed_because(MEMBER, {**read, path: content.replace(b"_x", b"_y")}, LISTED) == ""
    assert needed_because(MEMBER, {**read, path: content.replace(b"_x", b"_xyz")}, LISTED) == ""


def test_a_file_that_names_it_no_more_is_no_fault() -> None:
    assert needed_because(MEMBER, {"vllm/c.py": b""}, LISTED) == ""


def test_the_python_of_a_wheel_is_upstreams_and_the_merges(tmp_path: Path) -> None:
    changes = {"vllm/core.py": b"new", "vllm/extra.py": b"x", "vllm/old.py": None, "tests/test_a.py": b"t"}
    with open_source(wheelkit.upstream_wheel(tmp_path)) as upstream:
        found = python_members(upstream, changes)
    assert found["vllm/core.py"] == b"new"
    assert found["vllm/extra.py"] == b"x"
    assert found["vllm/config/__init__.py"] == b"CACHE = 'auto'\n"
    assert {"vllm/old.py", "tests/test_a.py", "vllm/_C.abi3.so"} & set(found) == set()


# Putting native wheels together: what may stand beside what, names, and binaries deflated before


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
