"""Compile on other machines: units as tasks of Dask, their inputs and objects through the store.

Start reading at `sparkwright.cluster.compiler`. A task names its inputs by digest: the tree as a git pack in
the store, the toolchain by the lock and its key. The machine that runs it (`worker`) lays the same tree and
toolchain out, refuses to compile with another one, and puts the object into its store. What comes back
through Dask is the object's digest and what the compiler read; the object itself comes from the store that
the machines share, and is verified by its digest. So a machine that is lost costs the units that it was
compiling, and the result is the same file wherever units were compiled.
"""

from sparkwright.cluster.address import ClusterAddress, parse_cluster

__all__ = ["ClusterAddress", "parse_cluster"]
