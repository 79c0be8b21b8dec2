"""Stamp version and tags into the files of a wheel that state them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from packaging.version import Version

from sparkwright.base.errors import WheelError

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
    """Return METADATA with *version* as its only version.

    Raises:
        WheelError: it does not state exactly one version.
    """
    if len(header(data, "Version")) != 1:
        raise WheelError("METADATA cannot be stamped", because="it does not state exactly one version")
    return _set_field(data, "Version", [version.encode()], "METADATA")


def stamp_wheel(data: bytes, tags: Sequence[str]) -> bytes:
    """Return WHEEL with exactly *tags*, and ``sparkwright`` as its generator.

    Raises:
        WheelError: it has no tag or no generator.
    """
    data = _set_field(data, "Tag", [tag.encode() for tag in tags], "WHEEL")
    return _set_field(data, "Generator", [_GENERATOR], "WHEEL")


def stamp_version_file(source: bytes, version: str) -> bytes:
    """Return ``_version.py`` with *version* in place of the literals that it assigns.

    The file is what setuptools-scm writes: ``__version__ = version = '…'`` and
    ``__version_tuple__ = version_tuple = (…)``. Everything else, the commit id above all,
    stays as in upstream's file.

    Raises:
        WheelError: it does not assign exactly one literal to each of the four names.
    """
    literals = _literals(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for node, names in sorted(literals, key=_position, reverse=True):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        value = version if names & _STRINGS else version_tuple(version)
        source = source[:start] + repr(value).encode() + source[end:]
    return source


def _position(literal: tuple[ast.expr, frozenset[str]]) -> tuple[int, int]:
    return literal[0].lineno, literal[0].col_offset


def version_tuple(version: str) -> tuple[int | str, ...]:
    """Return *version* as setuptools-scm's tuple: the release's numbers, then the other parts as text."""
    parsed = Version(version)
    pre = f"{parsed.pre[0]}{parsed.pre[1]}" if parsed.pre else None
    post = f"post{parsed.post}" if parsed.post is not None else None
    dev = f"dev{parsed.dev}" if parsed.dev is not None else None
    return (*parsed.release, *(part for part in (pre, post, dev, parsed.local) if part is not None))


def stated_version(source: bytes) -> tuple[str, tuple[int | str, ...]]:
    """Return the version and the version tuple that ``_version.py`` assigns.

    Raises:
        WheelError: as for `stamp_version_file`.
    """
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
            next_step="look up the new format of upstream's version file, and adapt wheel/stamp.py",
        )
    return found


def _has_shape(node: ast.expr, names: frozenset[str]) -> bool:
    if names <= _STRINGS:
        return isinstance(node, ast.Constant) and isinstance(node.value, str)
    if names <= _TUPLES:
        return isinstance(node, ast.Tuple) and all(isinstance(part, ast.Constant) for part in node.elts)
    return False
