"""HTML pages that load nothing and run no script, and plain texts: how their templates are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.base.text import clean, code_span, human_seconds, human_size

if TYPE_CHECKING:
    from jinja2 import Environment

STYLES = Path(__file__).parent


def page_environment(templates: Path, *, finalize: Callable[[Any], Any] | None = None) -> Environment:
    """Return the environment of pages by the *templates* in a folder, which include those beside this module.

    *finalize* changes every value that is shown, before it is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader([templates, STYLES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    made.filters |= {"clean": clean, "human_seconds": human_seconds, "human_size": human_size}
    return made


def text_environment(templates: Path, quoted: Callable[[str], str] = code_span) -> Environment:
    """Return the environment of texts, such as Markdown, by the *templates* in a folder.

    *quoted* is the filter of that name, through which templates show all words from outside.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(  # noqa: S701 - the filter makes words harmless for what is no HTML
        loader=FileSystemLoader(templates), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "clean": clean,
        "quoted": quoted,
        "human_seconds": human_seconds,
        "human_size": human_size,
    }
    return made
