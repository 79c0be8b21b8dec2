"""A wheel's file name and its tags (PEP 427, PEP 425), and the files in a wheel that state them too."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from sparkwright.base.errors import WheelError

_DIGEST_DIGITS = 8
_TAGS = re.compile(r"\w+(\.\w+)*", re.ASCII)
_COPY = re.compile(r" ?\(\d+\)(?=\.whl$)")  # what a browser adds to a name that is there already
# The local part of upstream's versions of untagged commits; a CUDA variant follows unless it is the main.
_OF_COMMIT = re.compile(r"g[0-9a-f]{7,40}(\.[a-z0-9]+)?")


@dataclass(frozen=True)
class WheelName:
    """The parts of a wheel's file name, escaped as in the name.

    Attributes:
        build: the build tag, usually empty.
        python: the Python tag, such as ``cp38``.
        abi: the ABI tag, such as ``abi3``.
        platform: the platform tag, such as ``manylinux_2_28_aarch64``.
    """

    distribution: str
    version: str
    build: str
    python: str
    abi: str
    platform: str

    @property
    def filename(self) -> str:
        """The file name."""
        parts = (self.distribution, self.version, self.build, self.python, self.abi, self.platform)
        return "-".join(part for part in parts if part) + ".whl"

    @property
    def dist_info(self) -> str:
        """The name of the folder with the wheel's metadata."""
        return f"{self.distribution}-{self.version}.dist-info"

    @property
    def tags(self) -> tuple[str, ...]:
        """Each single tag that the compressed set in the name stands for."""
        sets = (self.python.split("."), self.abi.split("."), self.platform.split("."))
        return tuple("-".join(tag) for tag in product(*sets))

    @property
    def machine(self) -> str:
        """The machine of the platform tag: ``aarch64``, ``x86_64``, or empty where it names neither."""
        found = re.search(r"(aarch64|x86_64)$", self.platform)
        return found.group(1) if found else ""

    def with_version(self, version: str) -> WheelName:
        """Return this name with another *version*."""
        try:
            normal = str(Version(version))
        except InvalidVersion:
            normal = ""
        if not normal or version != normal:
            raise WheelError(
                f"{version!r} cannot be a wheel's version",
                because=f"PEP 440 spells it {normal!r}" if normal else "PEP 440 does not allow it",
            )
        return replace(self, version=version)

    def with_platform(self, platform: str) -> WheelName:
        """Return this name with another *platform* tag, such as ``manylinux_2_34_aarch64``."""
        other = replace(self, platform=platform)
        if not re.fullmatch(r"\w+", platform) or other.machine != self.machine:
            raise WheelError(
                f"{platform!r} cannot be the wheel's platform", because=f"it is made for {self.platform}"
            )
        return other


def parse_name(filename: str) -> WheelName:
    """Return the parts of a wheel's *filename*."""
    try:
        parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise _no_name(filename, str(error)) from error
    distribution, version, *build, python, abi, platform = filename.removesuffix(".whl").split("-")
    if odd := [tag for tag in (python, abi, platform) if not _TAGS.fullmatch(tag)]:
        raise _no_name(filename, f"no tag is written as {odd[0]!r}")
    return WheelName(distribution, version, "".join(build), python, abi, platform)


def _no_name(filename: str, because: str) -> WheelError:
    """Return the error for *filename*, which browsers may have spoilt."""
    whole = _COPY.sub("", unquote(filename))
    copied = "remove it if it is a browser's second copy, else " if _COPY.search(filename) else ""
    return WheelError(
        f"{filename} is not a wheel's file name",
        because=because,
        next_step=f"{copied}rename it to {whole}"
        if whole != filename
        else "give a wheel, by the name that its builder gave it",
    )


def local_version(
    release: str,
    patchset: str,
    digest: str,
    *,
    revision: int = 0,
    arch: str = "",
    card: str = "",
    compiled: int | None = None,
) -> str:
    """Return a build's PEP 440 version, such as ``0.24.0+spark.12.1a2b3c4d``.

    Its forms are in ``docs/architecture.md``. PEP 440 compares local versions part by part, numbers as
    numbers and above words. So a higher revision is newer whatever the digests are, and a wheel for another
    card is never preferred to one for the usual card. Of one revision, the wheel with kernels for the usual
    card comes after the one with upstream's: ``sm`` is above every hex digit, and the digest's part always
    has a letter. Between the two is ``mixed``, by the number of compiled extensions; for another card it
    comes before every wheel that is compiled as a whole. Upstream's version of an untagged commit keeps its
    local part in front: it is newer than upstream's wheel of that commit, and older than any of a later one.

    Args:
        release: upstream's version, with no local part but that of an untagged commit.
        patchset: the patchset's name; characters that a local version cannot hold become a dot.
        digest: the build spec's digest in hex, of which eight digits are taken, and more up to the first
            letter if they are all decimal.
        revision: the patchset's; 0 for a working state.
        arch: the architecture of kernels for the usual card, such as ``sm121a``; empty for upstream's.
        card: the architecture of kernels compiled for another card, such as ``sm100a``.
        compiled: the number of extensions compiled for *arch* or *card* where others are upstream's; `None`
            where none is.
    """
    name = re.sub(r"[^a-z0-9]+", ".", patchset.lower()).strip(".")
    try:
        base = Version(release)
        mixed, number = ([], []) if compiled is None else (["mixed"], [str(compiled)])
        marks = [
            name,
            *([*mixed, card] if card else []),
            str(revision),
            *(mixed if arch else []),
            *number,
            *([arch] if arch else []),
            _shortened(digest),
        ]
        version = Version(f"{release}{'.' if base.local else '+'}{'.'.join(marks)}")
    except InvalidVersion as error:
        raise WheelError(
            f"no version can be made of {release!r} and {patchset!r}", because=str(error)
        ) from error
    of_commit = base.local is None or _OF_COMMIT.fullmatch(base.local)
    if not of_commit or not name or not re.fullmatch(r"[0-9a-f]{8,}", digest):
        raise WheelError(
            f"no version can be made of {release!r} and {patchset!r}",
            because="it takes the version of a release or an untagged commit, a name with letters or digits, "
            "a hex digest",
        )
    return str(version)


def _shortened(digest: str) -> str:
    """Return the first digits of *digest*, with a letter among them if it has one."""
    short = digest[:_DIGEST_DIGITS]
    longer = re.match(r"[0-9]+[a-f]", digest)
    return longer[0] if short.isdecimal() and longer else short


# Version and tags in the files that state them ----------------------------------------------------

VERSION_FILE = "vllm/_version.py"
_STRINGS = frozenset({"version", "__version__"})
_TUPLES = frozenset({"version_tuple", "__version_tuple__"})
_GENERATOR = b"sparkwright"


def header(data: bytes, name: str) -> list[str]:
    """Return the values of the field *name* in METADATA or WHEEL, in their order, without the body."""
    head = _head(data)
    pattern = rb"(?mi)^" + re.escape(name).encode() + rb":[ \t]*(.*?)[ \t]*\r?$"
    return [value.decode(errors="replace") for value in re.findall(pattern, head)]


def _head(data: bytes) -> bytes:
    """Return the header fields: everything before the first empty line."""
    end = re.search(rb"\r?\n\r?\n", data)
    return data[: end.start()] if end else data


def _set_field(data: bytes, name: str, values: Sequence[bytes], where: str) -> bytes:
    """Return *data* with the lines of field *name* replaced by one line for each of *values*."""
    head = _head(data)
    lines = re.split(rb"\r?\n", head.rstrip(b"\r\n"))
    field = name.lower().encode() + b":"
    found = [index for index, line in enumerate(lines) if line.lower().startswith(field)]
    if not found:
        raise WheelError(f"{where} cannot be stamped", because=f"it has no field {name}")
    stamped = [name.encode() + b": " + value for value in values]
    kept = [line for index, line in enumerate(lines) if index not in found]
    lines = kept[: found[0]] + stamped + kept[found[0] :]
    rest = data[len(head) :] if len(head) < len(data) else b"\n"
    return b"\n".join(lines) + rest


def stamp_metadata(data: bytes, version: str) -> bytes:
    """Return METADATA with *version* as its only version."""
    if len(header(data, "Version")) != 1:
        raise WheelError("METADATA cannot be stamped", because="it does not state exactly one version")
    return _set_field(data, "Version", [version.encode()], "METADATA")


def stamp_wheel(data: bytes, tags: Sequence[str]) -> bytes:
    """Return WHEEL with exactly *tags*, and ``sparkwright`` as its generator."""
    data = _set_field(data, "Tag", [tag.encode() for tag in tags], "WHEEL")
    return _set_field(data, "Generator", [_GENERATOR], "WHEEL")


def stamp_version_file(source: bytes, version: str) -> bytes:
    """Return ``_version.py`` with *version* in place of the literals that it assigns.

    The file is what setuptools-scm writes: ``__version__ = version = '…'`` and
    ``__version_tuple__ = version_tuple = (…)``. Everything else, the commit id above all,
    stays as in upstream's file.
    """
    literals = _literals(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for node, names in sorted(literals, key=lambda one: (one[0].lineno, one[0].col_offset), reverse=True):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        value = version if names & _STRINGS else version_tuple(version)
        source = source[:start] + repr(value).encode() + source[end:]
    return source


def version_tuple(version: str) -> tuple[int | str, ...]:
    """Return *version* as setuptools-scm's tuple: the release's numbers, then the other parts as text."""
    parsed = Version(version)
    pre = f"{parsed.pre[0]}{parsed.pre[1]}" if parsed.pre else None
    post = f"post{parsed.post}" if parsed.post is not None else None
    dev = f"dev{parsed.dev}" if parsed.dev is not None else None
    return (*parsed.release, *(part for part in (pre, post, dev, parsed.local) if part is not None))


def stated_version(source: bytes) -> tuple[str, tuple[int | str, ...]]:
    """Return the version and the version tuple that ``_version.py`` assigns."""
    text, numbers = "", ()
    for node, names in _literals(source):
        if names & _STRINGS:
            text = ast.literal_eval(node)
        else:
            numbers = ast.literal_eval(node)
    return text, numbers


def _literals(source: bytes) -> list[tuple[ast.expr, frozenset[str]]]:
    """Return the literal expressions assigned to the four names, each with its names."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise WheelError(f"{VERSION_FILE} cannot be read", because=str(error)) from error
    found: list[tuple[ast.expr, frozenset[str]]] = []
    for node in body:
        if isinstance(node, ast.Assign):
            names = frozenset(target.id for target in node.targets if isinstance(target, ast.Name))
            if names & (_STRINGS | _TUPLES):
                found.append((node.value, names))
    assigned = sorted(name for _, names in found for name in names)
    shapes = all(_has_shape(node, names) for node, names in found)
    if assigned != sorted(_STRINGS | _TUPLES) or not shapes:
        raise WheelError(
            f"{VERSION_FILE} cannot be read",
            because="it does not assign one literal each to version, __version__ and their tuples",
            next_step="look up the new format of upstream's version file, and adapt wheel/names.py",
        )
    return found


def _has_shape(node: ast.expr, names: frozenset[str]) -> bool:
    if names <= _STRINGS:
        return isinstance(node, ast.Constant) and isinstance(node.value, str)
    if names <= _TUPLES:
        return isinstance(node, ast.Tuple) and all(isinstance(part, ast.Constant) for part in node.elts)
    return False
