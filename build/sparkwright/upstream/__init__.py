"""Sources of pristine trees and stock wheels: the package index, a git remote, a folder.

Open `source` first. `settings`, `network`, `index`, `download` and `members` talk to the index,
`archive` reads sdists, `releases` turns them into trees, and `evidence` gathers what
``upstream.lock`` is checked against. `commit_index` reads upstream's index of wheels by commit, and
`commits` takes wheels from there.
"""
