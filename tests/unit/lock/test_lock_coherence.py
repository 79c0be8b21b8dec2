"""The [native] tables fit the rest of the lock: each check fires on a lie, and is silent on the truth."""

from pathlib import Path

import msgspec
import pytest
from http_index import Index
from native_kit import HERE, OTHER, lock_text, native_tables, offer_toolkit, with_native
from small_release import make_release

from sparkwright.base.config import parse_toml
from sparkwright.base.errors import LockMismatchError
from sparkwright.lock.bump import rewrite
from sparkwright.lock.check import CudaEvidence, check_native, require_native
from sparkwright.lock.model import LOCK_FORMAT, Lock, SourcePin
from sparkwright.pipeline.checkout import open_checkout

ROOT = Path(__file__).parents[3]
LOCK = with_native(make_release().lock, native_tables(offer_toolkit(Index())))
CUDA = CudaEvidence(
    torch=b"Name: torch\nRequires-Dist: cuda-toolkit[cublas]==13.0.2; platform_system == 'Linux'\n",
    release=(
        b"Name: cuda-toolkit\nRequires-Dist: nvidia-cuda-runtime==13.0.96.*; extra == 'all'\n"
        b"Requires-Dist: nvidia-cublas==13.1.0.3.*; extra == 'all'\n"
    ),
)


def lying(key, value):
    """The lock with one dotted *key* of its native tables changed, or (`None`) removed."""
    tables = msgspec.to_builtins(LOCK)
    *parents, last = key.split(".")
    table = tables["native"]
    for parent in parents:
        table = table[parent]
    if value is None:
        del table[last]
    else:
        table[last] = value
    return msgspec.convert(tables, Lock)


def package(name, machine):
    return msgspec.to_builtins(LOCK.native.toolkit.target[machine][name])


def test_is_silent_on_the_truth():
    assert check_native(LOCK, CUDA) == []
    assert check_native(make_release().lock, CUDA) == []
    assert require_native(LOCK) is LOCK.native


def test_the_projects_own_lock_is_right():
    lock = open_checkout(ROOT, "0.24").lock
    assert check_native(lock) == []
    assert {"aarch64", "x86_64"} == set(lock.native.toolkit.builder) == set(lock.native.toolkit.target)
    assert lock.native.arch == "12.1a"
    compiled = [name for name, pin in lock.native.sources.items() if pin.tree]
    assert compiled == ["cutlass", "vllm-flash-attn", "vllm-flash-attn-cutlass", "qutlass"]


LIES = {
    "release": ("release", "1.1.0", "native.release"),
    "machine": (
        f"toolkit.target.{HERE}.cublas", package("cublas", OTHER), f"toolkit.target.{HERE}.cublas.filename",
    ),
    "no torch": (f"toolkit.target.{HERE}.torch", None, f"toolkit.target.{HERE}.torch"),
    "torch": (
        f"toolkit.target.{HERE}.torch.filename",
        f"torch-2.12.0-cp312-cp312-manylinux_2_28_{HERE}.whl",
        f"toolkit.target.{HERE}.torch.filename",
    ),
    "source missing": ("sources.quack", None, "sources.quack"),
    "ref": ("sources.cutlass.ref", "v4.5.0", "sources.cutlass.ref"),
    "undeclared": ("sources.duck", {"ref": "v1"}, "sources.duck"),
    "mount": (
        "sources.duck",
        {"ref": "v1", "repository": "https://example.org/d.git", "mount": "pond:d"},
        "sources.duck.mount",
    ),
    "extension": ("extensions._C.sources", ["cutlass", "duck"], "extensions._C.sources"),
    "extension without a tree": ("extensions._C.sources", ["quack"], "extensions._C.sources"),
    "cuda": ("toolkit.cuda", "13.1", "toolkit.cuda"),
    "toolkit release": (
        "toolkit.release.filename", "cuda_toolkit-13.0.3-py3-none-any.whl", "toolkit.release.filename",
    ),
    "part": (
        f"toolkit.target.{HERE}.cuda-runtime.filename",
        f"nvidia_cuda_runtime-13.0.97-py3-none-manylinux_2_28_{HERE}.whl",
        f"toolkit.target.{HERE}.cuda-runtime.filename",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("key", "value", "found"), LIES.values(), ids=LIES.keys())
def test_fires_on_a_lie(key, value, found):
    findings = check_native(lying(key, value), CUDA)
    assert {finding.key.removeprefix("native.") for finding in findings} == {found.removeprefix("native.")}
    assert all(finding.witness for finding in findings)


def test_fires_when_torch_asks_for_another_cuda_or_none():
    for torch in (CUDA.torch.replace(b"13.0.2", b"13.2.0"), b"Name: torch\n"):
        findings = check_native(LOCK, CudaEvidence(torch, CUDA.release))
        assert {finding.key for finding in findings} == {
            "native.toolkit.release.filename",
            "native.toolkit.cuda",
        }


def test_fires_on_a_part_of_a_source_that_has_moved():
    inner = SourcePin(ref="v1", repository="https://example.org/d.git", mount="cutlass:d")
    sources = {**LOCK.native.sources, "inner": inner}
    lock = with_native(LOCK, msgspec.structs.replace(LOCK.native, sources=sources))
    assert check_native(lock) == []
    moved = {"cutlass": msgspec.structs.replace(lock.sources["cutlass"], ref="v4.5.0")}
    findings = check_native(with_native(lock, lock.native, **moved))
    assert [finding.key for finding in findings] == ["native.sources.cutlass.ref", "native.sources.inner.ref"]
    assert "parent source cutlass" in findings[1].because
    assert findings[1].because in str(findings[1])


# Moving the pin ----------------------------------------------------------------------------


def text_of(lock):
    """The lock as a file, with a comment in its native tables."""
    return lock_text(lock).replace('arch = "12.1a"', '# The card.\narch = "12.1a"  # its own')


def parse(text):
    return parse_toml(text.encode(), Lock, newest_format=LOCK_FORMAT, name="test")


def test_the_tables_stay_and_what_they_are_wrong_about_is_said():
    moved = make_release("1.3.0", torch="2.13.0").lock
    newer = {**moved.sources, "cutlass": msgspec.structs.replace(moved.sources["cutlass"], ref="v4.7.1")}
    duck = {"duck": msgspec.structs.replace(moved.sources["quack"], override="DUCK_SRC_DIR")}
    measured = msgspec.structs.replace(LOCK.native, costs={"_C/a.cu": (1.5, 300)})
    new = msgspec.structs.replace(moved, sources={**newer, **duck}, native=measured)
    text = text_of(with_native(LOCK, measured))
    bumped = rewrite(text, new)
    assert parse(bumped.text) == new
    assert '# The card.\narch = "12.1a"  # its own' in bumped.text
    notes = "\n".join(bumped.notes)
    findings = [finding for finding in check_native(new) if finding.key != "native.release"]
    assert {(finding.key, finding.locked, finding.released) for finding in findings} > {
        (f"native.toolkit.target.{HERE}.torch.filename", "2.11.0", "2.13.0"),
        ("native.sources.duck", None, "duck"),
        ("native.sources.cutlass.ref", "v4.4.2", "v4.7.1"),
    }
    assert all(str(finding) in notes for finding in findings)
    assert "[native]" in notes
    assert "native.costs" in notes
    assert "native.binaries" not in notes
    assert not [change for change in bumped.changes if change.key.startswith("native")]
    with pytest.raises(LockMismatchError):
        require_native(bumped.lock)
