"""Inline SVG, as far as our charts need it.

`kinds` is the file to open first: one function for each kind of chart. `plot` holds their parts, `scale` the
axes, and `svg` the elements. Colours are classes: the page's style sheet gives them one for light, one for
dark and one for paper.
"""
