"""Sources of pristine trees and stock wheels: the package index, a git remote, a folder.

Open `source` first. `network`, `index` and `download` talk to the indexes, `archive` reads sdists, `releases`
turns them into trees, `evidence` gathers what ``upstream.lock`` is checked against, and `commits` takes
wheels of commits.
"""
