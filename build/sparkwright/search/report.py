"""Reports of a bisection: one HTML page, Markdown and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkwright.search.model import Problem, SearchResult


def render_html(problem: Problem, result: SearchResult) -> str:
    """Return the result as one page that needs no network and no script."""
    raise NotImplementedError


def render_markdown(problem: Problem, result: SearchResult) -> str:
    """Return the result as Markdown."""
    raise NotImplementedError


def render_json(problem: Problem, result: SearchResult) -> bytes:
    """Return the result as JSON, the changes spelt out."""
    raise NotImplementedError


def headline(problem: Problem, result: SearchResult) -> str:
    """Return the answer as one sentence."""
    raise NotImplementedError
