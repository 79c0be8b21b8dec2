r"""Dependency files: the Make rules in which a compiler lists the files that it read (``-MD``).

The dialect is GCC's (``libcpp/mkdeps.cc``, GNU Make "Rule Syntax"), which nvcc writes too: a backslash
and a newline continue the line, ``\ `` is a space and ``\#`` a hash in a name, ``$$`` is a dollar. Before
a space every backslash is doubled; anywhere else it is part of the name. A name that ends with a backslash
cannot be told from one with a space, here as in Make.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# The colon that ends the targets is followed by a space or the end; one inside a name is not.
_COLON = re.compile(r":(?=\s|\Z)")
_WORD = re.compile(r"(?:\\[ \t\\]|[^ \t])+")
_QUOTED = re.compile(r"(\\+)([ \t#])")


def read_depfile(path: Path) -> tuple[str, ...]:
    """Return the prerequisites in the dependency file at *path*; see `parse_depfile`.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return parse_depfile(os.fsdecode(path.read_bytes()))


def parse_depfile(text: str) -> tuple[str, ...]:
    """Return the prerequisites of all rules in *text*, each once and in their order, as they are spelled.

    Targets are left out, and with them the rules without prerequisites that ``-MP`` adds.
    """
    found: dict[str, None] = {}
    for line in text.replace("\\\n", " ").split("\n"):
        colon = _COLON.search(line)
        if colon is not None:
            found.update(dict.fromkeys(_words(line[colon.end() :])))
    return tuple(found)


def _words(text: str) -> list[str]:
    # Nearly every file has only plain names, for which there is nothing faster.
    if text.isascii() and "\\" not in text and "$" not in text:
        return text.split()
    return [_QUOTED.sub(_unquote, word).replace("$$", "$") for word in _WORD.findall(text)]


def _unquote(found: re.Match[str]) -> str:
    slashes, mark = found.groups()
    return slashes[1:] + mark if mark == "#" else "\\" * (len(slashes) // 2) + mark
