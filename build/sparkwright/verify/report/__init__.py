"""Reports of a run: one HTML page, and a few lines for a terminal.

`html` is the file to open first; `figures` computes figures from observations, by the definitions of
`metrics` and `statistics`. Both outputs are the same for the same run. Text from a server or a prompt goes
through `base.text.clean` and is escaped.
"""

from sparkwright.verify.report.html import render_html
from sparkwright.verify.report.terminal import render_terminal

__all__ = ["render_html", "render_terminal"]
