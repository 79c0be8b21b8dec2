"""A small native project, compiled by the real gcc, for tests of the unit cache."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkwright.git.trees import blob_id
from sparkwright.native.configure import Reader
from sparkwright.native.model import WORK, Cost, Toolchain, Unit
from sparkwright.native.units import UnitFiles, find_object, record_object
from sparkwright.store.paths import Store

SOURCE = "source/csrc/ops.c"
FILES = {
    SOURCE: '#include "ops.h"\n#include <lib.h>\n#include <tool.h>\n#include <stddef.h>\n'
    "int ops(void) { return OPS + LIB + TOOL; }\n",
    "source/csrc/ops.h": '#if __has_include("extra.h")\n#include "extra.h"\n#endif\n#define OPS 1\n',
    "source/csrc/unrelated.h": "#define UNRELATED 1\n",
    "deps/lib/include/lib.h": '#include "../detail/deep.h"\n#define LIB DEEP\n',
    "deps/lib/detail/deep.h": "#define DEEP 2\n",
}
COST = Cost(seconds=1.5, mib=20)


def make_toolchain(root: Path) -> Toolchain:
    """Return a toolchain with two headers in its CUDA folder."""
    cuda = root / "toolchain" / "cuda"
    (cuda / "include" / "inner").mkdir(parents=True)
    (cuda / "include" / "tool.h").write_text('#include "inner/more.h"\n#define TOOL MORE\n')
    (cuda / "include" / "inner" / "more.h").write_text("#define MORE 3\n")
    (cuda / "bin").mkdir()
    for name in ("torch", "python"):
        (root / "toolchain" / name).mkdir()
    nothing = root / "toolchain" / "nothing"
    return Toolchain(
        cuda=cuda,
        torch=root / "toolchain" / "torch",
        stand_in=nothing,
        cc=Path("/usr/bin/gcc"),
        cxx=nothing,
        cmake=nothing,
        ninja=nothing,
        python=nothing,
        python_include=root / "toolchain" / "python",
        cross=False,
        key="toolchain",
    )


@dataclass
class Project:
    """One work folder, its files, and the one unit in it."""

    root: Path
    toolchain: Toolchain
    texts: Mapping[str, str] = field(default_factory=lambda: FILES)
    flags: tuple[str, ...] = ("-O1",)

    def __post_init__(self) -> None:
        self.work = self.root.resolve() / "work"
        for path, text in self.texts.items():
            (self.work / path).parent.mkdir(parents=True, exist_ok=True)
            (self.work / path).write_text(text)
        (self.work / "build").mkdir()
        chain = self.toolchain
        for name, target in (("cuda", chain.cuda), ("torch", chain.torch), ("python", chain.python_include)):
            (self.work / name).symlink_to(target)
        self.reader = Reader(self.work, chain)

    @property
    def files(self) -> UnitFiles:
        return UnitFiles({path: blob_id(text.encode()) for path, text in self.texts.items()})

    @property
    def unit(self) -> Unit:
        folders = ("source/csrc", "deps/lib/include", "cuda/bin/../include")
        argv = ("gcc", *self.flags, *(f"-I{WORK}/{folder}" for folder in folders), "-I.")
        return Unit(
            target="_C",
            source=SOURCE,
            output="build/ops.o",
            language="CXX",
            argv=(*argv, "-c", f"{WORK}/{SOURCE}", "-o", "ops.o"),
        )

    @property
    def object(self) -> Path:
        return self.work / "build" / "ops.o"

    @property
    def depfile(self) -> Path:
        return self.work / "build" / "ops.o.d"

    def compile(self) -> bytes:
        """Start the compiler; returns the object's bytes."""
        argv = [word.replace(WORK, str(self.work)) for word in self.unit.argv]
        subprocess.run([*argv, "-MD", "-MF", self.depfile], cwd=self.work / "build", check=True)
        return self.object.read_bytes()

    def record(self, store: Store, toolchain_key: str = "toolchain") -> str | None:
        """Return the object's digest, if later builds find it."""
        sha256, cached = record_object(
            store,
            self.unit,
            self.files,
            toolchain_key,
            reader=self.reader,
            depfile=self.depfile,
            object_path=self.object,
            cost=COST,
        )
        return sha256 if cached else None

    def find(self, store: Store, toolchain_key: str = "toolchain") -> str | None:
        return find_object(store, self.unit, self.files, toolchain_key)
