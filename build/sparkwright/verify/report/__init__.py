"""A run for readers: one HTML page, JUnit XML for machines that build, and a few lines for a terminal.

`html` is the file to open first. `figures` draws figures from observations (by the definitions of `metrics`
and `statistics`), `charts` says which charts are made of them, and `drawing` draws. All three outputs are the
same for the same run, and whatever a server or a prompt said goes through `text.clean` and is escaped.
"""

from sparkwright.verify.report.html import render_html
from sparkwright.verify.report.junit import render_junit
from sparkwright.verify.report.terminal import render_terminal

__all__ = ["render_html", "render_junit", "render_terminal"]
