"""Compilers that compile nothing: small real programs that take time and memory, fail, or are killed."""

import os
import sys
from pathlib import Path

from sparkwright.base.machine import MachineSnapshot, Pressure
from sparkwright.native.compile import CompileJob
from sparkwright.native.model import Cost

WRITE = "import os, sys, time\nopen(sys.argv[1], 'w').write('object')\n"
"""A compiler that works."""

KILLED = (
    "import os, signal, subprocess, sys\n"
    "child = subprocess.run([sys.executable, '-c', 'import os; os.kill(os.getpid(), 9)'])\n"
    "print(\"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\")\nsys.exit(9)\n"
)
"""A stand-in for an nvcc whose compiler was killed."""

ROOMY = MachineSnapshot(cores=4, total_mib=65536, available_mib=60000, pressure=Pressure())


def until(path: Path, then: str = "") -> str:
    """Return a compiler that writes a partial object and waits for *path*; without that file it fails."""
    return (
        "import os, sys, time\nopen(sys.argv[1], 'w').write('part')\n"
        f"end = time.monotonic() + 60\nwhile not os.path.exists({str(path)!r}):\n"
        f" time.sleep(0.01)\n if time.monotonic() > end: sys.exit('it never came')\n{then}"
    )


def make_job(
    folder: Path, name: str, script: str = WRITE, *, seconds: float = 1.0, mib: int = 100, **changes: object
) -> CompileJob:
    """Return a job in *folder* that runs *script*, whose first argument is the object to make."""
    output = folder / "objects" / f"{name}.o"
    return CompileJob(
        name=name,
        argv=(sys.executable, "-c", script, str(output)),
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(folder)},
        output=output,
        log=folder / "logs" / f"{name}.log",
        expected=Cost(seconds=seconds, mib=mib),
        **changes,
    )
