"""Small real shared objects, made by the machine's C compiler, and device code to put into them."""

import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FATBIN = Path(__file__).with_name("kernels.fatbin")
"""A real fat binary of two kernels, ``one`` and ``two``, which assign 1 and 2 to a float: cubins for
``sm_121a``, ``sm_120f``, ``sm_80`` and PTX for ``compute_80``, compressed. Made by nvcc 13.0 with
``--fatbin -Xfatbin -compress-all -gencode arch=compute_121a,code=sm_121a
-gencode arch=compute_120f,code=sm_120f -gencode arch=compute_80,code=[sm_80,compute_80]``."""

MACHINES = {"aarch64": 183, "x86_64": 62}
_MARK = b"=== a dump of device code ===\n"


def compiler() -> str:
    """Return the machine's C compiler, which every machine that builds Python packages has."""
    found = shutil.which("cc") or shutil.which("gcc")
    assert found is not None, "these tests need a C compiler"
    return found


def shared(
    path: Path,
    code: str = "int answer(void) { return 42; }",
    *flags: str | Path,
    machine: str = "",
    device: bytes = b"",
) -> Path:
    """Return a shared object of the C *code* at *path*.

    Args:
        path: where to; folders are made.
        code: C source; what it does not define stays undefined.
        flags: for the compiler, libraries above all.
        machine: what the ELF header is made to say afterwards; this machine if empty. Its code stays
            this machine's, and nobody runs it.
        device: what is put into its section for device code; no such section if empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_name(path.name + ".c")
    source.write_text(code)
    extra: list[str | Path] = []
    if device:
        blob, assembler = path.with_name(path.name + ".bin"), path.with_name(path.name + ".S")
        blob.write_bytes(device)
        assembler.write_text(f'.section .nv_fatbin,"a"\n.incbin "{blob}"\n.section .note.GNU-stack,""\n')
        extra = [assembler]
    subprocess.run(
        [compiler(), "-shared", "-fPIC", "-o", path, source, *extra, *flags],
        check=True,
    )
    if machine:
        content = bytearray(path.read_bytes())
        struct.pack_into("<H", content, 18, MACHINES[machine])
        path.write_bytes(content)
    for left_over in path.parent.glob(path.name + ".*"):
        left_over.unlink()
    return path


def dump(images: Sequence[tuple[str, Sequence[str]]], *, newer: bool = False) -> bytes:
    """Return the output of ``cuobjdump -symbols -ptx`` on *images*: architecture and kernels of each.

    The words are those of cuobjdump 13.2, or with *newer* of 13.5.
    """
    parts = []
    for arch, kernels in images:
        kind = "ptx" if arch.startswith("compute") else "elf"
        name = arch.replace("compute", "sm")
        heading = (
            f"\nFatbin {kind} code:\n================\narch = {name}\ncode version = [1,8]\nhost = linux\n\n"
        )
        if kind == "ptx":
            body = "".join(
                f".visible .entry {kernel}(\n.param .u64 {kernel}_0\n)\n{{\nret;\n\n}}\n"
                for kernel in kernels
            )
        elif newer:
            body = "symbols:\nFUNC          LOCAL   DEFAULT    -             $helper\n" + "".join(
                f"FUNC          GLOBAL  DEFAULT    ENTRY         {kernel}\n" for kernel in kernels
            )
        else:
            body = "symbols:\nSTT_FUNC         STB_LOCAL  STV_DEFAULT    $helper\n" + "".join(
                f"STT_FUNC         STB_GLOBAL STO_ENTRY      {kernel}\n" for kernel in kernels
            )
        parts.append(heading + body)
    return "".join(parts).encode()


def device(images: Mapping[str, Sequence[str]] | Sequence[tuple[str, Sequence[str]]]) -> bytes:
    """Content for a section for device code that the program of `reader` takes for *images*."""
    pairs = list(images.items()) if isinstance(images, dict) else list(images)
    return _MARK + dump(pairs) + _MARK


def reader(folder: Path) -> Path:
    """Return a program that stands in for cuobjdump on binaries with a section made by `device`."""
    program = folder / "cuobjdump"
    folder.mkdir(parents=True, exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"parts = open(sys.argv[-1], 'rb').read().split({_MARK!r})\n"
        "if len(parts) != 3:\n"
        "    sys.exit('no device code that this stand-in knows')\n"
        "sys.stdout.buffer.write(parts[1])\n"
    )
    program.chmod(0o755)
    return program
