"""Text for people: sizes and times, and text from outside made harmless for terminals, pages and logs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence


def clean(text: str, most: int = 4000) -> str:
    """Return *text* without characters that could steer a terminal, break XML or mislead a reader.

    Control characters other than line feeds and tabs, lone surrogates, code points that Unicode calls no
    characters and marks that turn the direction of text are written as escapes. Text longer than *most*
    characters is cut, and ends with the number of those left out.
    """
    shown = text[:most]
    if not shown.isprintable():
        shown = "".join(map(_harmless, shown))
    left = len(text) - most
    return f"{shown}… ({left:,} more characters)" if left > 0 else shown


def _harmless(character: str) -> str:
    """Return the character itself, or an escape for it."""
    shown = character in "\n\t" or character.isprintable() or unicodedata.category(character) == "Zs"
    return character if shown else _escaped(character)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"  # noqa: PLR2004


def one_line(text: object) -> str:
    """Return *text*, such as a path, as `clean` does, with line feeds and tabs as escapes too."""
    return clean(str(text)).replace("\n", "\\n").replace("\t", "\\t")


def few(texts: Sequence[str], most: int, *, sep: str = ", ", more: str = " and {} more") -> str:
    """Return the first of *texts*, and how many more there are."""
    left = len(texts) - most
    return sep.join(texts[:most]) + (more.format(left) if left > 0 else "")


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: ``1 cell``, ``2 cells``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def human_size(count: float) -> str:
    """Return *count* bytes as text, in a unit that reads well."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:  # noqa: PLR2004
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def human_seconds(seconds: float) -> str:
    """Return *seconds* as text, in minutes from one minute on."""
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def line_ends(text: bytes) -> str:
    """Return the line ends that most lines of *text* have, ``LF`` or ``CRLF``; empty without a line."""
    lines = text.count(b"\n")
    return "" if not lines else "CRLF" if 2 * text.count(b"\r\n") > lines else "LF"


def code_span(text: str, most: int = 500) -> str:
    """Return *text* as one code span of Markdown, also within a table; empty for nothing.

    There no forge renders HTML, loads an image, mentions a person or links an issue.
    """
    line = " ".join(clean(text, most).split())
    if not line:
        return ""
    # A table splits its cells at bars in code spans too, and takes a backslash before one away.
    line = line.replace("|", "\N{BROKEN BAR}")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"
