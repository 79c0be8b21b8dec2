"""A FlashInfer in miniature: generators that write a build file for ninja, sources, and a card's kernels."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import elfkit

from sparkwright.companion.model import CompanionSpec, KernelModule, Needs
from sparkwright.companion.wheel import CompanionContent, CompiledModule
from sparkwright.lock.model import Package
from sparkwright.native.host import this_machine
from sparkwright.native.inspection import Inspector, Surroundings
from sparkwright.native.model import Target
from sparkwright.store.paths import Store

TARGET = Target(this_machine(), "12.1a")
IMAGES = [("sm_121a", ["sample"])]


def package(name: str) -> Package:
    return Package(filename=f"{name}-py3-none-any.whl", sha256="0" * 64, size=1)


SPEC = CompanionSpec(
    format=1,
    flashinfer=package("flashinfer_python-1.2.3"),
    tvm_ffi={this_machine(): package("apache_tvm_ffi-0.1")},
    paths=("csrc", "include"),
    modules={"sampling": KernelModule(generator="flashinfer.jit.sampling:gen", why="it samples")},
    needs=Needs(every=("sampling",), linear=(), experts=(), attention={}),
)


def library(folder: Path, name: str, images: Sequence[tuple[str, Sequence[str]]] = IMAGES) -> Path:
    """Return a module as FlashInfer's are: it calls tvm_ffi without needing it by name."""
    code = "int TVMFFICall(void); int run(void) { return TVMFFICall(); }"
    return elfkit.shared(folder / f"{name}.so", code, device=elfkit.device(list(images)))


def module(
    store: Store, path: Path, arches: Mapping[str, int] | None = None, name: str = "sampling"
) -> CompiledModule:
    """Return the library at *path* as a finished module in the store."""
    from sparkwright.base.digests import sha256_file

    sha256, size = sha256_file(path), path.stat().st_size
    store.adopt_file(path, sha256, verified=True)
    return CompiledModule(name, sha256, size, {"sm_121a": 1} if arches is None else arches)


def content(modules: Sequence[CompiledModule], target: Target = TARGET) -> CompanionContent:
    """Return all that decides a companion of *modules*."""
    record = {
        "flashinfer": {"version": SPEC.version, "filename": SPEC.flashinfer.filename, "sha256": "0" * 64},
        "tvm_ffi": {"version": "0.1", "filename": "apache_tvm_ffi-0.1-py3-none-any.whl", "sha256": "0" * 64},
        "recipes": {"*": ["sampling"], "experts": ["sampling", "moe"]},
        "tree": "0" * 40,
        "toolchain": {"key": "0" * 8, "packages": {"nvcc.whl": "1" * 64}},
        "target": {"machine": target.machine, "arch": target.arch},
        "modules": {
            one.name: {"listed": one.name, "sha256": one.sha256, "size": one.size, "arches": dict(one.arches)}
            for one in modules
        },
    }
    return CompanionContent(
        SPEC, target, "13.0", {one.name: one for one in modules}, record, {"LICENSE": b"free\n"}
    )


def surroundings(folder: Path, symbol: str = "TVMFFICall") -> Surroundings:
    """Return a tvm_ffi that defines *symbol*."""
    path = elfkit.shared(folder / "libtvm_ffi.so", f"int {symbol}(void) {{ return 1; }}")
    return Surroundings({path.name: path})


def inspector(store: Store, folder: Path) -> Inspector:
    """Return an inspector that reads the device code of `elfkit`."""
    program = elfkit.reader(folder)
    return Inspector(store, lambda: program)
