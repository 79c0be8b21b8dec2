"""The assembler: the right members, the right refusals, the same bytes everywhere."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import wheelkit

from sparkwright.base import errors
from sparkwright.wheel.assemble import AssemblyPlan, BinarySource, assemble

OURS = "0.24.0+spark.1a2b3c4d"
INFO = f"vllm-{OURS}.dist-info"
CHANGES = {
    "vllm/core.py": b"def step(n: int) -> int:\n    return n + 2\n",
    "vllm/config/new.py": b"NEW = 1\n",
    "vllm/fresh/__init__.py": b"",
    "vllm/configs/b.json": b"{}",
    "vllm/old.py": None,
    "vllm/tools/run.sh": b"#!/bin/sh\nexec false\n",
    "tests/test_core.py": b"def test(): ...\n",
    "docs/old.md": None,
}


@pytest.fixture
def plan(tmp_path: Path) -> AssemblyPlan:
    wheel = wheelkit.upstream_wheel(tmp_path / "upstream")
    return AssemblyPlan(
        wheel, wheelkit.sha256(wheel), OURS, CHANGES, {"point.json": {"version": OURS, "b": [1, "ü"]}}
    )


def test_the_wheel_holds_upstreams_members_with_the_changes_and_our_record(plan, tmp_path):
    built = assemble(plan, tmp_path / "dist")
    old, new = wheelkit.unpack(plan.upstream_wheel), wheelkit.unpack(built.path)
    assert built.path.name == f"vllm-{OURS}-cp38-abi3-manylinux_2_28_aarch64.whl"
    assert (built.sha256, built.size) == (wheelkit.sha256(built.path), built.path.stat().st_size)
    assert not {path for path in new if path.startswith(("docs/", "tests/"))}
    changed = {path: content for path, content in CHANGES.items() if path.startswith("vllm/")}
    for name in {name for name in old | changed if name.startswith("vllm/")} - {"vllm/_version.py"}:
        assert new.get(name) == changed.get(name, old.get(name)), name
    assert new[f"{INFO}/licenses/LICENSE"] == b"Apache-2.0\n"
    assert new[f"{INFO}/sparkwright/point.json"] == '{"b":[1,"ü"],"version":"%s"}'.encode() % OURS.encode()
    assert not [name for name in new if name.startswith("vllm-0.24.0.dist-info")]
    assert new == wheelkit.with_record(new, INFO), "RECORD lists every member with its true digest"
    assert list(new)[-1] == f"{INFO}/RECORD"


def test_unchanged_members_keep_their_compressed_bytes_and_modes(plan: AssemblyPlan, tmp_path: Path) -> None:
    built = assemble(plan, tmp_path)
    with zipfile.ZipFile(plan.upstream_wheel) as old, zipfile.ZipFile(built.path) as new:
        for name in ("vllm/_C.abi3.so", "vllm/config/cache.py"):
            before, after = old.getinfo(name), new.getinfo(name)
            assert (before.compress_size, before.CRC, before.date_time, before.external_attr) == (
                after.compress_size, after.CRC, after.date_time, after.external_attr,
            )  # fmt: skip
        modes = {info.filename: info.external_attr >> 16 for info in new.infolist()}
        assert modes["vllm/tools/run.sh"] == 0o100755
        assert modes["vllm/core.py"] == modes["vllm/config/new.py"] == 0o100644
        assert new.getinfo("vllm/core.py").date_time == (1980, 1, 1, 0, 0, 0)


def test_a_binary_from_elsewhere_replaces_upstreams(plan: AssemblyPlan, tmp_path: Path) -> None:
    for member in ("one.so", "two"):
        (tmp_path / member).write_bytes(wheelkit.elf(payload=member.encode()))
    providers = {
        "vllm/_C.abi3.so": BinarySource(tmp_path / "one.so", "store", "key1"),
        "vllm/vllm-rs": BinarySource(tmp_path / "two", "store", "key2"),
    }
    changes = {**CHANGES, "csrc/ops.cu": b"new"}
    built = assemble(replace(plan, providers=providers, changes=changes), tmp_path / "dist")
    assert wheelkit.unpack(built.path)["vllm/_C.abi3.so"] == (tmp_path / "one.so").read_bytes()
    listed = json.loads(wheelkit.unpack(built.path)[f"{INFO}/sparkwright/providers.json"])
    assert [(one["provider"], one["from"]) for one in listed] == [("store", "key1"), ("store", "key2")]
    del providers["vllm/vllm-rs"]
    with pytest.raises(errors.NativeInputsError):
        assemble(replace(plan, providers=providers, changes=changes), tmp_path / "dist")
    with pytest.raises(errors.WheelError, match=r"vllm/x\.so"):
        assemble(replace(plan, providers={"vllm/x.so": providers["vllm/_C.abi3.so"]}), tmp_path / "dist")


def _refused(plan: AssemblyPlan, changes: dict[str, bytes | None], out: Path) -> errors.SparkwrightError:
    with pytest.raises(errors.SparkwrightError) as caught:
        assemble(replace(plan, changes={**CHANGES, **changes}), out)
    assert not list(out.glob("*")), "nothing half-written is left"
    return caught.value


@pytest.mark.parametrize(
    "path", ["csrc/ops.cu", "setup.py", "rust/Cargo.toml", "requirements/build/cuda.txt"]
)
def test_native_inputs_are_refused(plan: AssemblyPlan, path: str, tmp_path: Path) -> None:
    error = _refused(plan, {path: b"x"}, tmp_path / "dist")
    assert isinstance(error, errors.NativeInputsError)
    assert path in error.because


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("requirements/common.txt", b"x"), ("pyproject.toml", None), ("vllm/config/data.bin", b"\0"),
        ("vllm/configs/README", b"x"), ("vllm/_version.py", b"x = 1"), ("vllm/_C.abi3.so", b"x"),
        ("vllm/vllm-rs", None), ("vllm/../x.py", b""),
    ],
)  # fmt: skip
def test_what_cannot_be_shipped_is_named_and_refused(plan, path, content, tmp_path):
    error = _refused(plan, {path: content}, tmp_path / "dist")
    assert isinstance(error, errors.WheelError)
    assert path in str(error)


@pytest.mark.parametrize(
    ("change", "record", "why"),
    [
        (lambda files: files.pop("vllm/core.py"), False, "malformed"),
        (lambda files: files.update({"vllm-0.24.0.dist-info/RECORD.jws": b"{}"}), True, "cannot be changed"),
    ],
    ids=["its RECORD lies", "it is signed"],
)
def test_a_wheel_that_cannot_be_rewritten_is_refused(plan, tmp_path, change, record, why):
    wheel = wheelkit.spoil(plan.upstream_wheel, tmp_path / "bad", change, record=record)
    spoilt = replace(plan, upstream_wheel=wheel, upstream_sha256=wheelkit.sha256(wheel))
    with pytest.raises(errors.WheelError, match=why):
        assemble(spoilt, tmp_path / "dist")


@pytest.mark.parametrize("name", ["providers.json", "../x.json"])
def test_a_record_file_with_a_bad_name_is_refused(plan: AssemblyPlan, name: str, tmp_path: Path) -> None:
    with pytest.raises((errors.WheelError, errors.ArchiveError)):
        assemble(replace(plan, record={name: 1}), tmp_path / "dist")


def test_an_existing_wheel_survives_a_failure_and_is_replaced_by_a_success(plan, tmp_path):
    old = assemble(replace(plan, record={"point.json": "old"}), tmp_path)
    with pytest.raises(errors.DigestError):
        assemble(replace(plan, upstream_sha256="0" * 64), tmp_path)
    assert wheelkit.sha256(old.path) == old.sha256
    new = assemble(plan, tmp_path)
    assert new.path == old.path
    assert wheelkit.sha256(new.path) == new.sha256 != old.sha256


_ELSEWHERE = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_wheel_assemble as case
from sparkwright.wheel.assemble import AssemblyPlan, assemble
import wheelkit
os.umask(0o077); time.tzset()
wheel = Path(sys.argv[2])
record = {"point.json": {"b": [1, "\\u00fc"], "version": case.OURS}}
changes = dict(reversed(case.CHANGES.items()))
plan = AssemblyPlan(wheel, wheelkit.sha256(wheel), case.OURS, changes, record)
built = assemble(plan, Path(sys.argv[3]))
print(built.sha256, oct(built.path.stat().st_mode & 0o777))
"""


def test_the_same_plan_gives_the_same_bytes_under_another_umask_zone_and_locale(plan, tmp_path):
    here = assemble(plan, tmp_path / "here")
    assert assemble(plan, tmp_path / "again").sha256 == here.sha256
    environment = {
        "PATH": os.environ["PATH"], "TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "7",
        "SOURCE_DATE_EPOCH": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", _ELSEWHERE, str(Path(__file__).parent), plan.upstream_wheel,
         tmp_path / "there"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [here.sha256, "0o644"]
