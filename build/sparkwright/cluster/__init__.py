"""Compile and prove on other machines: tasks of Dask, their trees and objects through the store.

Start reading at `sparkwright.cluster.running`. Two modules are about each kind of task: `compiler` and
`prover` send it, `compiling` and `proving` run it on the machine of a `worker`; all else serves both.

A task names its inputs by digest: trees as git packs in the store, the toolchain by the lock and its key, the
environment for probes by its key. The machine that runs it lays the same out, refuses to work with other
ones, and puts an object into its store. What comes back through Dask is the object's digest and what the
compiler read, or a proof's record; the object itself comes from the store that the machines share, and is
verified by its digest. So a machine that is lost costs the tasks that it was running, and the result is the
same wherever they ran.
"""

from sparkwright.cluster.address import ClusterAddress, parse_cluster

__all__ = ["ClusterAddress", "parse_cluster"]
