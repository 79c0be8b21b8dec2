"""Show by device code that a binary was built from certain sources, unit by unit.

A unit is compiled from candidate sources with upstream's own command, for one architecture that the binary
holds, and the cubin or PTX module is compared with the binary's. Equal code does not say that the sources are
the pinned ones: it says that they give the same kernels. Nothing is claimed for a unit that differs, and
nothing at all unless units that need no candidate are equal and a changed constant is noticed: the compiler
has to be upstream's to the last digit.

Start reading at `attest_unit`. Only the names that nvcc makes up for internal symbols may differ: they hold
hashes of paths and a process id, which `plain_names` takes out.
"""

from __future__ import annotations

import re
import resource
import shlex
import shutil
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Literal

from sparkwright.base.digests import digest_of, sha256_bytes
from sparkwright.base.errors import BinaryError, CompileError, ProcessError
from sparkwright.base.process import run
from sparkwright.native.inspection.elf import open_elf
from sparkwright.native.model import Unit
from sparkwright.native.workspace import Workspace

Outcome = Literal["equal", "different", "not found", "no kernels", "not compiled"]

# 49_GLOBAL__N__b1bf4644_10_flash_x_cu_3b62bd63_22833: length of the whole name, hash, length of the file's
# name, that name, hash, and sometimes a process id.
_INTERNAL = re.compile(rb"_(?:INTERNAL|GLOBAL__N_)_[0-9a-f]{8}_(\d+)_")
_HASH = re.compile(rb"_[0-9a-f]{8}")
_MOST_DIGITS = 4
_PROCESS = re.compile(rb"_\d+")
_TEXT = ".text."
_SYMBOL = struct.Struct("<LBBHQQ")
_SYMBOL_TABLES = frozenset({"SHT_SYMTAB", 0x70000085})
"""ELF's own, and the one of ``.nv.merc.symtab``."""
_FUNCTION = re.compile(rb"^(?=(?:\.visible |\.weak |\.extern )?\.(?:entry|func)\b)", re.MULTILINE)
_ENTRY = re.compile(rb"[^\n]*\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$<>]+)")
_SETTING = re.compile(r"(\w+)=(.*)")
_OUTPUT = re.compile(r'(?:-o|--gen_module_id_file --module_id_file_name) "([^"]+)"')
_READ = re.compile(r'^# \d+ "([^"]+)"', re.MULTILINE)
_DEVICE_PASS = "-D__CUDA_ARCH__="  # noqa: S105
_EXAMPLES = 3
_LONGEST = 120
"""Characters of a kernel's name in a reason; CUTLASS's have thousands."""


@dataclass(frozen=True)
class Image:
    """One cubin or PTX module, with plain names.

    Attributes:
        kernels: its kernels and other functions.
        parts: digest of each section of a cubin or function of a module, by its name and in its order.
    """

    kernels: frozenset[str]
    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Digest of all of it."""
        return digest_of(list(self.parts.items()))


@dataclass(frozen=True)
class Compiled:
    """A unit's image for one architecture.

    Attributes:
        seconds: CPU time of all steps.
        read: number of files that the compilation for the architecture read, by the dependency they are of.
    """

    image: Image
    seconds: float
    read: Mapping[str, int]


@dataclass(frozen=True)
class Verdict:
    """The comparison of a unit with a binary.

    Attributes:
        code: the architecture: ``sm_120f`` for a cubin, ``compute_80`` for PTX.
        outcome: the result; only ``equal`` attests it.
        why: the reason of another outcome.
        seconds: CPU time of its compilation.
        read: see `Compiled`.
    """

    unit: str
    code: str
    outcome: Outcome
    kernels: int = 0
    why: str = ""
    seconds: float = 0.0
    read: Mapping[str, int] = field(default_factory=dict)


def attest_unit(
    unit: Unit,
    code: str,
    work: Workspace,
    environment: Mapping[str, str],
    images: Sequence[Image],
) -> Verdict:
    """Compile *unit* for *code* and look for its image among *images*.

    Args:
        unit: the compiler call, as upstream's project configures it for all architectures of the binary.
        code: one of its architectures.
        work: the folder with the candidate sources.
        environment: the whole environment of the compiler.
        images: those of the binary for *code*; see `read_images`.
    """
    try:
        compiled = compile_image(unit, code, work, environment)
    except CompileError as error:
        return Verdict(unit.name, code, "not compiled", why=error.because)
    outcome, why = compare(compiled.image, images)
    kernels = len(compiled.image.kernels)
    return Verdict(unit.name, code, outcome, kernels, why, round(compiled.seconds, 1), compiled.read)


def compare(image: Image, images: Sequence[Image]) -> tuple[Outcome, str]:
    """Return the outcome for *image* among the binary's *images*, and the reason if it is not equal."""
    if not image.kernels:
        return "no kernels", ""
    if image.digest in {other.digest for other in images}:
        return "equal", ""
    nearest = max(images, key=lambda other: len(image.kernels & other.kernels), default=None)
    if nearest is None or not image.kernels & nearest.kernels:
        return "not found", f"the binary has none of its kernels, such as {min(image.kernels)}"
    return "different", _differences(image, nearest)


def summary(verdicts: Iterable[Verdict]) -> str:
    """Return the sentence on all *verdicts*; a unit without kernels has nothing to compare."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    without = counts.pop("no kernels", 0)
    others = [f"{count} {outcome}" for outcome, count in sorted(counts.items()) if outcome != "equal"]
    others += [f"{without} more without kernels"] if without else []
    return f"attested {counts['equal']} of {counts.total()} units" + (
        f" ({', '.join(others)})" if others else ""
    )


def _differences(mine: Image, theirs: Image) -> str:
    reasons = []
    for what, names in (
        ("only here", mine.kernels - theirs.kernels),
        ("only in the binary", theirs.kernels - mine.kernels),
    ):
        if names:
            reasons.append(f"{_some(names)} {what}")
    differing = [name for name, digest in mine.parts.items() if theirs.parts.get(name, digest) != digest]
    code = {name for name in differing if name.removeprefix(_TEXT) in mine.kernels}
    if code:
        reasons.append(f"the code of {_some({name.removeprefix(_TEXT) for name in code})} differs")
    elif differing:
        reasons.append(f"equal code, but {_some(set(differing))} differs")
    return "; ".join(reasons) or "the same parts in another order"


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _EXAMPLES} more" if len(ordered) > _EXAMPLES else ""
    shown = (name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…" for name in ordered[:_EXAMPLES])
    return ", ".join(shown) + more


# Images ---------------------------------------------------------------------------------------


def read_images(binary: Path, cuobjdump: Path, code: str, scratch: Path) -> list[Image]:
    """Return the images for *code* of *binary*: an extension, or what ``fatbinary`` writes.

    Args:
        binary: the file.
        cuobjdump: the program.
        code: the architecture; cuobjdump does not distinguish ``sm_120`` and ``sm_120f``, so cubins of both
            are returned, and their own notes tell them apart.
        scratch: an empty folder for the extracted files.

    Raises:
        BinaryError: the binary holds no such image, or an image cannot be read.
    """
    option, ending, parse = (
        ("-xptx", ".ptx", parse_ptx) if code.startswith("compute_") else ("-xelf", ".cubin", parse_cubin)
    )
    name = "sm_" + code.partition("_")[2].removesuffix("f")
    try:
        run([cuobjdump, option, f".{name}{ending}", binary.absolute()], cwd=scratch)
    except ProcessError as error:
        raise BinaryError(f"{binary.name} has no code for {code}", because=error.because) from error
    return [parse(path.read_bytes()) for path in sorted(scratch.glob(f"*.{name}{ending}"))]


def parse_cubin(data: bytes) -> Image:
    """Return the cubin *data* as an image; string tables count through the names that refer to them."""
    elf = open_elf(BytesIO(data), "a cubin")
    table = elf.get_section_by_name(".strtab")
    strings = table.data() if table is not None else b""
    parts: dict[str, str] = {}
    for number, section in enumerate(elf.iter_sections()):
        header, name = section.header, plain_names(section.name.encode()).decode()
        if header.sh_type == "SHT_STRTAB":
            continue
        if header.sh_type in _SYMBOL_TABLES:
            content = digest_of(list(_symbols(section.data(), strings)))
        else:
            content = sha256_bytes(plain_names(section.data()))
        size = header.sh_size if header.sh_type == "SHT_NOBITS" else 0
        facts = [header.sh_flags, header.sh_link, header.sh_info, header.sh_addralign, size, content]
        parts[name if name not in parts else f"{name} #{number}"] = digest_of(facts)
    return Image(frozenset(name.removeprefix(_TEXT) for name in parts if name.startswith(_TEXT)), parts)


def _symbols(data: bytes, strings: bytes) -> Iterator[list[object]]:
    for name, *rest in _SYMBOL.iter_unpack(data):
        yield [plain_names(strings[name : strings.index(b"\0", name)]).decode(), *rest]


def parse_ptx(data: bytes) -> Image:
    """Return the PTX module *data*, as ``fatbinary`` stores it, as an image."""
    head, *functions = _FUNCTION.split(plain_names(data))
    parts, kernels = {"declarations": sha256_bytes(head)}, set()
    for number, text in enumerate(functions):
        found = _ENTRY.match(text)
        name = found[2].decode() if found else str(number)
        parts[name if name not in parts else f"{name} #{number}"] = sha256_bytes(text)
        if found and found[1] == b"entry":
            kernels.add(name)
    return Image(frozenset(kernels), parts)


def plain_names(data: bytes) -> bytes:
    """Return *data* without the hashes and process ids in the names of internal symbols."""
    pieces, done = [], 0
    for found in _INTERNAL.finditer(data):
        file_end = found.end() + int(found[1])
        hashed = _HASH.match(data, file_end)
        if hashed is None:
            continue
        start, end = _whole(data, done, found.start(), hashed.end())
        pieces += [data[done:start], b"<", data[found.end() : file_end], b">"]
        done = end
    return b"".join([*pieces, data[done:]])


def _whole(data: bytes, done: int, start: int, end: int) -> tuple[int, int]:
    """Return where the name at *start*, known up to *end*, begins with its length, and where it ends.

    Digits in front may belong to the symbol before, and a process id runs into the next symbol's length.
    """
    for first in range(max(done, start - _MOST_DIGITS), start):
        digits = data[first:start]
        more = int(digits) - (end - start) if digits.isdigit() else -1
        if more == 0 or (more > 0 and _PROCESS.fullmatch(data, end, end + more)):
            return first, end + more
    return start, end


# Compiling --------------------------------------------------------------------------------------


def compile_image(unit: Unit, code: str, work: Workspace, environment: Mapping[str, str]) -> Compiled:
    """Compile *unit* for *code* alone, with the steps that nvcc takes when it compiles for all.

    A shorter list of architectures would not do: it is in a macro, and in names that CUB makes of that.

    Raises:
        CompileError: a step fails, or the unit's command does not name *code*.
    """
    keep = work.build / "attested"
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        planned = run(
            [*work.expand(unit.argv), "--dryrun", "--keep", "--keep-dir", keep],
            cwd=work.build,
            env=environment,
        )
        settings, commands = read_plan(planned.stderr)
        steps = steps_for(commands, code)
        for step in steps:
            words = [Template(word).safe_substitute(settings) for word in shlex.split(step)]
            run(words, cwd=work.build, env={**environment, **settings})
        product = keep / _outputs(steps[-1])[-1].rpartition("/")[2] if steps else None
        if product is None or not product.is_file():
            raise CompileError(
                f"{unit.name} is not compiled for {code}",
                because=f"its command is for {', '.join(unit.arches)}",
            )
        image = (
            _packed(product, code, work) if product.suffix == ".ptx" else parse_cubin(product.read_bytes())
        )
    except ProcessError as error:
        raise CompileError(f"{unit.name} cannot be compiled for {code}", because=error.because) from error
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    preprocessed = next(step for step in steps if _DEVICE_PASS in step and " -E " in step)
    text = (keep / _outputs(preprocessed)[-1].rpartition("/")[2]).read_text(errors="replace")
    return Compiled(image, seconds, _read(text, f"{work.root}/deps/"))


def _packed(ptx: Path, code: str, work: Workspace) -> Image:
    """Return the module in the file *ptx* after the same changes as in a binary: comments are left out."""
    fatbin, folder = ptx.with_suffix(".fatbin"), ptx.with_suffix(".images")
    folder.mkdir()
    number = code.partition("_")[2]
    fatbinary = work.root / "cuda" / "bin" / "fatbinary"
    run([fatbinary, f"--create={fatbin}", "-64", f"--image3=kind=ptx,sm={number},file={ptx}"])
    return read_images(fatbin, work.toolchain.cuobjdump, code, folder)[0]


def read_plan(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables and the commands of ``nvcc --dryrun``, in their order."""
    settings, commands = {}, []
    for line in text.splitlines():
        if not line.startswith("#$ "):
            continue
        if found := _SETTING.fullmatch(line[3:]):
            settings[found[1]] = found[2]
        else:
            commands.append(line[3:])
    return settings, commands


def steps_for(commands: Sequence[str], code: str) -> list[str]:
    """Return those of *commands* that the cubin or PTX module for *code* comes from, in their order."""
    number = code.partition("_")[2]
    if code.startswith("sm_"):
        last = [one for one in commands if one.startswith("ptxas ") and f"-arch={code} " in one]
    else:
        last = [one for one in commands if "/cicc" in one and f"-arch compute_{number} " in one]
    chosen: list[str] = []
    for command in reversed(commands):
        used = any(f'"{output}"' in later for output in _outputs(command) for later in chosen)
        if used or command in last[:1]:
            chosen.append(command)
    return chosen[::-1]


def _outputs(command: str) -> list[str]:
    return _OUTPUT.findall(command)


def _read(preprocessed: str, dependencies: str) -> dict[str, int]:
    """Return how many files below the folder *dependencies* were read, by the first folder there."""
    files = {
        path.removeprefix(dependencies)
        for path in _READ.findall(preprocessed)
        if path.startswith(dependencies)
    }
    return dict(sorted(Counter(path.partition("/")[0] for path in files).items()))
