"""Work on other machines: tasks of Dask, their trees and files through the store.

Start reading at `sparkwright.cluster.running`: every kind of task goes through `Cluster.run`. `kinds` says
what a kind is. Units and proofs have two modules each: `compiler` and `prover` send them, `compiling` and
`proving` run them on the machine of a `worker`; `verifying` has both sides of runs of `verify`. Packages
above have further kinds: `pipeline.releases`, `rehearsal.elsewhere` and `search.elsewhere`.

A task names its inputs by digest: trees as git packs in the store, files, the toolchain by the lock and its
key, the environment for probes by its key. The machine that runs it lays the same out, refuses to work with
other ones, and puts what it makes into its store. What comes back through Dask is a short result and digests;
files come from the store that the machines share, and are verified by their digests. So a machine that is
lost costs the tasks that it was running, and the result is the same wherever they ran.
"""

from sparkwright.cluster.address import ClusterAddress, parse_cluster

__all__ = ["ClusterAddress", "parse_cluster"]
