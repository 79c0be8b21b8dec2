"""HTML pages that load nothing and run no script: their head and style sheets, and how templates are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkwright.base.text import clean

if TYPE_CHECKING:
    from jinja2 import Environment

STYLES = Path(__file__).parent


def page_environment(templates: Path, *, finalize: Callable[[Any], Any] | None = None) -> Environment:
    """Return the environment of pages by the *templates* in a folder, which include those beside this module.

    Args:
        templates: the folder.
        finalize: changes every value that is shown, before it is escaped.
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
    made.filters["clean"] = clean
    return made
