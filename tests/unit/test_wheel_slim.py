"""Binaries that a wheel leaves out: useless on the card and reviewed in the lock, or they stay."""

from pathlib import Path

import pytest
import wheelkit

from sparkwright.lock.native import DroppedBinary
from sparkwright.native.device_code import Tally
from sparkwright.wheel.kernels import needed_because, plan_slim, python_members
from sparkwright.wheel.source import open_source

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
    plan = plan_slim(python, binaries, listed, "12.1a")
    assert [one.member for one in plan.left_out] == [MEMBER]
    assert plan.left_out[0].because == "none of its 5 kernels runs on 12.1a"
    assert plan.left_out[0].evidence == ("imported in a try",)
    assert list(plan.kept) == ["vllm/_unlisted.abi3.so"]


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
