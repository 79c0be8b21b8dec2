"""Putting native wheels together: what may stand beside what, names, and binaries deflated before."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wheelkit
from native_case import RS, SPIN, C, Case, failed, make_case

from sparkwright.base.errors import NativeInputsError, WheelError
from sparkwright.store import Store
from sparkwright.wheel.assemble import assemble
from sparkwright.wheel.kernels import KERNELS, read_kernels_record
from sparkwright.wheel.rewrite import deflate, deflated_in, holds


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("native"))


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
