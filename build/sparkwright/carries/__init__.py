"""Carries: changes held on top of upstream, each with its reason, its revisions and its probe.

`model` is what ``carry.toml`` says and reads the folders, `patch` applies a revision to exactly the blobs
that it was written for, and `patchset` puts carries in order on a pin. `edited` makes carries from an edited
folder; `files` writes them, and reads pull requests.
"""
