"""Reports of a run: one HTML page, a table as CSV, and a few lines for a terminal.

`html` is the file to open first. `figures` computes figures from observations (by the definitions of
`metrics` and `statistics`), `charts` says what is drawn, and `svg` draws it. All outputs are the same for
the same run. Text from a server or a prompt goes through `base.text.clean` and is escaped.
"""

from sparkwright.verify.report.html import render_html
from sparkwright.verify.report.table import render_csv
from sparkwright.verify.report.terminal import render_terminal

__all__ = ["render_csv", "render_html", "render_terminal"]
