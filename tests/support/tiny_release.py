"""A release of vLLM in miniature that can be made into a wheel: an sdist, two whole wheels, the lock."""

import random
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import small_release
import wheelkit

from sparkwright.lock.model import Lock

VERSION = "1.2.0"
GIT = "file:///nonexistent/vllm.git"

VERSION_PY = """\
__version__ = version = '{version}'
__version_tuple__ = version_tuple = ({numbers})

__commit_id__ = commit_id = 'g{commit}'
"""

CLAMP = """\
LIMIT = 10


def clamp(value):
    # As it is.
    # Always.
    return value


def first():
    return 1


def second():
    return 2
"""
ALIGN = """\
def align(count):
    return count


def pad(count):
    return count + 1
"""
CLAMPED = CLAMP.replace("return value", "return min(value, LIMIT)")
ALIGNED = ALIGN.replace("return count\n\n", "return (count + 7) // 8 * 8\n\n")

SOURCES: dict[str, str] = {
    "vllm/__init__.py": "",
    "vllm/align.py": ALIGN,
    "vllm/clamp.py": CLAMP,
    "vllm/old.py": "GONE = True\n",
    "vllm/words.py": "WORDS = (\n    'one',\n    'two',\n    'three',\n)\n",
    "csrc/kernel.cu": "// a kernel\n",
    "docs/clamp.md": "Clamping.\n",
    "tests/test_clamp.py": "def test_clamp():\n    assert True\n",
    "tools/run.sh": "#!/bin/sh\nexec true\n",
}


@dataclass(frozen=True)
class TinyRelease:
    """A release: the files that an index offers, its tree, and the lock that is right about it."""

    version: str
    files: dict[str, bytes]
    tree: dict[str, bytes]
    lock: Lock


@lru_cache(maxsize=16)
def make_tiny(
    version: str = VERSION,
    git: str = GIT,
    changes: tuple[tuple[str, str], ...] = (),
    commit: str = small_release.COMMIT,
) -> TinyRelease:
    """Return the release *version*, with *changes* (path and text) to its usual sources."""
    small = small_release.make_release(version, commit, git=git)
    tree = small_release.sdist_files(version, commit)
    tree |= {path: text.encode() for path, text in {**SOURCES, **dict(changes)}.items()}
    numbers = ", ".join(version.split("."))
    tree["vllm/_version.py"] = VERSION_PY.format(version=version, numbers=numbers, commit=commit[:9]).encode()
    tree["PKG-INFO"] = metadata(version, git)
    files = {small.lock.sdist.filename: small_release.make_sdist(tree, version)}
    wheels = {}
    for machine, wheel in small.lock.wheels.items():
        files[wheel.filename] = make_wheel(machine, wheel.filename, version, tree)
        wheels[machine] = small_release.artifact(wheel.filename, files[wheel.filename])
    sdist = small_release.artifact(small.lock.sdist.filename, files[small.lock.sdist.filename])
    lock = Lock(
        format=small.lock.format,
        release=small.lock.release,
        sdist=sdist,
        wheels=wheels,
        sources=small.lock.sources,
    )
    return TinyRelease(version, files, tree, lock)


def metadata(version: str, git: str) -> bytes:
    text = small_release.metadata(version, "2.11.0")
    return text.replace("https://example.org/vllm-project/vllm", git.removesuffix(".git")).encode()


def make_wheel(machine: str, filename: str, version: str, tree: dict[str, bytes]) -> bytes:
    info = f"vllm-{version}.dist-info"
    kernels = random.Random(machine).randbytes(300_000)  # so much that a transfer takes several reads
    files = {path: data for path, data in tree.items() if path.startswith("vllm/")}
    files["vllm/_C.abi3.so"] = wheelkit.elf(machine, kernels)
    files["vllm/vllm-rs"] = wheelkit.elf(machine, b"rs")
    files[f"{info}/METADATA"] = tree["PKG-INFO"]
    files[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: setuptools (80.10.2)\nRoot-Is-Purelib: false\n"
        f"Tag: cp38-abi3-linux_{machine}\n\n"
    ).encode()
    with tempfile.TemporaryDirectory() as folder:
        return wheelkit.pack(Path(folder, filename), wheelkit.with_record(files, info)).read_bytes()
