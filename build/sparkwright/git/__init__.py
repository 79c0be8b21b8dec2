"""The only package that runs git.

`Repository` is a bare object store that we own: trees and commits are written to it with a
fixed identity and date, under an environment and configuration that ignore the user's, so
that the same inputs give the same ids on every machine. Nothing here needs a work tree.

Open `repository` first; `trees` turns files into trees and trees into files or packs, and merges three
of them, `remotes` checks addresses and fetches, `soundness` finds what a disk lost, and `clone` is the
person's clone of this project.
"""
