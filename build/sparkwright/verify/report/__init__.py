"""Reports of a run: one HTML page, JUnit XML for CI systems, a table as CSV, and a few lines for a terminal.

`html` is the file to open first. `figures` computes figures from observations (by the definitions of
`metrics` and `statistics`), `charts` holds the charts of each check as Vega-Lite specifications, and `vega`
compiles them to SVG. All outputs are the same for the same run. Text from a server or a prompt goes
through `base.text.clean` and is escaped.
"""

from sparkwright.verify.report.html import render_html
from sparkwright.verify.report.junit import render_junit
from sparkwright.verify.report.table import render_csv
from sparkwright.verify.report.terminal import render_terminal

__all__ = ["render_csv", "render_html", "render_junit", "render_terminal"]
