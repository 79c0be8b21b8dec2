"""A second tier of the store on another machine: results and downloads that several machines share.

The layout is that of Bazel's HTTP caches: ``cas/<sha256>`` holds files, ``ac/<sha256 of kind and key>`` the
records that name them. Open `tier` first: `sparkwright.store.paths` reads by it on a local miss, and writes
new results by it.
"""
