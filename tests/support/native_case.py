"""A healthy native wheel of small real binaries, and what it is held against."""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import elfkit
import wheelkit

from sparkwright.lock.model import Artifact, Binary, DroppedBinary, Lock, NativePin, Release, Toolkit
from sparkwright.native.elf import honest_platform, read_elf
from sparkwright.native.inspection import Inspector, Surroundings
from sparkwright.native.model import Extension, Target
from sparkwright.store.paths import open_store
from sparkwright.wheel.assemble import AssemblyPlan, BinarySource, assemble
from sparkwright.wheel.audit import audit
from sparkwright.wheel.binaries import Expectation, NativeExpectation
from sparkwright.wheel.kernels import KERNELS, LeftOut, kernels_record
from sparkwright.wheel.names import parse_name

OURS = "0.24.0+spark.1a2b3c4d"
INFO = f"vllm-{OURS}.dist-info"
C, FA3, RS, SPIN = "vllm/_C.abi3.so", "vllm/_fa3.abi3.so", "vllm/vllm-rs", "vllm/spinloop.abi3.so"
GUARD = b"""
try:
    from . import _fa3
    NEW = True
except ImportError:
    NEW = False
try:
    from . import _C
    OLD = True
except ImportError:
    OLD = False
if not (NEW or OLD):
    raise ImportError
"""
CHANGES = {"vllm/core.py": b"x = 2\n", "CMakeLists.txt": b"archs"}
BECAUSE = "it is made by another compiler"
HERE = platform.machine()


@dataclass(frozen=True)
class Case:
    """A healthy native wheel, what it was made from and what it is held against."""

    wheel: Path
    plan: AssemblyPlan
    expectation: Expectation
    compiled: dict[str, Extension]
    folder: Path


def record_of(
    *,
    asked: dict[str, int] | None = None,
    left_out: tuple[LeftOut, ...] | None = None,
    arch: str = "12.1a",
    attested: str = "",
) -> dict[str, Any]:
    extension = Extension(
        target="_C", key="the-key", sha256="0" * 64, size=1,
        arches={"sm_121a": 2, "compute_80": 1} if asked is None else asked,
    )  # fmt: skip
    spin = Extension(target="spinloop", key="spin-key", sha256="0" * 64, size=1, arches={})
    if left_out is None:
        left_out = (LeftOut(member=FA3, because="none of its 1 kernels runs on 12.1a", evidence=("a",)),)
    return kernels_record(
        Target(HERE, arch), "toolchain", compiled={C: extension, SPIN: spin}, upstream={RS: BECAUSE},
        left_out=left_out, attested={C: attested}, packages={},
    )  # fmt: skip


def lock_of(artifact: Artifact) -> Lock:
    release = Release(
        version="0.24.0", commit="ee0da84ab", git="https://example.org/vllm", requires_python=">=3.10,<3.15",
        torch="2.11.0",
    )  # fmt: skip
    native = NativePin(
        release="0.24.0",
        arch="12.1a",
        toolkit=Toolkit(cuda="13.0", release=None, builder={}, target={}),  # type: ignore[arg-type]
        sources={},
        extensions={},
        binaries={
            C: Binary(cubins={"sm_121a": 2}, ptx={"compute_80": 1}, why="a fallback"),
            SPIN: Binary(),
        },
        drop={FA3: DroppedBinary(named_by=("vllm/fa.py",), why="imported in a try")},
    )
    return Lock(format=1, release=release, sdist=artifact, wheels={HERE: artifact}, sources={}, native=native)


IMAGES = [("sm_121a", ["gemm", "norm"]), ("sm_121a", ["more"]), ("compute_80", ["old"])]


def extension(path: Path, *flags: str | Path, images: Any = None, body: str = "void cuInit(void);") -> Path:
    """Compile one of our extensions: device code as asked, symbols that torch and the driver define."""
    stand_ins = path.parent / "stand-ins"
    driver = elfkit.shared(stand_ins / "libcuda.so.1", "int none;", "-Wl,-soname,libcuda.so.1")
    torch = elfkit.shared(
        path.parent / "torch" / "libtorch.so", "int add(void) { return 1; }", "-Wl,-soname,libtorch.so"
    )
    code = f"int add(void); {body} int f(void) {{ cuInit(); return add(); }}"
    return elfkit.shared(
        path, code, "-Wl,--no-as-needed", torch, driver, *flags,
        device=elfkit.device(IMAGES if images is None else images),
    )  # fmt: skip


def make_case(folder: Path) -> Case:
    """Return the healthy wheel, made in *folder*."""
    fa3 = elfkit.shared(folder / "fa3.so", "int a;", device=elfkit.device([("sm_90a", ["hopper"])]))
    code = "#include <stdlib.h>\nvoid f(void) { quick_exit(0); }"
    old = elfkit.shared(folder / "old.so", code, device=elfkit.device([("sm_120", ["gemm", "norm"])]))
    host = elfkit.shared(folder / "host.so", "int a;")
    upstream = wheelkit.upstream_wheel(
        folder / "upstream", HERE,
        extra={FA3: fa3.read_bytes(), "vllm/fa.py": GUARD, SPIN: host.read_bytes()},
        instead={C: old.read_bytes(), RS: host.read_bytes()},
    )  # fmt: skip
    artifact = Artifact(
        filename=upstream.name, sha256=wheelkit.sha256(upstream), size=upstream.stat().st_size
    )
    ours, spin = extension(folder / "built" / "_C.so"), elfkit.shared(folder / "built" / "spin.so", "int b;")
    needs = [read_elf(path).versions for path in (ours, spin, host)]
    plan = AssemblyPlan(
        upstream, artifact.sha256, OURS, CHANGES,
        {
            "point.json": wheelkit.point_of(OURS, HERE, "native"),
            "carries.json": {"format": 1, "carries": []},
            KERNELS: record_of(),
        },
        providers={
            C: BinarySource(ours, "compiled", "the-key"), SPIN: BinarySource(spin, "compiled", "spin-key"),
        },
        upstream_binaries={RS: BECAUSE},
        left_out={FA3: "nothing in it runs"},
        platform=honest_platform(parse_name(upstream.name).platform, needs),
        lock=lock_of(artifact),
    )  # fmt: skip
    program = elfkit.reader(folder / "bin")
    native = NativeExpectation(
        "12.1a",
        Inspector(open_store(folder / "home"), lambda: program),
        Surroundings.of([folder / "built" / "torch"], ["libcublas.so.13"]),
    )
    expectation = Expectation(
        upstream,
        artifact,
        lock_of(artifact),
        CHANGES,
        OURS,
        native=native,
        record={**plan.record, KERNELS: None},
    )
    compiled = {
        member: Extension(
            target="t", key=source.origin, sha256=wheelkit.sha256(source.path), size=1, arches={}
        )
        for member, source in plan.providers.items()
    }
    return Case(assemble(plan, folder / "dist").path, plan, expectation, compiled, folder)


def failed(wheel: Path, expectation: Expectation) -> dict[str, str]:
    """Return the checks that fail, with what they say."""
    return {check.name: check.detail for check in audit(wheel, expectation).failures}
