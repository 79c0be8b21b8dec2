"""HTML pages that load nothing and run no script, and plain texts: how their templates are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkwright.base.text import clean, code_span, human_seconds, human_size

if TYPE_CHECKING:
    from jinja2 import Environment

STYLES = Path(__file__).parent


def page_environment(templates: Path) -> Environment:
    """Return the environment of pages by the *templates* in a folder, which include those beside this one."""
    return _environment([templates, STYLES], autoescape=True)


def text_environment(templates: Path, quoted: Callable[[str], str] = code_span) -> Environment:
    """Return the environment of texts, such as Markdown, by the *templates* in a folder.

    *quoted* is the filter of that name, through which templates show all words from outside.
    """
    made = _environment([templates], autoescape=False)
    made.filters["quoted"] = quoted
    return made


def _environment(folders: Sequence[Path], *, autoescape: bool) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(folders),
        autoescape=autoescape,  # noqa: S701 - texts have a filter of their own
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"clean": clean, "human_seconds": human_seconds, "human_size": human_size}
    return made
