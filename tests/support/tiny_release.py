"""A release of vLLM in miniature that can be made into a wheel: an sdist, two whole wheels, the lock."""

import random
import tempfile
from functools import lru_cache
from pathlib import Path

import small_release
import wheelkit
from small_release import SmallRelease

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


@lru_cache(maxsize=16)
def make_tiny(
    version: str = VERSION,
    git: str = GIT,
    changes: tuple[tuple[str, str], ...] = (),
    commit: str = small_release.COMMIT,
) -> SmallRelease:
    """Return the release *version*, with *changes* (path and text) to its usual sources."""
    tree = small_release.sdist_files(version, commit)
    tree |= {path: text.encode() for path, text in {**SOURCES, **dict(changes)}.items()}
    numbers = ", ".join(version.split("."))
    tree["vllm/_version.py"] = VERSION_PY.format(version=version, numbers=numbers, commit=commit[:9]).encode()
    tree["PKG-INFO"] = metadata(version, git)
    return small_release.make_release(
        version,
        commit,
        git=git,
        tree=tree,
        wheel=lambda machine, name: make_wheel(machine, name, version, tree),
    )


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
