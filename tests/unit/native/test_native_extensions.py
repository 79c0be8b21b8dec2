"""Extensions and links are found again by all that decides them, and by nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit_kit import make_toolchain

from sparkwright.base.digests import sha256_bytes
from sparkwright.lock.cmake import read_by_cmake
from sparkwright.lock.model import ExtensionSpec, SourcePin
from sparkwright.native.build import extension_key, find_extension, record_extension
from sparkwright.native.model import Extension, Inputs, SourceTree, Target
from sparkwright.store.paths import Store

SOURCES = {"cutlass": "1", "flash": "2", "flash-cutlass": "3", "inner": "4", "other": "5"}
PINS = {
    name: SourcePin(ref="v1", tree=tree * 40, paths=("include",), mount=mount)
    for (name, tree), mount in zip(
        SOURCES.items(), ("", "", "flash:csrc/cutlass", "flash-cutlass:tools", ""), strict=True
    )
}
BLOBS = {
    "csrc/ops.cu": "a",
    "cmake/utils.cmake": "b",
    "CMakeLists.txt": "c",
    "tools/build_deepgemm_C.py": "d",
}
SPEC = ExtensionSpec(member="vllm/_fa.so", sources=("flash",))


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    trees = {name: SourceTree(name=name, tree=tree * 40, origin="x") for name, tree in SOURCES.items()}
    return Inputs("tree", trees, make_toolchain(tmp_path), Target("aarch64", "12.1a"))


def key(inputs: Inputs, **changes: Any) -> str:
    given: dict[str, Any] = {"name": "_fa", "spec": SPEC, "blobs": BLOBS, "rules": 1, **changes}
    return extension_key(
        inputs, given["name"], given["spec"], given["blobs"], given["rules"], pins=given.get("pins", PINS)
    )


def with_tree(inputs: Inputs, name: str) -> Inputs:
    changed = SourceTree(name=name, tree="f" * 40, origin="x")
    return replace(inputs, sources={**inputs.sources, name: changed})


@pytest.mark.parametrize("path", BLOBS)
def test_every_file_that_cmake_reads_counts(inputs: Inputs, path: str) -> None:
    without = {other: blob for other, blob in BLOBS.items() if other != path}
    assert len({key(inputs), key(inputs, blobs={**BLOBS, path: "z"}), key(inputs, blobs=without)}) == 3


@pytest.mark.parametrize(
    "path", ["setup.py", "rust/src/lib.rs", "vllm/envs.py", "docs/csrc/x.cu", "tools/x.py"]
)
def test_what_cmake_does_not_read_does_not_count(inputs: Inputs, path: str) -> None:
    assert not read_by_cmake(path)
    assert key(inputs, blobs={**BLOBS, path: "z"}) == key(inputs)


def test_sources_toolchain_target_rules_and_name_count_and_places_do_not(inputs: Inputs) -> None:
    chain, target = inputs.toolchain, inputs.target
    keys = [
        key(inputs),
        *(key(with_tree(inputs, name)) for name in ("flash", "flash-cutlass", "inner")),
        key(replace(inputs, toolchain=replace(chain, key="other"))),
        key(replace(inputs, target=replace(target, machine="x86_64"))),
        key(replace(inputs, target=replace(target, arch="12.0a"))),
        key(inputs, rules=2),
        key(inputs, rules=[1, "-O2"]),
        key(inputs, name="_C"),
    ]
    assert len(set(keys)) == len(keys)
    same = [
        *(key(with_tree(inputs, name)) for name in ("cutlass", "other")),
        key(replace(inputs, toolchain=replace(chain, cuda=Path("/elsewhere")))),
        key(inputs, blobs=dict(reversed(BLOBS.items()))),
        key(replace(inputs, tree="another")),
    ]
    assert set(same) == {key(inputs)}


def adopted(store: Store, data: bytes) -> str:
    with store.scratch() as scratch:
        (scratch / "x").write_bytes(data)
        store.adopt_file(scratch / "x", sha256_bytes(data))
    return sha256_bytes(data)


def test_an_extension_comes_back_while_its_file_is_whole(store: Store) -> None:
    sha256 = adopted(store, b"shared object")
    made = Extension(target="_C", key="k" * 64, sha256=sha256, size=13, arches={"sm_121a": 3})
    assert find_extension(store, made.key) is None
    record_extension(store, made)
    assert find_extension(store, made.key) == made
    assert find_extension(store, "other") is None
    store.put_record("extension", "moved", {"target": "_C", "key": made.key})
    assert find_extension(store, "moved") is None
    path = store.file_path(sha256)
    path.chmod(0o644)
    path.write_bytes(b"shared")
    assert find_extension(store, made.key) is None
    path.unlink()
    assert find_extension(store, made.key) is None
    adopted(store, b"shared object")
    assert find_extension(store, made.key) == made
    store.record_path("extension", made.key).write_text('{"target": ')
    assert find_extension(store, made.key) is None


def test_a_record_under_anothers_key_is_not_believed(store: Store) -> None:
    sha256 = adopted(store, b"x")
    record_extension(store, Extension(target="_C", key="one", sha256=sha256, size=1, arches={}))
    store.record_path("extension", "two").parent.mkdir(parents=True, exist_ok=True)
    store.record_path("extension", "one").rename(store.record_path("extension", "two"))
    assert find_extension(store, "two") is None
