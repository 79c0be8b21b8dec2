"""A toolchain in miniature: wheels with next to nothing in them, and compilers that only answer questions."""

import io
import os
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from http_index import Index
from kit import toml, write_program

from sparkwright.base.config import to_builtins
from sparkwright.git.repository import TreeEntry
from sparkwright.git.trees import blob_id, tree_id
from sparkwright.lock.model import Dependency, ExtensionSpec, Lock, NativePin, Package, SourcePin, Toolkit
from sparkwright.native.host import this_machine

HERE = this_machine()
OTHER = "aarch64" if HERE == "x86_64" else "x86_64"
CU = "nvidia/cu13"
PROGRAM = 0o755
PLAIN = 0o644


@dataclass(frozen=True)
class Member:
    """A file for `make_wheel`: its bytes, mode and kind."""

    data: bytes = b""
    mode: int = PLAIN


def make_wheel(files: Mapping[str, Member | bytes | str]) -> bytes:
    """Return a zip of *files*, deflated; text becomes a file, bytes too."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            member = as_member(content)
            info = zipfile.ZipInfo(path)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (member.mode if member.mode > 0o777 else 0o100000 | member.mode) << 16
            archive.writestr(info, member.data)
    return stream.getvalue()


def as_member(content: Member | bytes | str) -> Member:
    if isinstance(content, Member):
        return content
    return Member(content.encode() if isinstance(content, str) else content)


def tree_of(files: Mapping[str, Member | bytes | str]) -> str:
    """Return the git id of the tree of *files*."""
    members = {path: as_member(content) for path, content in files.items()}
    modes = {path: "100755" if member.mode & 0o100 else "100644" for path, member in members.items()}
    return tree_id({path: TreeEntry(modes[path], blob_id(member.data)) for path, member in members.items()})


def offer(index: Index, filename: str, data: bytes, **changes: object) -> Package:
    """Put a wheel on the *index*; returns it as a lock names it."""
    package = Package(filename=filename, sha256=index.add(filename, data), size=len(data))
    return msgspec.structs.replace(package, **changes)


def offer_toolkit(index: Index) -> Toolkit:
    """Return a toolkit of small wheels on the *index*, for both machines."""
    builder: dict[str, dict[str, Package]] = {}
    target: dict[str, dict[str, Package]] = {}
    for machine in (HERE, OTHER):
        tag = f"py3-none-manylinux_2_28_{machine}.whl"
        wheels = {
            name: (f"{name}_pkg-{version}-{tag}", files) for name, (version, files) in _PROGRAMS.items()
        }
        builder[machine] = {
            name: offer(index, filename, make_wheel({**files, f"{name}.txt": machine}))
            for name, (filename, files) in wheels.items()
        }
        libraries = {
            "torch": (f"torch-2.11.0-cp312-cp312-manylinux_2_28_{machine}.whl", _TORCH),
            "cuda-runtime": (f"nvidia_cuda_runtime-13.0.96-{tag}", _RUNTIME),
        }
        target[machine] = {
            name: offer(index, filename, make_wheel({**files, f"{name}.txt": machine}))
            for name, (filename, files) in libraries.items()
        }
        folders = ("torch/include", "torch/lib", "torch/utils/cpp_extension.py")
        target[machine]["torch"] = msgspec.structs.replace(target[machine]["torch"], folders=folders)
        target[machine]["cublas"] = _headers_of_a_large_wheel(index, tag)
    release = offer(index, "cuda_toolkit-13.0.2-py3-none-any.whl", make_wheel(_RELEASE))
    sonames = ("libcublas.so.13", "libnvrtc.so.13")
    return Toolkit(cuda="13.0", release=release, builder=builder, target=target, link_only=sonames)


def _headers_of_a_large_wheel(index: Index, tag: str) -> Package:
    header = {f"{CU}/include/cublas_v2.h": "// cublas"}
    large = Member(os.urandom(1 << 18))
    data = make_wheel({f"{CU}/lib/libcublas.so.13": large, **header, "z/library": large})
    return offer(
        index, f"nvidia_cublas-13.1.0.3-{tag}", data, folders=(f"{CU}/include",), tree=tree_of(header)
    )


_PROGRAMS: dict[str, tuple[str, dict[str, Member | str]]] = {
    "nvcc": (
        "13.0.88",
        {
            **{
                f"{CU}/bin/{name}": Member(name.encode(), PROGRAM)
                for name in ("nvcc", "cudafe++", "fatbinary", "ptxas", "nvlink")
            },
            f"{CU}/bin/nvcc.profile": "TOP = $(_HERE_)/..",
        },
    ),
    "nvvm": (
        "13.0.88",
        {f"{CU}/nvvm/bin/cicc": Member(b"cicc", PROGRAM), f"{CU}/nvvm/libdevice/libdevice.10.bc": "BC"},
    ),
    "crt": ("13.0.88", {f"{CU}/include/crt/host_config.h": "// host", f"{CU}/include/cuda.h": "// not this"}),
    "cuobjdump": ("13.2.78", {f"{CU}/bin/cuobjdump": Member(b"cuobjdump", PROGRAM)}),
    "cmake": (
        "3.31.10",
        {
            "cmake/data/bin/cmake": Member(b"cmake", PROGRAM),
            "cmake/data/share/cmake-3.31/Modules/CMake.cmake": "",
        },
    ),
    "ninja": ("1.13.0", {"ninja-1.13.0.data/scripts/ninja": Member(b"ninja", PROGRAM)}),
    "jinja2": ("3.1.6", {"jinja2/__init__.py": "name = 'jinja2'\n"}),
}
_TORCH: dict[str, Member | str] = {
    "torch/__init__.py": "raise RuntimeError('nobody may run this')\n",
    "torch/include/ATen/ATen.h": "// ATen",
    "torch/lib/libtorch.so": Member(b"torch", PROGRAM),
    "torch/utils/cpp_extension.py": "import nothing\nCOMMON_NVCC_FLAGS = [\n    '-DA',\n    '--b',\n]\n",
    "torch-2.11.0.dist-info/METADATA": (
        "Metadata-Version: 2.4\nName: torch\nVersion: 2.11.0\n"
        "Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.2; platform_system == 'Linux'\n"
    ),
}
_RUNTIME: dict[str, Member | str] = {
    f"{CU}/include/cuda.h": "// cuda",
    f"{CU}/include/cuda_runtime.h": "// runtime",
    f"{CU}/lib/libcudart.so.13": "cudart",
    f"{CU}/lib/libcudart_static.a": "cudart",
}
_RELEASE: dict[str, Member | str] = {
    "cuda_toolkit-13.0.2.dist-info/METADATA": (
        "Metadata-Version: 2.4\nName: cuda-toolkit\nVersion: 13.0.2\n"
        "Requires-Dist: nvidia-cuda-runtime==13.0.96.*; extra == 'all'\n"
        "Requires-Dist: nvidia-cublas==13.1.0.3.*; extra == 'all'\n"
    )
}


def native_tables(toolkit: Toolkit, **changes: object) -> NativePin:
    """Return tables for the small release's two sources."""
    pin = NativePin(
        release="1.2.0",
        arch="12.1a",
        toolkit=toolkit,
        sources={
            "cutlass": SourcePin(ref="v4.4.2", tree="1" * 40, paths=("include",)),
            "quack": SourcePin(ref="89abcdef0123456789abcdef0123456789abcdef", stand_in=("q/duck.py",)),
        },
        extensions={"_C": ExtensionSpec(member="vllm/_C.abi3.so", sources=("cutlass",))},
    )
    return msgspec.structs.replace(pin, **changes)


def with_native(lock: Lock, native: NativePin | None, **sources: Dependency) -> Lock:
    return msgspec.structs.replace(lock, native=native, sources={**lock.sources, **sources})


def with_pins(lock: Lock, **pins: SourcePin) -> Lock:
    """Return the *lock* with other *pins* of sources that kernels are compiled from."""
    assert lock.native is not None
    sources = {**lock.native.sources, **pins}
    return with_native(lock, msgspec.structs.replace(lock.native, sources=sources))


def lock_text(lock: Lock) -> str:
    """Return the lock as a file: TOML has no word for what is absent."""

    def present(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: present(inner) for key, inner in value.items() if inner is not None}
        return [present(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    return toml(present(to_builtins(lock)))


@dataclass
class Machine:
    """Programs in a folder of their own, which is all of PATH.

    Attributes:
        folder: where they are.
        banner: what compilers say of their version, after their name.
    """

    folder: Path
    banner: str = "(Tiny 13.2.0-1) 13.2.0"
    binutils: str = "GNU assembler (Tiny) 2.42"
    glibc: str = "2 39"
    python: Path = field(default_factory=lambda: Path(sys.executable))

    def add(self, name: str, machine: str = HERE, *, banner: str | None = None) -> None:
        """Install the g++ called *name*, and its gcc."""
        banner = self.banner if banner is None else banner
        for each in (name, name.replace("g++", "gcc")):
            self.script(
                each,
                _COMPILER.format(
                    name=each, machine=machine, folder=self.folder, banner=banner, glibc=self.glibc
                ),
            )
        for each in ("as", "ld"):
            self.script(each, f"echo '{self.binutils}'")

    def script(self, name: str, text: str) -> Path:
        return write_program(self.folder / name, text)


# Answers what is asked of a compiler; asked to link, it writes its arguments where the result should be.
_COMPILER = """\
case "$1" in
--version) echo '{name} {banner}'; echo 'Copyright' ;;
-dumpmachine) echo {machine}-linux-gnu ;;
-print-prog-name=*) echo {folder}/"${{1#-print-prog-name=}}" ;;
-E) echo 'glibc {glibc}'; echo ' {folder}' >&2 ;;
*) said="$*"; while [ "$1" != -o ]; do shift; done; echo "$said" > "$2" ;;
esac"""
