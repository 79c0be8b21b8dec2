"""Versions of native wheels that take some extensions from upstream's wheel, as built and as audited."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from http_index import Index
from msgspec.structs import replace
from native_kit import native_tables, offer_toolkit
from packaging.version import Version

from sparkwright.lock.model import Binary, DroppedBinary, ExtensionSpec, read_lock
from sparkwright.native import inspection
from sparkwright.pipeline.moves import unread, with_measured
from sparkwright.pipeline.record import native_expectation, native_version, version_of
from sparkwright.wheel.names import local_version

EXTENSIONS = ("_C", "_moe_C", "_vllm_fa2_C", "_qutlass_C", "cumem_allocator")
BASE = "0.24.0+spark.3."


def job_of(*, full: bool = False) -> Any:
    mixed = functools.partial(local_version, "0.24.0", "spark", "1a2b3c4d", revision=3, arch="sm121a")
    return SimpleNamespace(
        native=SimpleNamespace(
            extensions={name: SimpleNamespace(member=f"vllm/{name}.so") for name in EXTENSIONS}
        ),
        options=SimpleNamespace(full=full),
        mixed_version=lambda compiled: mixed(compiled=compiled),
    )


@pytest.mark.parametrize(
    ("stock", "left_out", "version"),
    [
        ((), (), f"{BASE}sm121a.1a2b3c4d"),
        (("_vllm_fa2_C",), (), f"{BASE}mixed.4.sm121a.1a2b3c4d.stock.fa2"),
        # One that is left out is neither compiled nor upstream's.
        (("_qutlass_C",), ("_qutlass_C",), f"{BASE}sm121a.1a2b3c4d"),
        (("_C", "_vllm_fa2_C", "_qutlass_C"), ("_qutlass_C",), f"{BASE}mixed.2.sm121a.1a2b3c4d.stock.c.fa2"),
    ],
)
def test_the_version_as_built_is_the_one_that_an_audit_expects(stock, left_out, version):
    job = job_of()
    upstream = {f"vllm/{name}.so": "no source" for name in stock if name not in left_out}
    state: Any = SimpleNamespace(
        stock_extensions=dict.fromkeys(stock, "no source"),
        attested={},
        binaries=SimpleNamespace(upstream=upstream),
    )
    assert version_of(job, state) == version
    # The audit counts in the wheel's record.
    compiled = len(EXTENSIONS) - len(stock)
    assert native_version(job, [name for name in stock if name not in left_out], compiled) == version


def test_an_attested_extension_is_never_one_of_the_pins() -> None:
    whole: Any = SimpleNamespace(stock_extensions={}, attested={"_moe_C": "2 of 2"}, binaries=None)
    assert version_of(job_of(), whole) == f"{BASE}mixed.5.sm121a.1a2b3c4d.attested.moe"
    whole.stock_extensions = {"_vllm_fa2_C": "no source"}
    assert version_of(job_of(), whole) == f"{BASE}mixed.4.sm121a.1a2b3c4d.attested.moe.stock.fa2"
    assert Version(version_of(job_of(), whole)) < Version(native_version(job_of(), ()))


def test_of_one_build_more_compiled_extensions_are_newer() -> None:
    names = list(EXTENSIONS)
    versions = [
        Version(native_version(job_of(), names[:count], len(names) - count))
        for count in range(len(names) + 1)
    ]
    assert versions == sorted(versions, reverse=True)
    assert len(set(versions)) == len(names) + 1


# The libraries that an audit resolves a wheel's symbols in --------------------------------


LOCK = read_lock(Path(__file__).resolve().parents[3] / "upstream.lock")
LIBRARIES = object()


@pytest.mark.parametrize(("torch", "libraries"), [(LOCK.release.torch, LIBRARIES), ("9.9.9", None)])
def test_libraries_of_another_torch_resolve_nothing(monkeypatch, torch, libraries):
    monkeypatch.setattr(inspection, "find_surroundings", lambda *_: LIBRARIES)
    monkeypatch.setattr(inspection, "inspector_of", lambda *_: None)
    lock = replace(LOCK, release=replace(LOCK.release, torch=torch))
    job = SimpleNamespace(
        spec=SimpleNamespace(lock=lock, arch=None), options=SimpleNamespace(platform="aarch64"),
        store=None, access=None,
    )  # fmt: skip
    found = native_expectation(job)
    assert found is not None
    assert found.surroundings is libraries


# The lock's measurements after a build in which upstream's wheel provided some of the extensions


MEMBERS = {name: f"vllm/{name}.abi3.so" for name in ("_C", "_moe_C", "_new")}
OLD = msgspec.structs.replace(
    native_tables(offer_toolkit(Index())),
    extensions={name: ExtensionSpec(member=member) for name, member in MEMBERS.items()},
    binaries={
        MEMBERS["_C"]: Binary(cubins={"sm_121a": 70, "sm_89": 1}, why="INT8 with zero points"),
        MEMBERS["_moe_C"]: Binary(cubins={"sm_121a": 30}),
        "vllm/gone.abi3.so": Binary(),
    },
    costs={"_C/a.cu": (900.0, 5000), "_moe_C/b.cu": (9.0, 90)},
    measured="1.1.0",
)
MOE = {MEMBERS["_moe_C"]: Binary(cubins={"sm_121a": 31})}


def test_what_upstream_provided_keeps_its_entries_and_their_release():
    found = with_measured(OLD, {"_moe_C"}, MOE, {"_moe_C/b.cu": (7.0, 70)})
    assert found.binaries == {**MOE, MEMBERS["_C"]: OLD.binaries[MEMBERS["_C"]]}
    assert found.costs == {"_C/a.cu": (900.0, 5000), "_moe_C/b.cu": (7.0, 70)}
    assert (found.measured, found.is_measured) == ("1.1.0", False)
    again = with_measured(msgspec.structs.replace(OLD, measured=""), {"_moe_C"}, MOE, {})
    assert again.is_measured


def test_once_all_are_compiled_nothing_older_is_left():
    whole = {member: Binary(cubins={"sm_121a": 1}) for member in MEMBERS.values()}
    found = with_measured(OLD, set(MEMBERS), whole, {"_new/c.cu": (6.0, 60)})
    assert (found.binaries, found.costs) == (whole, {"_new/c.cu": (6.0, 60)})
    assert (found.measured, found.is_measured) == ("", True)


def test_a_file_that_names_a_binary_and_was_not_read_is_a_decision():
    entry = DroppedBinary(named_by=("vllm/read.py",), why="it falls back")
    native = msgspec.structs.replace(OLD, drop={"vllm/_fa3_C.abi3.so": entry})
    read = {"vllm/read.py": b"import vllm._fa3_C", "vllm/other.py": b"import vllm._fa3_Core"}
    assert list(unread(native, read)) == []
    (one,) = unread(native, {**read, "vllm/new.py": b"from vllm import _fa3_C"})
    assert one.key == "native.drop.vllm/_fa3_C.abi3.so"
    assert one.why.startswith("vllm/new.py names it")
